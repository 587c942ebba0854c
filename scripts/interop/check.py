#!/usr/bin/env python3
"""Runs the comparisons with other engines, and prints one table. See `scripts/check_interop.sh`."""

import sys

sys.dont_write_bytecode = True

from pathlib import Path

import torch
import transformers

import any_runs
import engines
import own_runs
import quantized
import real_model
import speed
from common import THREADS, Bars

PARTS = ("model", "quantized", "runs", "pairs", "engines", "speed")


def main():
    work, parts = Path(sys.argv[1]).resolve(), sys.argv[2:] or PARTS
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        sys.exit(f"there is no part `{unknown[0]}`\n  hint: {', '.join(PARTS)}")
    torch.set_num_threads(THREADS)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    (work / "runs").mkdir(parents=True, exist_ok=True)
    bars = Bars()
    run = work / "runs" / "smollm2-gguf"
    if "model" in parts or not (run / "best").exists() and set(parts) & {"engines", "speed"}:
        bars.attempt("SmolLM2", "opened", real_model.check, bars, work)
    if "quantized" in parts:
        bars.attempt("quantised GGUF files", "as gguf-py and llama.cpp", quantized.check, bars, work)
    if "runs" in parts:
        own_runs.check(bars, work)
    if "pairs" in parts:
        any_runs.check(bars, work)
    if "engines" in parts:
        bars.attempt("other readers of GGUF", "read", engines.check, bars, work, run)
    if "speed" in parts:
        speed.check(bars, work, run)
    sys.exit(0 if bars.print() else 1)


if __name__ == "__main__":
    main()
