"""Trains the adapters of a run once more with PyTorch and PEFT, from the same first matrices, on the same records in the
same order, and compares the loss and the gradient norm of every step, and the adapters at the end.

    compare_peft.py MODEL RUN RECORDS

MODEL is the base as a folder of transformers. RUN was trained from it with `finetune`, with as many rows in a batch as there
are training records, so that every step has all of them, without clipping and with a constant learning rate, and kept its
checkpoint after step 1: with the second matrices at zero, the first step leaves the first matrices as they were. One record
is held out: the one without which the first loss is that of the run.
"""

import json
import sys
import tomllib
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

MODULES = {
    "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attention.output": ["self_attn.o_proj"],
    "mlp.gate": ["mlp.gate_proj"],
    "mlp.expand": ["mlp.up_proj"],
    "mlp.contract": ["mlp.down_proj"],
}


def adapters(folder):
    """The matrices by PEFT's name of their layer, as it stores them: transposed."""
    found = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        _, block, rest = name.split(".", 2)
        layer, _, idx, matrix = rest.rsplit(".", 3)
        module = f"model.layers.{block}.{MODULES[layer][int(idx)]}"
        found.setdefault(module, {})[matrix] = tensor.T.contiguous()
    return found


def example(tokenizer, messages):
    """The ids of a conversation, and a label for each token of its answers."""
    ids, labels = [], []
    for n, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(messages[:n], add_generation_prompt=True, tokenize=False)
        after = tokenizer.apply_chat_template(messages[: n + 1], tokenize=False)
        assert after.startswith(before)
        before = tokenizer(before, add_special_tokens=False)["input_ids"]
        after = tokenizer(after, add_special_tokens=False)["input_ids"]
        assert after[: len(before)] == before
        stop = max(i for i, token in enumerate(after) if token in tokenizer.all_special_ids)
        labels += [-100] * (len(before) - len(labels)) + after[len(before) : stop + 1]
        labels += [-100] * (len(after) - len(labels))
        ids = after
    return ids, labels


def main():
    model_folder, run, records = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    config = tomllib.loads((run / "config.toml").read_text())
    finetune = config["finetune"]
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    targets = [module.rsplit(".", 1)[1] for modules in MODULES.values() for module in modules]
    model = get_peft_model(
        model,
        LoraConfig(r=finetune["rank"], lora_alpha=finetune["alpha"], target_modules=targets, use_rslora=finetune["use_rslora"]),
    )
    first = adapters(run / "checkpoints/step-000001")
    parameters = dict(model.named_parameters())
    name_of = lambda module, matrix: f"base_model.model.{module}.lora_{matrix.upper()}.default.weight"
    for module, matrices in first.items():
        parameters[name_of(module, "a")].data.copy_(matrices["a"])
    rows = [example(tokenizer, json.loads(line)["messages"]) for line in open(records)]
    longest = max(len(ids) for ids, _ in rows)
    pad = lambda row, value: row + [value] * (longest - len(row))
    ids = torch.tensor([pad(ids, 0) for ids, _ in rows])
    labels = torch.tensor([pad(labels, -100) for _, labels in rows])
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trained,
        lr=config["optimizer"]["learning_rate"],
        betas=tuple(config["optimizer"]["betas"]),
        eps=1e-8,
        weight_decay=0.0,
    )
    steps = [line for line in map(json.loads, open(run / "metrics.jsonl")) if "gradient_norm" in line]
    with torch.no_grad():
        logits = model(input_ids=ids).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none").sum(1)
        counts = (labels[:, 1:] != -100).sum(1)
    without = (losses.sum() - losses) / (counts.sum() - counts)
    held = (without - steps[0]["train_loss"]).abs().argmin().item()
    kept = [row for row in range(len(rows)) if row != held]
    ids, labels = ids[kept], labels[kept]
    worst = [0.0, 0.0]
    for line in steps:
        optimizer.zero_grad()
        logits = model(input_ids=ids).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))
        loss.backward()
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in trained]))
        optimizer.step()
        ours = (line["train_loss"], line["gradient_norm"])
        theirs = (loss.item(), norm.item())
        away = [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]
        worst = [max(a, b) for a, b in zip(worst, away)]
        print(f"step {line['step']}: loss {ours[0]:.6f} {theirs[0]:.6f}, gradient norm {ours[1]:.6f} {theirs[1]:.6f}")
    last = adapters(run / f"checkpoints/step-{steps[-1]['step']:06d}")
    moved = distance = 0.0
    for module, matrices in last.items():
        for matrix, ours in matrices.items():
            theirs = parameters[name_of(module, matrix)].data
            begun = first[module]["a"] if matrix == "a" else torch.zeros_like(ours)
            moved += (theirs - begun).double().square().sum().item()
            distance += (theirs - ours).double().square().sum().item()
    away = (distance / moved) ** 0.5
    print(f"largest relative difference: loss {worst[0]:.1e}, gradient norm {worst[1]:.1e}; adapters, of the way they went: {away:.1e}")
    if worst[0] > 1e-4 or worst[1] > 1e-3 or away > 1e-2:
        sys.exit("they differ")


main()
