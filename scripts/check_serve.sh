#!/usr/bin/env bash
# Tests `tinderbox serve` with third-party clients: the `openai` package, and lm-eval beside its own transformers backend.
#
#     scripts/check_serve.sh                   # all parts but speed, in some minutes on two cores
#     scripts/check_serve.sh openai lm-eval    # only these
#
# openai:  streamed and plain responses are equal, in text and log-probabilities; greedy completions equal those of
#          `generate`, alone and beside 15 others
# clients: all supported features of the `openai` package (chats, schemas, tools, responses, vectors, errors), LiteLLM,
#          LangChain and the requests of Open WebUI; deliberate refusals are listed
# schemas: JSON of the schemas that pydantic makes, by `parse` of the `openai` package, and of every supported keyword,
#          checked by the package jsonschema
# llama.cpp: llama.cpp's server tests, with a small model instead of theirs: each passes, or is listed with a reason in
#          scripts/serve/llama_cpp_tests.py
# lm-eval: accuracy and every log-likelihood of a multiple-choice task, and perplexity, through the server and by
#          transformers from the exported model, within 1e-3
# crowd:   10,000 requests, right ones and wrong ones, after which memory is as before; 200 clients that are killed, whose
#          places are free within 100 ms; clients that do not read, and requests that do not end
# speed:   only if it is named: 16 clients at once beside `generate --num-samples 16` and llama.cpp (xllamacpp) with the
#          same weights, medians of three rounds; nothing else should run meanwhile
#
# The first run trains a small model on data/stories.txt, and makes a virtual environment. Settings, as environment
# variables:
#
#     WORK       where these are kept; target/serve
#     PYTHON     the Python for the virtual environment, 3.10 or newer; python3
#     VENV       a virtual environment that has what scripts/serve/requirements.txt names; WORK/venv
#     LLAMA_CPP  llama.cpp's source, for its tests; by default that of the pinned xllamacpp
#     RUN        the run of `speed`, such as an imported model; the small one
#     BUILT      the folder of the built program, which is not built then; target/release
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=${WORK:-target/serve}
venv=${VENV:-$work/venv}
mkdir -p "$work"

if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r scripts/serve/requirements.txt
fi
if [ -z "${BUILT:-}" ]; then
    cargo build --release --locked
    export BUILT=${CARGO_TARGET_DIR:-target}/release
fi
if [ ! -e "$work/run/best" ]; then
    "$BUILT/tinderbox" train configs/quickstart.toml --run-dir "$work/run" --set train.max_steps=150 \
        --set train.device=cpu --set tokenizer.kind=bpe --set tokenizer.vocab_size=512 --set model.d_model=64
fi
exec "$venv/bin/python" scripts/serve/check.py "$work" "$@"
