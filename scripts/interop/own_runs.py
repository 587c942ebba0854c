"""Runs of Tinderbox, exported: characters, bytes and BPE, in each family that other engines read."""

import random


import numpy as np
import torch
import transformers

from common import ROOT, Logits, LlamaCpp, decoded, difference, ids, log_softmax, tinderbox
from real_model import HOSTILE, checkpoint_tensors, overwriting, unequal

TOKENIZERS = {"char": [], "byte": [], "bpe": ["tokenizer.vocab_size=600"]}
ROPE = ["model.position=rope", "model.norm=rms_norm", "model.bias=false"]
FAMILIES = {
    "qwen3": [*ROPE, "model.mlp=swiglu", "model.qk_norm=true"],
    "llama": [*ROPE, "model.mlp=swiglu", "model.qk_norm=false", "model.tie_embeddings=false"],
    "arcee": [*ROPE, "model.mlp=relu_squared", "model.qk_norm=false"],
    "gpt2": [
        "model.position=learned", "model.norm=layer_norm", "model.bias=true", "model.mlp=gelu_tanh",
        "model.qk_norm=false", "model.n_kv_heads=4",
    ],
    "starcoder2": [
        "model.position=rope", "model.norm=layer_norm", "model.bias=true", "model.mlp=gelu_tanh", "model.qk_norm=false",
    ],
    # Not by its full name: of a model called phi3, llama.cpp expects the tokens of Microsoft's.
    "phi": [*ROPE, "model.mlp=swiglu", "model.qk_norm=false", "model.rotary_fraction=0.5"],
    "smollm3": [*ROPE, "model.mlp=swiglu", "model.qk_norm=false", "model.rope_layers=[true,true,true,false]", "model.n_layers=4"],
    "granite": [
        *ROPE, "model.mlp=swiglu", "model.qk_norm=false", "model.embedding_scale=12", "model.residual_scale=0.22",
        "model.logit_scale=0.125", "model.attention_scale=0.0625",
    ],
    "gemma3_text": [
        *ROPE, "model.mlp=geglu", "model.qk_norm=true", "model.post_norm=true", "model.n_layers=6", "model.embedding_scale=8",
        "model.attention_window=[64,64,64,64,64,0]", "model.rope_theta=1000000", "model.rope_local_theta=10000",
    ],
    "gemma2": [
        *ROPE, "model.mlp=geglu", "model.qk_norm=false", "model.post_norm=true", "model.embedding_scale=8",
        "model.attention_window=[64,0]", "model.attention_softcap=2", "model.logit_softcap=8",
    ],
    "gemma2-whole": [
        *ROPE, "model.mlp=geglu", "model.qk_norm=false", "model.post_norm=true", "model.embedding_scale=8",
        "model.attention_softcap=2", "model.logit_softcap=8",
    ],
    "olmo2": [
        *ROPE, "model.mlp=swiglu", "model.qk_norm=true", "model.qk_norm_across_heads=true", "model.pre_norm=false",
        "model.post_norm=true",
    ],
    # Not by its full name, as above.
    "longrope": [
        *ROPE, "model.mlp=swiglu", "model.qk_norm=false",
        'model.rope_scaling={kind="longrope", short_factors=[1,1,1,1,1,1,1,1], long_factors=[1,1.1,1.3,1.7,2,3,4,4], '
        "original_context_length=96, attention_factor=1.19}",
    ],
    "yarn": [*ROPE, "model.mlp=swiglu", "model.qk_norm=true", 'model.rope_scaling={kind="yarn", factor=4, original_context_length=96}'],
}
# Whose GELU is a table in llama.cpp, of numbers in f16.
GELU = ("gpt2", "starcoder2", "gemma2", "gemma2-whole", "gemma3_text")
# Small, and trained for long enough that the likeliest token is no matter of chance.
SETTINGS = [
    "data.path=data/stories.txt", "model.context_length=384", "model.d_model=64", "model.n_layers=2", "model.n_heads=4",
    "model.n_kv_heads=2", "model.d_ff=176", "train.max_steps=80", "train.batch_size=4", "data.val_fraction=0.01", "train.eval_interval=1000",
    "train.checkpoint_interval=1000", "train.sample_tokens=0", "train.device=cpu", "schedule.warmup_steps=10",
]
N_GREEDY = 256


def train(work, tokenizer, family):
    run = work / "runs" / f"{tokenizer}-{family}"
    if not (run / "best").exists():
        settings = [f"tokenizer.kind={tokenizer}", f"data.cache_dir={work / 'tokens'}", *SETTINGS]
        settings += [*TOKENIZERS[tokenizer], *FAMILIES[family]]
        set_ = [argument for setting in settings for argument in ("--set", setting)]
        tinderbox("train", ROOT / "configs" / "quickstart.toml", *set_, "--run-dir", run, "--overwrite")
    return run


def hostile(tokenizer):
    """Texts that a run can read: of characters only those of its vocabulary."""
    if tokenizer != "char":
        return HOSTILE
    known = set((ROOT / "data" / "stories.txt").read_text(encoding="utf-8"))
    texts = ["".join(character for character in text if character in known) for text in HOSTILE]
    texts += ["  two  blanks\n\n\nand lines ", "\n", " ", "  leading", "trailing  ", "I didn't. \"No,\" said the bank's owner"]
    return [text for text in texts if text]


