"""Compares the texts of records in the forms that people publish with those of transformers' apply_chat_template, given the
same conversation in OpenAI's form with arguments as objects.

    compare_records.py TINDERBOX RUN WORK

RUN is copied to WORK, with a template that writes tools, calls and their results as JSON.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

tinderbox, base, work = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{{ m['content'] }}"
    "{% if m.tool_calls is defined %}{% for call in m.tool_calls %}"
    "<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

FUNCTION = {
    "name": "book",
    "description": "Books a seat: 'é', <b>",
    "parameters": {"type": "object", "properties": {"title": {"type": "string"}, "row": {"type": "integer"}}},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
ARGUMENTS = {"title": "Hamlet", "row": 4, "at": {"z": 1.5, "a": [True, "ü"]}}


def call(arguments):
    return {"type": "function", "function": {"name": "book", "arguments": arguments}}


def talk(*calls, **fields):
    asked = {"role": "user", "content": "A seat?"}
    called = {"role": "assistant", "content": "", "tool_calls": list(calls), **fields}
    return [asked, called, {"role": "tool", "content": "done"}, {"role": "assistant", "content": "Booked."}]


def said(*texts, system=None):
    roles = ["user", "assistant"] * len(texts)
    before = [{"role": "system", "content": system}] if system else []
    return before + [{"role": role, "content": text} for role, text in zip(roles, texts)]


SHAREGPT = [
    {"from": "human", "value": "A seat?", "weight": None},
    {"from": "function_call", "value": json.dumps({"name": "book", "arguments": ARGUMENTS})},
    {"from": "observation", "value": "done"},
    {"from": "gpt", "value": "Booked.", "weight": 1},
]
WHOLE = (talk(call(ARGUMENTS)), TOOLS)

# Records as people have them, with the messages and tools that they mean.
CASES = [
    ({"messages": talk(call(ARGUMENTS)), "tools": TOOLS}, *WHOLE),
    ({"messages": talk(call(json.dumps(ARGUMENTS))), "tools": json.dumps(TOOLS)}, *WHOLE),
    ({"messages": talk(call(ARGUMENTS), content=None, name=None), "tools": [FUNCTION], "id": 3}, *WHOLE),
    ({"messages": json.dumps(talk(call(ARGUMENTS))), "tools": [json.dumps(TOOLS[0])]}, *WHOLE),
    ({"conversations": SHAREGPT, "tools": json.dumps(TOOLS)}, *WHOLE),
    ({"messages": talk(call(""), call(None), call({}), call("{}")), "tools": None}, talk(*[call({})] * 4), None),
    ({"prompt": "a", "completion": "b"}, said("a", "b"), None),
    ({"prompt": said("a"), "completion": said("a", "b")[1:]}, said("a", "b"), None),
    ({"question": "a", "answer": "b", "source": "x"}, said("a", "b"), None),
    ({"instruction": "a", "input": "x", "output": "b"}, said("a\n\nx", "b"), None),
    ({"instruction": "c", "output": "d", "system": "s", "history": [["a", "b"]]}, said("a", "b", "c", "d", system="s"), None),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, *said("a", "b")[1:]]}, said("a", "b"), None),
]


def main():
    run = work / "run"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, run, copy_function=os.link, symlinks=True)
    settings = json.loads((base / "tokenizer_config.json").read_text())
    (run / "tokenizer_config.json").unlink()
    (run / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(run / "tokenizer.json"))
    failures = 0
    for record, messages, tools in CASES:
        path = work / "records.jsonl"
        path.write_text((json.dumps(record) + "\n") * 2)  # one is held out
        command = [tinderbox, "data", "preview", run, "--data", path, "--json", "--set", 'finetune.train_on="all"']
        done = subprocess.run(command, capture_output=True, text=True)
        theirs = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, chat_template=TEMPLATE)
        ours = done.stdout and "".join(json.loads(done.stdout)["shown"][0]["pieces"])
        if ours != theirs:
            failures += 1
            print(f"{json.dumps(record)}\n  ours:   {ours!r} {done.stderr}\n  theirs: {theirs!r}")
    if failures:
        sys.exit(f"{failures} of {len(CASES)} records differ")
    print(f"{len(CASES)} records equal")


main()
