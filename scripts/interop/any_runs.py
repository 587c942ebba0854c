"""Runs with every pair of options, kept by `tests/it/pairs.rs`: their loss by transformers and llama.cpp is that of `eval`."""

import json

import numpy as np
import torch
import transformers

from common import LlamaCpp

# llama.cpp computes GELU by a table of numbers in f16.
OF_TABLE = 5e-3


@torch.inference_mode()
def of_transformers(folder, windows):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    losses = []
    for inputs, targets in windows:
        logits = model(torch.tensor([inputs])).logits[0].double()
        losses += torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="none").tolist()
    return float(np.mean(losses))


def of_llama_cpp(file, windows, vocab_size):
    losses = []
    with LlamaCpp(file, 512) as theirs:
        for inputs, targets in windows:
            for n, target in enumerate(targets, 1):
                losses.append(-theirs.log_probabilities(inputs[:n], vocab_size)[target])
    return float(np.mean(losses))


def check(bars, work):
    kept = sorted((work / "pairs").glob("*/windows.json"), key=lambda path: int(path.parent.name))
    n_hf, n_gguf = 0, 0
    for path in kept:
        run = json.loads(path.read_text())
        name, own, windows = run["name"], run["loss"], run["windows"]
        folder, file = path.parent / "out", path.parent / "out.gguf"

        def compare():
            nonlocal n_hf, n_gguf
            if folder.exists():
                n_hf += 1
                bars.at_most(f"{name}: |loss - transformers|", 1e-4, abs(of_transformers(folder, windows) - own))
            if file.exists():
                n_gguf += 1
                is_of_table = any(family in name for family in ("gemma", "gpt_neox")) or "family" not in name
                vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
                found = of_llama_cpp(file, windows, vocab_size)
                bars.at_most(f"{name}: |loss - llama.cpp|", OF_TABLE if is_of_table else 1e-4, abs(found - own))

        bars.attempt(name, "measured", compare)
    bars.none("runs that other engines measure", 1, [] if n_hf and n_gguf else ["none was kept"])