def asked_of(run, draw):
    """Pieces of the text that the run has read."""
    text = (ROOT / "data" / "stories.txt").read_text(encoding="utf-8")
    pieces = []
    for length in [1, 2, 17, 64, 100]:
        start = draw.randrange(len(text) - 2000)
        pieces.append(ids(run, text[start : start + 1000])[:length])
    return pieces


@torch.inference_mode()
def to_transformers(bars, name, run, folder, tokenizer, family):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    worst, n_wrong = 0.0, 0
    with Logits(run) as ours:
        for tokens in asked_of(run, random.Random(2)):
            if family == "longrope" and len(tokens) <= 96:
                continue  # for which transformers takes the short factors, and we those of the context
            difference_here, wrong_here = difference(ours(tokens), theirs(torch.tensor([tokens])).logits[0].numpy())
            worst, n_wrong = max(worst, difference_here), n_wrong + wrong_here
    bars.at_most(f"{name}: max |logits - transformers|", 1e-3, worst)
    bars.none(f"{name}: arg max as transformers', but at near-ties", 1, [n_wrong] if n_wrong else [])

    reader = transformers.AutoTokenizer.from_pretrained(folder)
    texts, wrong = hostile(tokenizer), []
    for text in texts:
        expected = ids(run, text)
        if reader(text, add_special_tokens=False)["input_ids"] != expected:
            wrong.append(f"ids of {text!r}")
        elif reader.decode(expected).encode() != decoded(run, expected):
            wrong.append(f"text of {text!r}")
    bars.none(f"{name}: AutoTokenizer's ids and text of hostile texts", len(texts), wrong)


def to_llama_cpp(bars, name, run, file, tokenizer, family):
    with LlamaCpp(file, 512) as theirs, Logits(run) as ours:
        worst = 0.0
        for tokens in asked_of(run, random.Random(3)):
            expected = log_softmax(ours(tokens)[-1])
            found = theirs.log_probabilities(tokens, len(expected))
            worst = max(worst, float(np.abs(expected - found).max()))
        bars.at_most(f"{name}: max |log probability - llama.cpp|", 1e-2 if family in GELU else 1e-4, worst)

        text = (ROOT / "data" / "stories.txt").read_text(encoding="utf-8")[1000:1080]
        prompt = ids(run, text)
        answer = theirs.greedy(prompt, N_GREEDY)
        written = answer["tokens"]
        logits = ours([*prompt, *written])[len(prompt) - 1 : -1]
        top = np.sort(np.partition(logits, -2, axis=-1)[:, -2:], axis=-1)
        is_tie = top[:, 1] - top[:, 0] <= (2e-2 if family in GELU else 2e-3)
        wrong = np.flatnonzero((logits.argmax(-1) != np.array(written)) & ~is_tie)
        bars.none(f"{name}: greedy tokens as llama.cpp's, but at near-ties", N_GREEDY, wrong.tolist() if len(written) == N_GREEDY else [f"only {len(written)}"])
        # The program's own writing, whose engine is another than that of the logits: equal up to the first near-tie.
        first_tie = int(np.argmax(is_tie)) if is_tie.any() else len(written)
        said = tinderbox(
            "generate", run, "--prompt", text, "--temperature", 0,
            "--max-new-tokens", N_GREEDY, "--device", "cpu",
        )
        sure = decoded(run, [*prompt, *written[:first_tie]])
        bars.none(f"{name}: `generate` writes llama.cpp's text", 1, [] if said.startswith(sure) else [f"{said[-40:]!r}"])

        texts, wrong = hostile(tokenizer), []
        for text in texts:
            if theirs.post("/tokenize", content=text, add_special=False, parse_special=True)["tokens"] != ids(run, text):
                wrong.append(repr(text))
        bars.none(f"{name}: llama.cpp's /tokenize of hostile texts", len(texts), wrong)


def check(bars, work):
    (work / "out").mkdir(parents=True, exist_ok=True)
    for tokenizer in TOKENIZERS:
        for family in FAMILIES:
            name = f"{tokenizer}, {family}"

            def one():
                run = train(work, tokenizer, family)
                folder = overwriting("export", run, "--to", "hf", output=work / "out" / f"{run.name}-hf")
                bars.attempt(f"{name}, to HF", "as transformers", to_transformers, bars, name, run, folder, tokenizer, family)
                file = overwriting("export", run, "--to", "gguf", "--dtype", "f32", output=work / "out" / f"{run.name}.gguf")
                bars.attempt(f"{name}, to GGUF", "as llama.cpp", to_llama_cpp, bars, name, run, file, tokenizer, family)
                for output in (folder, file):
                    again = overwriting("import", output, output=work / "runs" / "again")
                    before, after = checkpoint_tensors(run), checkpoint_tensors(again)
                    kind = "GGUF" if output == file else "HF"
                    bars.none(f"{name}: {kind} and back, tensors equal in bytes", len(before), unequal(before, after))

            bars.attempt(name, "exported and compared", one)
