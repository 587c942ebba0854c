"""Training steps of PyTorch's DistributedDataParallel on this machine's CPU, one thread for each process.

    python3 compare_ddp.py --processes 2 --steps 100 ../configs/shakespeare-nanogpt.toml

Trains a GPT of the config's shape (learned positions, layer norm, GELU, tied embeddings) on the characters of its text
with AdamW and gradient clipping. Each process has its share of the config's batch. Prints one JSON object with the
median time of a step after the first five, as `tinderbox train --json` has it.
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
from torch.nn.parallel import DistributedDataParallel

from torch_gpt import Gpt

WARM_UP = 5


def worker(rank, args, config):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    torch.manual_seed(config["train"].get("seed", 1337))
    with open(config["data"]["path"], encoding="utf-8") as file:
        text = file.read()
    ids = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([ids[character] for character in text])
    sizes = config["model"]
    model = Gpt(len(ids), *(sizes[key] for key in ("d_model", "n_layers", "n_heads", "context_length")), sizes.get("d_ff"))
    model = DistributedDataParallel(model)
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
