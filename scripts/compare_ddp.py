"""Training steps of PyTorch's DistributedDataParallel on this machine's CPU, one thread for each process.

    python3 compare_ddp.py --processes 2 --steps 100 ../configs/shakespeare-nanogpt.toml

Trains a GPT of the config's shape (learned positions, layer norm, GELU, tied embeddings) on the characters of its text
with AdamW and gradient clipping. Each process has its share of the config's batch. Prints one JSON object with the median time
of a step after the first five, as `tinderbox train --json` has it.
"""

import argparse
import json
import os
import statistics
import time
import tomllib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 5


class Block(nn.Module):
    def __init__(self, width, n_heads, d_ff):
        super().__init__()
        self.n_heads = n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, d_ff, bias=False)
        self.down = nn.Linear(d_ff, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        heads = self.qkv(self.norms[0](x)).view(b, t, 3, self.n_heads, c // self.n_heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self, model, vocab_size):
        super().__init__()
        width = model["d_model"]
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(model["context_length"], width)
        d_ff = model.get("d_ff", 4 * width)
        self.blocks = nn.ModuleList(Block(width, model["n_heads"], d_ff) for _ in range(model["n_layers"]))
        self.norm = nn.LayerNorm(width, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def worker(rank, args, config):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    torch.manual_seed(config["train"].get("seed", 1337))
    with open(config["data"]["path"], encoding="utf-8") as file:
        text = file.read()
    ids = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([ids[character] for character in text])
    model = DistributedDataParallel(Gpt(config["model"], len(ids)))
    settings = config["optimizer"]
    optimizer = torch.optim.AdamW(
        model.parameters(), settings["learning_rate"], tuple(settings["betas"]), weight_decay=settings["weight_decay"]
    )
    batch_size, context = config["train"]["batch_size"], config["model"]["context_length"]
    n_rows = batch_size * (rank + 1) // args.processes - batch_size * rank // args.processes
    times = []
    for _ in range(args.steps):
        began = time.perf_counter()
        starts = torch.randint(len(tokens) - context, (n_rows,))
        rows = torch.stack([tokens[start : start + context + 1] for start in starts])
        loss = model(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings["grad_clip_norm"])
        optimizer.step()
        loss.item()
        times.append(1e3 * (time.perf_counter() - began))
    if rank == 0:
        print(json.dumps({"median_step_ms": statistics.median(times[WARM_UP:]), "loss": loss.item()}))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--port", type=int, default=29511)
    args = parser.parse_args()
    with open(args.config, "rb") as file:
        config = tomllib.load(file)
    mp.spawn(worker, (args, config), nprocs=args.processes)


if __name__ == "__main__":
    main()
