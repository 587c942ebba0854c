#!/usr/bin/env python3
"""Measures how fast Hugging Face transformers generates with a model of a config's shape: the other side of
`scripts/compare_pytorch.sh generate`.

A GPT-2 with random weights reads a random prompt and goes on greedily, with its cache, in f32 on the CPU, through
`generate`. Prints one JSON object on standard output. Needs `pip install torch transformers`.

    python scripts/transformers_generate.py configs/gpt2-124m.toml --vocab-size 50257
"""
import argparse
import json
import resource
import statistics
import time
import tomllib

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with open(args.config, "rb") as file:
        shape = tomllib.load(file)["model"]

    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=args.vocab_size, n_positions=shape["context_length"], n_embd=shape["d_model"],
        n_layer=shape["n_layers"], n_head=shape["n_heads"], n_inner=shape.get("d_ff"),
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )).eval()
    prompt = torch.randint(args.vocab_size, (args.batch_size, args.prompt_tokens))

    @torch.inference_mode()
    def seconds(new_tokens):
        began = time.perf_counter()
        out = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, use_cache=True,
            min_new_tokens=new_tokens, max_new_tokens=new_tokens,
        )
        elapsed = time.perf_counter() - began
        assert out.shape == (args.batch_size, args.prompt_tokens + new_tokens), out.shape
        return elapsed

    seconds(2)  # to warm up
    first, more = [], []
    for _ in range(args.rounds):
        first.append(seconds(1))
        more.append(seconds(1 + args.new_tokens))
    read, written = statistics.median(first), statistics.median(more) - statistics.median(first)
    print(json.dumps(dict(
        framework=f"torch {torch.__version__}", threads=torch.get_num_threads(),
        parameters=sum(p.numel() for p in model.parameters()),
        prompt_tokens_per_s=args.batch_size * args.prompt_tokens / read,
        tokens_per_s=args.batch_size * args.new_tokens / written,
        peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )))


if __name__ == "__main__":
    main()
