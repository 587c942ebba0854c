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
    """The loss of each token of each window."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    losses = []
    for inputs, targets in windows:
        logits = model(torch.tensor([inputs])).logits[0].double()
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="none").tolist())
    return losses, model.config.vocab_size


def of_llama_cpp(file, windows, vocab_size):
    """The same but for the last token of each: there is no place behind a full context."""

    def loss(theirs, tokens, target):
        try:
            return -theirs.log_probabilities(tokens, vocab_size)[target]
        except KeyError:
            return None  # it would end the text there, and says no probabilities

    with LlamaCpp(file, 512) as theirs:
        return [
            [loss(theirs, inputs[:n], targets[n - 1]) for n in range(1, len(inputs))] for inputs, targets in windows
        ]


def check(bars, work):
    kept = sorted((work / "pairs").glob("*/windows.json"), key=lambda path: int(path.parent.name))
    n_measured = 0
    for path in kept:
        run = json.loads(path.read_text())
        name, windows = run["name"], run["windows"]
        folder, file = path.parent / "out", path.parent / "out.gguf"

        def compare():
            losses, vocab_size = of_transformers(folder, windows)
            every = [loss for window in losses for loss in window]
            bars.at_most(f"{name}: |loss - transformers|", 1e-4, abs(float(np.mean(every)) - run["loss"]))
            if file.exists():
                theirs = of_llama_cpp(file, windows, vocab_size)
                both = [pair for windows in zip(losses, theirs) for pair in zip(*windows) if pair[1] is not None]
                expected, found = np.mean(both, axis=0)
                has_table = any(family in name for family in ("gemma", "gpt_neox")) or "family" not in name
                bars.at_most(f"{name}: |loss - llama.cpp|", OF_TABLE if has_table else 1e-4, abs(found - expected))

        if folder.exists():
            n_measured += 1
            bars.attempt(name, "measured", compare)
    bars.none("runs that other engines measure", 1, [] if n_measured else ["none was kept"])
