#!/usr/bin/env python3
"""`llama-server` for llama.cpp's tests: translates its command line to `tinderbox serve`, whose process it becomes.

Their models are on Hugging Face; a small model of our own takes their places, with the context of one of their slots. An
option that changes what an answer has is translated or refused; those that change how it is computed, or what a request
that leaves a field out gets, are ignored.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import sys

WORK = pathlib.Path(os.environ["WORK"])
PROGRAM = pathlib.Path(os.environ["BUILT"]) / "tinderbox"

# Those of which the tests need a text or a vector, and no other skill.
MODELS = ["ggml-org/test-model-stories260K", "ggml-org/models/bert-bge-small/ggml-model-f16.gguf"]
# With a value. The defaults of a request are OpenAI's; batches and threads are the program's own affair; a vector is
# always the mean.
IGNORED = ["--temp", "--seed", "--n-predict", "--batch-size", "--ubatch-size", "--threads", "-fa", "--cache-ram"]
# Without. Batches are continuous, templates are Jinja, a text that outgrows the context continues from its newer half, and
# `/metrics` and `/slots` are always there.
IGNORED_FLAGS = [
    "--offline", "--cont-batching", "--metrics", "--slots", "--no-slots", "--embedding", "--jinja", "--no-jinja",
    "--context-shift", "--verbose",
]
CHATML = """{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def refuse(message):
    raise SystemExit(f"llama_server.py: {message}")


def read_options(arguments):
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in ["--host", "--port", "--alias", "--api-key", "--cors-origins", "--chat-template", "--chat-template-file"]:
        parser.add_argument(name)
    for name in ["--hf-repo", "--hf-file", "--pooling", "--reasoning"]:
        parser.add_argument(name, default="")
    for name in ["--ctx-size", "--parallel"]:
        parser.add_argument(name, type=int, default=1)
    parser.add_argument("--kv-unified", action="store_true")
    for name in IGNORED:
        parser.add_argument(name, dest="ignored")
    for name in IGNORED_FLAGS:
        parser.add_argument(name, dest="ignored", action="store_true")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        refuse(f"serve has nothing like {unknown[0]}")
    if options.reasoning not in ["", "auto"]:
        refuse(f"serve has nothing like --reasoning {options.reasoning}")
    if options.pooling == "none":
        refuse("serve has no vectors of single tokens")
    model = "/".join(filter(None, [options.hf_repo, options.hf_file]))
    if model not in MODELS:
        refuse(f"there is no model like `{model}` here")
    return options


def template(options):
    """The chat template: that of the options, or ChatML."""
    if options.chat_template_file:
        return pathlib.Path(options.chat_template_file).read_text()
    given = options.chat_template
    if given in [None, "chatml"]:
        return CHATML
    if " " not in given:
        refuse(f"there is no chat template called `{given}` here")
    return given


def stand_in(options):
    """A copy of RUN with the name, the chat template and the context of one slot that the options ask for."""
    run = WORK / "served" / options.alias
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(os.environ["RUN"], run)
    tokens = options.ctx_size if options.kv_unified else options.ctx_size // options.parallel
    config = (run / "config.toml").read_text()  # its positions are rotations: no weight depends on the context
    (run / "config.toml").write_text(re.sub(r"(?m)^context_length = .*", f"context_length = {tokens}", config))
    tokenizer = {"chat_template": template(options), "eos_token": "<|endoftext|>"}
    (run / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return run


def main():
    options = read_options(sys.argv[1:])
    command = [PROGRAM, "serve", stand_in(options), "--parallel", str(options.parallel)]
    command += ["--host", options.host, "--port", options.port]
    if options.api_key:
        (WORK / "keys").write_text(options.api_key)
        command += ["--api-key-file", WORK / "keys"]
    if options.cors_origins:
        command += ["--allow-origin", options.cors_origins]
    os.execv(PROGRAM, command)


main()
