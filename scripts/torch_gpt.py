"""Training steps of a GPT in PyTorch on this machine's CPU, for scripts/compare_pytorch.sh, or with --device on its GPU.

    python3 torch_gpt.py --preset nano-cpu --corpus ../data/tinyshakespeare.txt --steps 40

Trains on the characters of the corpus with AdamW and gradient clipping, as Tinderbox's configs for tiny Shakespeare do:
learned positions, layer norms and linear layers without biases, GELU, tied embeddings, no dropout. Prints one JSON
object: the median time of a step, tokens per second in it, the time of all steps, the loss of the last and the peak
memory of the process. A step runs from drawing its batch to the updated weights; five more before the first do not
count, since they allocate memory and, with --compile, compile. On a GPU unwaited_ms is the time of a step if only the
last one is waited for: `loss.item()` in each step waits for it.
"""

import argparse
import contextlib
import json
import pathlib
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

WARM_UP = 5

# d_model, layers, heads, context, batch
PRESETS = {
    "nano-cpu": (128, 4, 4, 64, 12),
    "baby-gpu": (384, 6, 6, 256, 64),
    "gpt2-124m": (768, 12, 12, 1024, 1),
}


class Block(nn.Module):
    def __init__(self, d_model, n_heads, d_ff):
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm = nn.LayerNorm(d_model, bias=False)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.mlp_norm = nn.LayerNorm(d_model, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        q, k, v = (part.view(b, t, self.n_heads, -1).transpose(1, 2) for part in (q, k, v))  # [B, H, T, D]
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Gpt(nn.Module):
    def __init__(self, vocab_size, d_model, n_layers, n_heads, context, d_ff=None):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads, d_ff or 4 * d_model) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                to_residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * n_layers) ** 0.5 if to_residual else 0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(model, learning_rate):
    """AdamW without decay of vectors; in one operation where this CPU has it."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    try:
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.99), fused=True)
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.99))


def peak_rss_mib():
    """The peak memory of this process alone; getrusage on Linux includes that of the one that started it."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="nano-cpu")
    parser.add_argument("--corpus", required=True, metavar="FILE")
    parser.add_argument("--steps", type=int, default=40, metavar="N")
    parser.add_argument("--batch-size", type=int, metavar="N")
    parser.add_argument("--context", type=int, metavar="N")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for a GPU")
    args = parser.parse_args()

    d_model, n_layers, n_heads, context, batch_size = PRESETS[args.preset]
    context, batch_size = args.context or context, args.batch_size or batch_size
    torch.manual_seed(1337)
    text = pathlib.Path(args.corpus).read_text(encoding="utf-8")
    ids = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([ids[character] for character in text], device=args.device)[: int(0.9 * len(text))]
    window = torch.arange(context + 1, device=args.device)

    model = Gpt(len(ids), d_model, n_layers, n_heads, context).to(args.device)
    loss_of = torch.compile(model) if args.compile else model
    optimizer = adamw(model, learning_rate=1e-3)
    precision = torch.autocast(args.device, torch.bfloat16) if args.dtype == "bfloat16" else contextlib.nullcontext()

    def step():
        starts = torch.randint(len(tokens) - context, (batch_size, 1), device=args.device)
        rows = tokens[starts + window]  # [B, T + 1]
        with precision:
            loss = loss_of(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for _ in range(WARM_UP):
        step().item()
    times_ms = []
    for _ in range(args.steps):
        began = time.perf_counter()
        loss = step().item()
        times_ms.append(1e3 * (time.perf_counter() - began))
    median_ms = statistics.median(times_ms)
    unwaited_ms = None
    if args.device != "cpu":
        began = time.perf_counter()
        for _ in range(args.steps - 1):
            step()
        step().item()
        unwaited_ms = 1e3 * (time.perf_counter() - began) / args.steps
    report = {
        "preset": args.preset,
        "torch": torch.__version__,
        "dtype": args.dtype,
        "compiled": args.compile,
        "threads": torch.get_num_threads(),
        "steps": args.steps,
        "loss": loss,
        "median_step_ms": median_ms,
        "unwaited_ms": unwaited_ms,
        "tokens_per_s": batch_size * context * 1e3 / median_ms,
        "wall_s": sum(times_ms) / 1e3,
        "peak_rss_mib": peak_rss_mib(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
