"""Compares chat templates with transformers: what they make of conversations, and the tokens that count in training.

    compare_templates.py TINDERBOX TEMPLATES WORK [OLLAMA_TEMPLATE]

TEMPLATES is a folder of templates, one in each *.jinja file. Each is rendered for conversations with and without system
messages, tools, calls and thoughts, here and by transformers. Then a tiny model with random weights and the template is
written to WORK and imported, and the records of conversations of two turns are previewed: each answer must follow the text
that transformers makes of the messages before it with `add_generation_prompt`, and count up to the token at which the model
stops. Where the template marks answers with `{% generation %}`, the tokens that count must be those of transformers but for
what follows that token. OLLAMA_TEMPLATE is ollama_template.go, built: it renders the TEMPLATE of the exported Modelfile, which
must be what transformers makes. Needs transformers, tokenizers, safetensors and numpy, and no torch.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.utils.chat_template_utils import render_jinja_template

tinderbox, templates, work = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
ollama_template = sys.argv[4] if len(sys.argv) > 4 else None
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
SPECIAL = re.compile(r"<[|｜][^<>{}'\"\n]{1,40}[|｜]>|<\|?(?:start_of_turn|end_of_turn|turn|end|eos|bos)\|?>|\[e~\[|\]~b\]|</s>|<s>")


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "row_of",
            "description": 'The row <of> a "book": naïve & old',
            "parameters": {
                "type": "object",
                "properties": {"title": {"type": "string"}, "row": {"type": "number", "default": 1.5e-7}},
                "required": ["title"],
            },
        },
    }
]
ARGUMENTS = {"title": "Hamlet", "row": 4, "x": 1e16, "y": None, "z": [True, 0.5]}
CALL = {"type": "function", "id": "abcdef123", "function": {"name": "row_of", "arguments": ARGUMENTS}}
RESULT = {"role": "tool", "content": '{"row": 4}', "name": "row_of", "tool_call_id": "abcdef123"}
THOUGHT = "<think>\nhm\n</think>\n\n"
# Messages, whether a reply begins behind them, and tools.
CONVERSATIONS = [
    ([user("one?"), answer("first."), user("two?")], True, None),
    ([SYSTEM, user("one?"), answer("first."), user("two?"), answer("second.")], False, None),
    ([user("one?"), answer(THOUGHT + "first."), user("two?"), answer("second.", reasoning_content="why")], False, None),
    ([SYSTEM, user("Which row?")], True, TOOLS),
    ([user("Which row?"), answer("", tool_calls=[CALL]), RESULT, answer("Four."), user("so?")], True, TOOLS),
    ([user("Which row?"), answer("Let me see.", tool_calls=[CALL]), RESULT, answer("Four.")], False, None),
    ([user("  blanks \n"), answer("\n\n a \n")], False, None),
]
TRAINED = [
    [user("one?"), answer("first."), user("two?"), answer("second.")],
    [user("three?"), answer(THOUGHT + "first."), user("two?"), answer(THOUGHT + "second.")],
]


def theirs(template, messages, begins_answer, tools=None, marks=False):
    """The text that transformers makes, or None, and the parts that it marks as answers."""
    tools = {"tools": tools} if tools else {}
    try:
        texts, parts = render_jinja_template(
            [messages], chat_template=template, add_generation_prompt=begins_answer, return_assistant_tokens_mask=marks,
            **NAMED, **tools,
        )
    except Exception:
        return None, []
    return texts[0], parts[0] if parts else []


class Ours:
    """The process that renders a template."""

    def __init__(self, template):
        self.process = subprocess.Popen([tinderbox, "within-limits"], stdin=-1, stdout=-1, text=True)
        limits = {"time": {"secs": 20, "nanos": 0}, "memory_mib": 1024, "stack": 8 << 20, "text": 64 << 20}
        self.process.stdin.write(json.dumps(limits) + "\n")
        self.refusal = self.ask({"Template": {"templates": {"default": template}, "tokens": NAMED}}).get("Err")

    def ask(self, task):
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline() or '{"Err": "the process ended"}')

    def render(self, messages, begins_answer, tools):
        variables = {"tools": tools} if tools else {}
        task = {"messages": messages, "prefixes": [[len(messages), begins_answer]], "variables": variables}
        reply = self.ask({"Conversation": task})
        return reply["Ok"][0].get("Ok") if "Ok" in reply else None

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def difference(ours, text):
    at = next((i for i, (a, b) in enumerate(zip(ours, text)) if a != b), min(len(ours), len(text)))
    return f"{ours[max(0, at - 20) : at + 30]!r} instead of {text[max(0, at - 20) : at + 30]!r}"


def compare_texts(template):
    """The numbers of texts that are equal, and of those that only we make, and what differs."""
    ours, n_equal, n_more, differences = Ours(template), 0, 0, []
    if ours.refusal:
        return 0, 0, [f"it is not parsed: {ours.refusal}"]
    for idx, (messages, begins_answer, tools) in enumerate(CONVERSATIONS):
        text, _ = theirs(template, messages, begins_answer, tools)
        own = ours.render(messages, begins_answer, tools)
        if own == text:
            n_equal += 1
        elif text is None:
            n_more += 1
        else:
            differences.append(f"conversation {idx}: {difference(own or '', text)}")
    ours.close()
    return n_equal, n_more, differences


def stop_of(template):
    """The token that ends an answer: the last of those behind it, or else the one that begins the next turn."""
    for messages in (TRAINED[0][:2], TRAINED[0][:3]):
        text, _ = theirs(template, messages, False)
        found = re.search(f"((?:{SPECIAL.pattern})+)", (text or "").split("first.", 1)[-1].split("two?")[0])
        if found:
            return SPECIAL.findall(found[0])[-1 if len(messages) == 2 else 0]
    return None


def model_with(tokens, folder):
    """A folder of transformers with a model of bytes and special tokens; returns their ids."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: idx for idx, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*NAMED.values(), *sorted(tokens - {*NAMED.values()})])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**NAMED, "chat_template": "{{ messages }}"}))
    n, d = tokenizer.get_vocab_size(), 16
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": n, "hidden_size": d,
        "intermediate_size": d, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": tokenizer.token_to_id("<s>"),
        "eos_token_id": tokenizer.token_to_id("</s>"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    layer, ones = "model.layers.0.", np.ones(d, np.float32)
    random = np.random.default_rng(0)
    tensors = {"model.embed_tokens.weight": random.normal(size=(n, d)).astype(np.float32), "model.norm.weight": ones}
    tensors |= {layer + name + ".weight": ones for name in ("input_layernorm", "post_attention_layernorm")}
    for part, names in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down"))):
        for name in names:
            tensors[f"{layer}{part}.{name}_proj.weight"] = random.normal(size=(d, d)).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return {token: tokenizer.token_to_id(token) for token in tokens}


def records_of(run, conversations, stop):
    """The records of each conversation: their texts, and the parts that count; or the refusal."""
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    path = work / "records.jsonl"
    path.write_text("".join(json.dumps({"messages": it}) + "\n" for it in conversations) * 2)  # one line is held out
    command = [tinderbox, "data", "preview", run, "--data", path, "--json", "--n-shown", "100"]
    command += ["--set", "finetune.max_tokens=8192", "--set", f"generate.stop_token_ids={[] if stop is None else [stop]}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[0]
    records = [[] for _ in conversations]
    for shown in json.loads(done.stdout)["shown"]:
        ids, edges = shown["ids"], []
        for at, (was_counted, counts) in enumerate(zip([False, *shown["counts"]], [*shown["counts"], False])):
            if was_counted != counts:
                edges.append(len(tokenizer.decode(ids[:at], skip_special_tokens=False)))
        text, parts = tokenizer.decode(ids, skip_special_tokens=False), list(zip(edges[::2], edges[1::2]))
        # A template may leave out the first question.
        of = next((idx for idx, messages in enumerate(conversations) if messages[0]["content"] in text), 0)
        if (text, parts) not in records[of]:
            records[of].append((text, parts))
    return records


def compare_records(template, stop, records, messages):
    """What is wrong with the records of a conversation, and whether an answer was put together from two texts."""
    wrong, was_joined = [], False
    parts = [(text, part) for text, parts in records for part in parts]
    answers = [idx for idx, message in enumerate(messages) if message["role"] == "assistant"]
    if len(parts) != len(answers):
        return [f"{len(parts)} answers count instead of {len(answers)}"], False
    for idx, (text, (start, end)) in zip(answers, parts):
        before, _ = theirs(template, messages[:idx], True)
        after, _ = theirs(template, messages[: idx + 1], False)
        said = messages[idx]["content"].split("</think>")[-1].strip()
        counted = text[start:end]
        if after.startswith(before):
            rest = after[len(before) :]
            behind = rest.find(stop, rest.find(said) + len(said)) if stop else -1
            expected = rest[: behind + len(stop)] if behind >= 0 else rest
            if text[:start] != before:
                wrong.append(f"answer {idx} follows {difference(text[:start], before)}")
            elif counted != expected and counted != expected + stop:  # GLM's next turn
                wrong.append(f"answer {idx} is {difference(counted, expected)}")
        else:
            was_joined = True
            if said not in counted or (stop and stop in after.split(said)[-1] and not counted.endswith(stop)):
                wrong.append(f"answer {idx} is {counted!r}")
    has_marks = re.search(r"{%-? *generation", template) is not None
    whole, marks = theirs(template, messages, False, marks=has_marks)
    marked = []
    for first, last in marks:
        if marked and marked[-1][1] == first:
            first = marked.pop()[0]
        marked.append((first, last))
    if marked and len(records) == 1 and records[0][0] == whole:
        for idx, (start, end), (first, last) in zip(answers, records[0][1], marked):
            before, _ = theirs(template, messages[:idx], True)
            # The start of a reply and what follows its end do not count here.
            if first > start or not before.endswith(whole[first:start]) or whole[end:last].strip():
                wrong.append(f"{whole[start:end]!r} counts, and transformers marks {whole[first:last]!r}")
    return wrong, was_joined


def compare_ollama(template, run):
    """What is wrong with the TEMPLATE of the exported Modelfile; None if it has none."""
    command = [tinderbox, "export", run, "--to", "gguf", "--output", work / "gguf", "--overwrite"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return [done.stderr.strip()]
    found = re.search(r'^TEMPLATE """(.*?)"""$', (work / "gguf" / "Modelfile").read_text(), re.DOTALL | re.MULTILINE)
    if not found:
        return None
    talk = TRAINED[0]
    all_messages = [talk[:1], talk[:3], [SYSTEM, talk[0]], [SYSTEM, *talk[:3]], [SYSTEM, *talk, user("three?")]]
    tasks = "".join(json.dumps({"template": found[1], "messages": it}) + "\n" for it in all_messages)
    done = subprocess.run([ollama_template], input=tasks, capture_output=True, text=True, check=True)
    wrong = []
    for messages, line in zip(all_messages, done.stdout.splitlines()):
        text, own = theirs(template, messages, True)[0], json.loads(line)
        if text is not None and own != text:
            wrong.append(f"ollama: {own if isinstance(own, dict) else difference(own, text)}")
    return wrong


def main():
    work.mkdir(parents=True, exist_ok=True)
    paths = sorted(templates.glob("*.jinja"))
    n_texts = n_more = n_trained = n_joined = n_refused = n_in_go = 0
    failures = []

    def fail(line):
        failures.append(line)
        print(line, flush=True)

    stops = {path: stop_of(path.read_text()) for path in paths}
    tokens = {token for path in paths for token in SPECIAL.findall(path.read_text())}
    ids = model_with(tokens | {stop for stop in stops.values() if stop}, work / "model")
    command = [tinderbox, "import", work / "model", "--run-dir", work / "run", "--overwrite"]
    subprocess.run(command, capture_output=True, check=True)
    for path in paths:
        template = path.read_text()
        n_equal, more, differences = compare_texts(template)
        n_texts, n_more = n_texts + n_equal, n_more + more
        for it in differences:
            fail(f"{path.name}: {it}")
        takes_turns = [theirs(template, messages, False)[0] is not None for messages in TRAINED]
        if not takes_turns[0]:
            n_refused += 1
            continue
        (work / "run" / "tokenizer_config.json").write_text(json.dumps({**NAMED, "chat_template": template}))
        stop = stops[path]
        of_all = TRAINED if takes_turns[1] else TRAINED[:1]
        records = records_of(work / "run", of_all, ids.get(stop))
        if isinstance(records, str) and len(of_all) > 1:
            fail(f"{path.name}, with thoughts: {records}")
            records = records_of(work / "run", TRAINED[:1], ids.get(stop))
        if isinstance(records, str):
            fail(f"{path.name}: {records}")
            continue
        wrong, joined = compare_records(template, stop, records[0], TRAINED[0])
        n_trained += not wrong
        n_joined += joined and not wrong
        for it in wrong:
            fail(f"{path.name}: {it}")
        for of_record, messages in zip(filter(None, records[1:]), TRAINED[1:]):
            for it in compare_records(template, stop, of_record, messages)[0]:
                fail(f"{path.name}, with thoughts: {it}")
        in_go = compare_ollama(template, work / "run") if ollama_template else None
        n_in_go += in_go == []
        for it in in_go or []:
            fail(f"{path.name}: {it}")
    print(f"{len(paths)} templates: {n_texts} texts equal transformers', {n_more} only here")
    print(
        f"{n_refused} refuse a question and an answer in transformers; {n_trained} train two turns as the model is asked, of which "
        f"{n_joined} begin a reply with text that answers do not have"
    )
    if ollama_template:
        print(f"{n_in_go} are written for ollama, whose prompts equal transformers'")
    if failures:
        sys.exit(f"{len(failures)} differences")


main()
