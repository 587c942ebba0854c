"""Takes adapters to llama.cpp and back from PEFT and mlx-lm, and compares with the merged model.

    compare_adapters.py TINDERBOX BASE TUNED WORK

BASE is a run, TUNED one that was fine-tuned from it with adapters. In llama.cpp, the base's GGUF file with the adapters'
gives what the merged GGUF file gives. Adapters that PEFT and mlx-lm have saved, for BASE and for a small random GPT-2, whose
queries, keys and values are one layer, give the same logits there and in the merged run.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).parent.parent / "interop"))
from common import LlamaCpp  # noqa: E402

tinderbox, base, tuned, work = sys.argv[1], *map(Path, sys.argv[2:5])
TEXTS = [
    "<|im_start|>user\nYoga with Maya at home, Sunday at 09:45.<|im_end|>\n<|im_start|>assistant\n",
    "The capital of France is",
    "def add(a, b):\n    return",
]
failures = []


def run(*arguments):
    subprocess.run([tinderbox, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def check(what, away, limit):
    print(f"{what}: {away:.1e}", flush=True)
    if not away < limit:
        failures.append(what)


def export(of, name, *more):
    path = work / name
    run("export", of, "--output", path, "--overwrite", *more)
    return path


def log_probabilities(gguf, tokens, n_rows, adapter=None):
    with LlamaCpp(gguf, adapter=adapter) as server:
        greedy = server.greedy(tokens[0], 24)["tokens"]
        return [server.log_probabilities(ids, n_rows) for ids in tokens], greedy


def in_llama_cpp(name, base, tuned, tokenizer):
    files = [
        export(base, f"{name}-base.gguf", "--to", "gguf"),
        export(tuned, f"{name}-merged.gguf", "--to", "gguf"),
        export(tuned, f"{name}-adapter.gguf", "--to", "gguf", "--adapter"),
    ]
    tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    n_rows = len(tokenizer)
    plain, _ = log_probabilities(files[0], tokens, n_rows)
    merged, greedy = log_probabilities(files[1], tokens, n_rows)
    beside, greedy_beside = log_probabilities(files[0], tokens, n_rows, files[2])
    finite = lambda it: np.where(np.isfinite(it), it, 0)
    away = lambda one, other: max(np.abs(finite(a) - finite(b)).max() for a, b in zip(one, other))
    print(f"{name}: the adapters change the log-probabilities by up to {away(plain, merged):.2f}")
    check(f"{name}: in llama.cpp, base and adapters against the merged model", away(beside, merged), 2e-3)
    if greedy != greedy_beside or away(plain, merged) < 0.05:
        failures.append(f"{name}: llama.cpp writes {greedy_beside} instead of {greedy}, or the adapters change nothing")


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def logits(model, tokenizer):
    with torch.no_grad():
        return [model(input_ids=tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]).logits for text in TEXTS]


def distance(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one, other))


def from_peft(name, base, hf, tokenizer, config):
    """Random adapters that PEFT has saved."""
    torch.manual_seed(3)
    model = get_peft_model(load(hf), config)
    for parameter_name, parameter in model.named_parameters():
        if "lora_B" in parameter_name:
            parameter.data.normal_(0, 0.02)
    folder = work / f"{name}-adapter"
    model.save_pretrained(folder)
    expected = logits(model.eval(), tokenizer)
    print(f"{name}: the adapters change the logits by up to {distance(expected, logits(load(hf), tokenizer)):.2f}")
    merged = work / f"{name}-run"
    run("merge", base, "--adapter", folder, "--run-dir", merged, "--overwrite")
    check(f"{name}: adapters of PEFT, merged here", distance(expected, logits(load(export(merged, f"{name}-hf", "--to", "hf")), tokenizer)), 1e-4)
    imported = work / f"{name}-imported"
    run("import", folder, "--base", base, "--run-dir", imported, "--overwrite")
    again = export(imported, f"{name}-again", "--to", "hf", "--adapter")
    check(f"{name}: adapters of PEFT, imported and exported again, in PEFT", distance(expected, logits(PeftModel.from_pretrained(load(hf), again).eval(), tokenizer)), 1e-4)
    return imported


def from_mlx(base, hf, tokenizer):
    """Random adapters in mlx-lm's form, of the last blocks; and mlx-lm's own logits, if it is installed."""
    settings = json.loads((hf / "config.json").read_text())
    d, layers = settings["hidden_size"], settings["num_hidden_layers"]
    torch.manual_seed(5)
    tensors = {}
    for layer in range(layers - 8, layers):
        for module, n in [("self_attn.q_proj", d), ("self_attn.v_proj", settings["num_key_value_heads"] * settings["head_dim"])]:
            tensors[f"model.layers.{layer}.{module}.lora_a"] = torch.randn(d, 4) * 0.05
            tensors[f"model.layers.{layer}.{module}.lora_b"] = torch.randn(4, n) * 0.02
    folder = work / "mlx-adapter"
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapters.safetensors")
    config = {"fine_tune_type": "lora", "num_layers": 8}
    config["lora_parameters"] = {"rank": 4, "scale": 5.0, "dropout": 0.0, "keys": ["self_attn.q_proj", "self_attn.v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    imported = work / "mlx-run"
    run("import", folder, "--base", base, "--run-dir", imported, "--overwrite")
    ours = logits(load(export(imported, "mlx-hf", "--to", "hf")), tokenizer)
    model = load(hf)
    for name, a in tensors.items():
        if name.endswith("lora_a"):
            layer = model.get_submodule(name.removesuffix(".lora_a"))
            layer.weight.data += 5.0 * (a @ tensors[name.replace("lora_a", "lora_b")]).T
    check("mlx-lm: adapters as it applies them, merged here", distance(ours, logits(model, tokenizer)), 1e-4)
    if importlib.util.find_spec("mlx_lm"):
        import mlx.core as mx
        from mlx_lm import load as load_mlx

        theirs, _ = load_mlx(str(hf), adapter_path=str(folder))
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
        found = [torch.tensor(np.array(theirs(mx.array([it])).astype(mx.float32))) for it in ids]
        check("mlx-lm: its own logits against the merged run", distance(ours, found), 1e-3)
    else:
        print("mlx-lm is not installed, so its own logits are not compared")


def main():
    hf = export(base, "base-hf", "--to", "hf")
    tokenizer = AutoTokenizer.from_pretrained(hf)
    in_llama_cpp("tuned", base, tuned, tokenizer)
    linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(
        r=8, lora_alpha=12, target_modules=linear, use_rslora=True, rank_pattern={"q_proj": 4, "down_proj": 16},
        alpha_pattern={"v_proj": 30}, layers_to_transform=[3, 7, 29],
    )
    in_llama_cpp("peft", base, from_peft("peft", base, hf, tokenizer, config), tokenizer)
    from_mlx(base, hf, tokenizer)
    small = work / "gpt2-model"
    torch.manual_seed(1)
    gpt2 = GPT2Config(vocab_size=len(tokenizer), n_positions=256, n_embd=64, n_layer=2, n_head=4, initializer_range=0.2)
    GPT2LMHeadModel(gpt2).save_pretrained(small)
    tokenizer.save_pretrained(small)
    run("import", small, "--run-dir", work / "gpt2-run", "--overwrite")
    config = LoraConfig(r=4, lora_alpha=16, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    imported = from_peft("gpt2", work / "gpt2-run", small, tokenizer, config)
    in_llama_cpp("gpt2", work / "gpt2-run", imported, tokenizer)
    if failures:
        sys.exit("failed: " + "; ".join(failures))


main()
