#!/usr/bin/env python3
"""Compares a run as python/tinderbox_lm reads it with the program's output.

    scripts/check_reader.py PROGRAM RUN        needs numpy, pandas and safetensors

Tokens: those of a text. Metrics: every number of `tinderbox metrics --json`. Weights: those that
`tinderbox export --to hf` writes, which transposes matrices and cuts the projection of queries, keys and values.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
from safetensors.numpy import load_file

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
import tinderbox_lm

TEXT = 'Pip laughed. "Café, naïve ↵ 東京!"\n\nThe bank of the river'


def main(program, path):
    def ask(*arguments):
        return subprocess.run([program, *arguments], stdout=subprocess.PIPE, check=True).stdout

    run = tinderbox_lm.Run(path)

    ids = json.loads(ask("tokenizer", "encode", path, "--json", "--", TEXT))["ids"]
    assert run.decode(ids) == TEXT, run.decode(ids)
    print(f"{len(ids)} tokens decode to the text")

    metrics, compared = run.metrics(), 0
    for row in json.loads(ask("metrics", path, "--json")):
        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool):
                assert metrics.loc[row["step"], name] == value, (row["step"], name)
                compared += 1
    assert compared > 0
    print(f"{compared} numbers of {len(metrics)} steps are the same")

    with tempfile.TemporaryDirectory() as folder:
        ask("export", path, "--to", "hf", "--output", f"{folder}/hf")
        exported = load_file(f"{folder}/hf/model.safetensors")
    weights = run.weights()
    assert numpy.array_equal(weights["token_embedding.weight"], exported["model.embed_tokens.weight"])
    for layer in range(sum(name.endswith("attention.qkv.weight") for name in weights)):
        ours, theirs = f"blocks.{layer}.attention", f"model.layers.{layer}.self_attn"
        assert numpy.array_equal(weights[f"{ours}.output.weight"], exported[f"{theirs}.o_proj.weight"].T)
        qkv = numpy.concatenate([exported[f"{theirs}.{part}_proj.weight"].T for part in "qkv"], axis=1)
        assert numpy.array_equal(weights[f"{ours}.qkv.weight"], qkv), layer
    exported.pop("lm_head.weight", None)  # tied
    values = [numpy.sort(numpy.concatenate([t.ravel() for t in each.values()])) for each in (weights, exported)]
    assert numpy.array_equal(*values)
    print(f"{len(weights)} tensors of {values[0].size} weights are those of the export")


if len(sys.argv) != 3:
    sys.exit(__doc__)
main(*sys.argv[1:])
