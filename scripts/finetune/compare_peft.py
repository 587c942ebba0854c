"""Computes every step of a run once more with PyTorch and PEFT, from the same adapters, on the same records, and compares the
loss, the gradient norm, and the gradient of every matrix; and the adapters at the end with those that PyTorch's AdamW makes.
PEFT computes in f32 and in f64: rounding moves gradients of a deep model by more than 1e-4, and a gradient of ours may be as
far from that of f64 as the one of PEFT's f32.

    compare_peft.py MODEL RUN RECORDS

MODEL is the base as a folder of transformers. RUN was trained from it with `finetune`, with as many rows in a batch as there
are training records, so that every step has all of them, without clipping and with a constant learning rate, and kept all its
checkpoints: with the second matrices at zero, the first step leaves the first matrices as they were, and what a step adds to
the first moments of AdamW is its gradient. One record is held out: the one without which the first loss is that of the run.
"""

import copy
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
    return by_module(load_file(folder / "model.safetensors"))


def by_module(tensors):
    found = {}
    for name, tensor in tensors.items():
        _, block, rest = name.split(".", 2)
        layer, _, idx, matrix = rest.rsplit(".", 3)
        module = f"model.layers.{block}.{MODULES[layer][int(idx)]}"
        found.setdefault(module, {})[matrix] = tensor.t().contiguous()
    return found


def moments(folder):
    """The first moments of AdamW, in the form of `adapters`."""
    shapes = {name: tensor.shape for name, tensor in load_file(folder / "model.safetensors").items()}
    state = load_file(folder / "optimizer.safetensors")
    return by_module({name: state[f"first_moment.{name}"].reshape(shape) for name, shape in shapes.items()})


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
        LoraConfig(
            r=finetune["rank"], lora_alpha=finetune["alpha"], target_modules=targets, use_rslora=finetune["use_rslora"],
            use_dora=finetune["method"] == "dora",
        ),
    )
    first = adapters(run / "checkpoints/step-000001")
    parameters = dict(model.named_parameters())
    names = {"a": "lora_A", "b": "lora_B", "magnitude": "lora_magnitude_vector"}
    name_of = lambda module, matrix: f"base_model.model.{module}.{names[matrix]}.default.weight"
    for module, matrices in first.items():
        parameters[name_of(module, "a")].data.copy_(matrices["a"])
    begun = {name: parameter.detach().clone() for name, parameter in parameters.items() if parameter.requires_grad}
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
        logits = model(input_ids=ids).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none").sum(1)
        counts = (labels[:, 1:] != -100).sum(1)
    without = (losses.sum() - losses) / (counts.sum() - counts)
    held = (without - steps[0]["train_loss"]).abs().argmin().item()
    kept = [row for row in range(len(rows)) if row != held]
    ids, labels = ids[kept], labels[kept]
    checkpoint = lambda step: run / f"checkpoints/step-{step:06d}"
    beta, before = config["optimizer"]["betas"][0], None
    exact = copy.deepcopy(model).double()
    exact_parameters = dict(exact.named_parameters())

    def gradients(model, parameters):
        """The loss, the gradient norm, and the gradient of each matrix, in f64."""
        model.zero_grad()
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))
        loss.backward()
        found = {name: p.grad.double() for name, p in parameters.items() if p.requires_grad}
        return loss.item(), torch.linalg.vector_norm(torch.stack([g.norm() for g in found.values()])).item(), found

    def away(one, other):
        """The largest relative difference of a gradient; one that should be zero must be."""
        return max(((one[name] - g).norm() / g.norm()).item() if g.norm() > 0 else float(one[name].norm() > 0) for name, g in other.items())

    worst = dict.fromkeys(["loss", "gradient norm", "gradient of a matrix", "the same of PEFT in f32"], 0.0)
    for line in steps:
        if line["step"] > 1:
            for module, matrices in adapters(checkpoint(line["step"] - 1)).items():
                for matrix, values in matrices.items():
                    parameters[name_of(module, matrix)].data.copy_(values)
        for name, parameter in parameters.items():
            if parameter.requires_grad:
                exact_parameters[name].data.copy_(parameter.data)
        _, _, theirs = gradients(model, parameters)
        loss, norm, wanted = gradients(exact, exact_parameters)
        now, ours = moments(checkpoint(line["step"])), {}
        for module, matrices in now.items():
            for matrix, moment in matrices.items():
                earlier = before[module][matrix].double() if before else 0.0
                name = name_of(module, matrix)
                ours[name] = ((moment.double() - beta * earlier) / (1.0 - beta)).reshape(wanted[name].shape)
        before = now
        optimizer.step()
        found = [abs(line["train_loss"] - loss) / loss, abs(line["gradient_norm"] - norm) / norm, away(ours, wanted), away(theirs, wanted)]
        worst = {what: max(a, b) for (what, a), b in zip(worst.items(), found)}
        print(f"step {line['step']}: loss {line['train_loss']:.6f} {loss:.6f}, gradient norm {line['gradient_norm']:.6f} {norm:.6f}, "
              f"gradients of {len(ours)} matrices: {found[2]:.1e}, PEFT in f32: {found[3]:.1e}", flush=True)
    last = adapters(checkpoint(steps[-1]["step"]))
    moved = distance = 0.0
    for module, matrices in last.items():
        for matrix, ours in matrices.items():
            theirs = parameters[name_of(module, matrix)].data
            moved += (theirs - begun[name_of(module, matrix)]).double().square().sum().item()
            distance += (theirs - ours.reshape(theirs.shape)).double().square().sum().item()
    end = (distance / moved) ** 0.5
    print("largest relative difference: " + ", ".join(f"{what} {a:.1e}" for what, a in worst.items())
          + f"; adapters, of the way they went: {end:.1e}")
    loss, norm, ours, theirs = worst.values()
    if max(loss, norm) > 1e-4 or ours > max(1e-4, theirs) or end > 1e-2:
        sys.exit("they differ")


if __name__ == "__main__":
    main()
