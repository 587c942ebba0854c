"""Adds up perf's samples by operation: the part of `profile_step.sh` that reads what `perf script` prints, of a run with one
step and of one with many more.

Each sample belongs to the operation of the outermost inlined function that lies in a module of the kernels, except that
the parts of a product (inner loops, epilogues, packing) are told apart within linear layers and feed-forward layers.
"""

import collections
import json
import re
import subprocess
import sys

SAMPLE = re.compile(r"^\s*(?P<period>\d+):?\s+(?P<ip>[0-9a-f]+)\s+(?P<symbol>.*?)\s+\((?P<dso>[^()]*)\)\s*$")
MAPPING = re.compile(r"PERF_RECORD_MMAP2? .*\[0x(?P<start>[0-9a-f]+)\(0x[0-9a-f]+\) @ (?:0x)?(?P<offset>[0-9a-f]+) .*r-xp (?P<file>.*)$")
SEGMENT = re.compile(r"LOAD\s+0x(?P<offset>[0-9a-f]+) 0x(?P<address>[0-9a-f]+) .* R E ")
# The innermost frame decides these, the outermost one the rest.
PARTS = {
    "gemm/micro_kernel.rs": "products: inner loops",
    "gemm/arithmetic.rs": "products: inner loops",
    "gemm/avx512_bf16.rs": "products: inner loops",
    "gemm/amx.rs": "products: inner loops",
    "gemm/epilogue.rs": "products: epilogues (bias, activation, storing)",
    "activation.rs": "products: epilogues (bias, activation, storing)",
    "elementary.rs": "products: epilogues (bias, activation, storing)",
    "gemm/macro_kernel.rs": "products: tiles and blocks",
    "gemm/pack.rs": "packing",
    "gemm/transpose.rs": "packing",
    "gemm/bf16.rs": "packing",
}
OPERATIONS = {
    "attention": "attention, with its products",
    "norm.rs": "norms",
    "loss": "loss, with its products",
    "optimizer.rs": "AdamW, clipping",
    "embedding.rs": "embedding",
    "newton_schulz.rs": "Muon",
    "dropout.rs": "dropout",
    "mix.rs": "other operations of the kernels",
}


def load_address(program, mapping):
    """How far the program's code lies behind the addresses of its file."""
    headers = subprocess.run(["readelf", "--program-headers", "--wide", program], capture_output=True, text=True, check=True)
    segment = SEGMENT.search(headers.stdout)
    in_file = int(segment["address"], 16) - int(segment["offset"], 16) + int(mapping["offset"], 16)
    return int(mapping["start"], 16) - in_file


def inlined(program, addresses):
    """For each address the source files of its inlined functions, innermost first."""
    text = "\n".join(f"0x{address}" for address in addresses)
    command = ["addr2line", "--addresses", "--inlines", "--exe", program]
    out = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    files, current = {}, None
    for line in out.splitlines():
        if line.startswith("0x"):
            current = files.setdefault(line[2:].lstrip("0"), [])
        else:
            current.append(line.rsplit(":", 1)[0])
    return files


def operation(symbol, dso, files):
    kernels = [file.split("crates/kernels/src/", 1)[1] for file in files if "crates/kernels/src/" in file]
    for file in reversed(kernels):
        if name := OPERATIONS.get(file) or OPERATIONS.get(file.split("/")[0]):
            return name
    for file in kernels:
        if name := PARTS.get(file):
            return name
    if kernels:
        return "other operations of the kernels"
    if "kernel.kallsyms" in dso or dso == "[unknown]":
        return "system: new pages, scheduling"
    if re.search(r"mem(cpy|move|set)", symbol):
        return "memcpy, memset"
    if re.search(r"rayon|crossbeam|sched_yield|futex", symbol):
        return "rayon: handing out work, waiting"
    if re.search(r"^_?mi_|mimalloc|malloc|free", symbol):
        return "allocator"
    if "burn" in symbol:
        return "burn: autodiff, tensors"
    return "the rest"


def times(program, path):
    """CPU time of each operation in ns, by the samples of one run."""
    samples, shift = collections.Counter(), 0
    for line in open(path, encoding="utf-8"):
        if (match := MAPPING.search(line)) and match["file"] == program:
            shift = load_address(program, match)
        elif match := SAMPLE.match(line):
            ip = int(match["ip"], 16) - (shift if match["dso"] == program else 0)
            samples[f"{ip:x}", match["symbol"], match["dso"]] += int(match["period"])
    files = inlined(program, [ip for ip, _, dso in samples if dso == program])
    time = collections.Counter()
    for (ip, symbol, dso), period in samples.items():
        time[operation(symbol, dso, files.get(ip, []) if dso == program else [])] += period
    return time


def main():
    program, name, steps, result, short, long = sys.argv[1:]
    steps, result = int(steps), json.loads(result)
    time = times(program, long)
    time.subtract(times(program, short))  # what comes before the steps
    total = sum(time.values())
    step = result.get("median_ms", result.get("median_step_ms"))
    print(f"\n{name}: {step:.1f} ms a step, {total / 1e6 / steps:.1f} ms of CPU time by the samples of {steps} steps")
    for what, period in time.most_common():
        print(f"{what:<52} {period / 1e6 / steps:8.2f} ms {100 * period / total:5.1f} %")


main()
