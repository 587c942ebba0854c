"""Trains the adapters of a run on preferences once more with PyTorch and PEFT, from the same first matrices, with the losses as
TRL has them, and compares the loss and the gradient norm of every step.

    compare_preferences.py MODEL RUN RECORDS

PyTorch computes in f64, since rounding in f32 moves losses of a model of 30 layers by more than is compared here.

MODEL is the base as a folder of transformers. RUN was trained from it with `finetune` on RECORDS, with as many pairs in a
batch as there are for training, without clipping and with a constant learning rate, and kept its checkpoint after step 1.
One pair is held out: the one without which the first step's loss and gradient norm are closest to the run's. (The first loss of
DPO is ln 2 whatever the pairs are.)

DPO: trl, DPOTrainer, `loss_type="sigmoid"`. ORPO: ORPOTrainer.odds_ratio_loss, beside the mean loss of the chosen answers; TRL
also counts the prompts in that, which is not done here.
"""

import json
import sys
import tomllib
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from compare_peft import MODULES, adapters, example


def padded(rows):
    longest = max(len(ids) for ids, _ in rows)
    pad = lambda row, value: row + [value] * (longest - len(row))
    return torch.tensor([pad(ids, 0) for ids, _ in rows]), torch.tensor([pad(labels, -100) for _, labels in rows])


def log_probabilities(model, ids, labels):
    """The sum over the tokens of each answer, and their number."""
    logits = model(input_ids=ids).logits[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")
    return -losses.sum(1), (labels[:, 1:] != -100).sum(1)


def losses(kind, beta, chosen, rejected, of_base):
    if kind == "dpo":
        logits = (chosen[0] - rejected[0]) - of_base
        return -F.logsigmoid(beta * logits)
    chosen, rejected = (sums / counts for sums, counts in (chosen, rejected))
    log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return -chosen - beta * F.logsigmoid(log_odds)


def main():
    model_folder, run, records = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    config = tomllib.loads((run / "config.toml").read_text())
    finetune = config["finetune"]
    kind, beta = finetune["preference"], finetune["beta"]
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float64)
    targets = [module.rsplit(".", 1)[1] for modules in MODULES.values() for module in modules]
    model = get_peft_model(model, LoraConfig(r=finetune["rank"], lora_alpha=finetune["alpha"], target_modules=targets))
    parameters = dict(model.named_parameters())
    for module, matrices in adapters(run / "checkpoints/step-000001").items():
        parameters[f"base_model.model.{module}.lora_A.default.weight"].data.copy_(matrices["a"])
    talk = lambda prompt, answer: [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    pairs = [json.loads(line) for line in open(records)]
    sides = [padded([example(tokenizer, talk(pair["prompt"], pair[side])) for pair in pairs]) for side in ("chosen", "rejected")]
    with torch.no_grad(), model.disable_adapter():
        sums = [log_probabilities(model, *side)[0] for side in sides]
        of_base = sums[0] - sums[1]
    steps = [line for line in map(json.loads, open(run / "metrics.jsonl")) if "gradient_norm" in line]
    trained = [p for p in model.parameters() if p.requires_grad]

    def measure(rows):
        """The loss and the gradient norm of these pairs, whose gradients it leaves."""
        model.zero_grad()
        loss = losses(kind, beta, *(log_probabilities(model, ids[rows], labels[rows]) for ids, labels in sides), of_base[rows]).mean()
        loss.backward()
        return loss.item(), torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in trained])).item()

    def away(line, found):
        return [abs(ours - theirs) / abs(theirs) for ours, theirs in zip((line["train_loss"], line["gradient_norm"]), found)]

    every = range(len(pairs))
    kept = min(([row for row in every if row != held] for held in every), key=lambda rows: sum(away(steps[0], measure(rows))))
    optimizer = torch.optim.AdamW(
        trained, lr=config["optimizer"]["learning_rate"], betas=tuple(config["optimizer"]["betas"]), eps=1e-8, weight_decay=0.0
    )
    worst = [0.0, 0.0]
    for line in steps:
        found = measure(kept)
        optimizer.step()
        worst = [max(a, b) for a, b in zip(worst, away(line, found))]
        print(f"step {line['step']}: loss {line['train_loss']:.6f} {found[0]:.6f}, gradient norm {line['gradient_norm']:.6f} {found[1]:.6f}")
    # The end of the log, of the pair that was held out; rewards are TRL's.
    *_, end = (line for line in map(json.loads, open(run / "metrics.jsonl")) if "val_margin" in line)
    held = [row for row in every if row not in kept]
    with torch.no_grad():
        chosen, rejected = (log_probabilities(model, ids[held], labels[held]) for ids, labels in sides)
        loss = losses(kind, beta, chosen, rejected, of_base[held]).item()
    means = [(sums / counts).item() for sums, counts in (chosen, rejected)]
    margin = beta * ((chosen[0] - rejected[0] - of_base[held]).item() if kind == "dpo" else means[0] - means[1])
    print(f"held out: loss {end['val_loss']:.6f} {loss:.6f}, margin {end['val_margin']:.6f} {margin:.6f}")
    if abs(end["val_loss"] - loss) > 1e-4 or abs(end["val_margin"] - margin) > 1e-3 or end["val_accuracy"] != (margin > 0):
        sys.exit("they differ on the pair that was held out")
    print(f"{kind}: largest relative difference: loss {worst[0]:.1e}, gradient norm {worst[1]:.1e}")
    if worst[0] > 1e-4 or worst[1] > 1e-3:
        sys.exit("they differ")


main()
