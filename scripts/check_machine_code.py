#!/usr/bin/env python3
"""Checks the machine code of the matrix products' inner loops: fails if one calls a function or spills its sums.

    cargo build --release -p tinderbox-kernels -p tinderbox
    scripts/check_machine_code.py [target/release/libtinderbox_kernels.rlib]

For x86-64; needs `objdump` (binutils). An inner loop of a product is found by what it does: it has no loop inside, it
multiplies and adds vectors, and it broadcasts numbers of the left matrix from memory. It may not call anything, nor
store vectors to the stack more often than once for every eight multiply-adds: a sum that lives on the stack is stored
once for each. Each instruction set must have such loops, so that the check does not pass because it finds none. The
scalar level is left out: it is there to compare with, not to be fast.
"""

import collections
import pathlib
import re
import subprocess
import sys

MULTIPLY_ADD = re.compile(r"v(fmadd\d+ps|dpbf16ps|pdpbusd|pmaddwd)\b")
BROADCAST = re.compile(r"v(broadcastss|pbroadcastd) -?\w*\((?!%rip|%rsp)|-?\w*\((?!%rip|%rsp)[^)]*\)\{1to\d+\}")
SPILL = re.compile(r"^vmov\w+ +%[xyz]mm\d+,-?\w*\(%rsp")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(.*?)\s*$")
JUMP = re.compile(r"^j\w+\s+([0-9a-f]+) ")
SETS = ("AVX2", "AVX-512", "AVX512-BF16", "VNNI")


def functions(lines):
    name, body = None, []
    for line in lines:
        if line.endswith(">:\n"):
            if body:
                yield name, body
            name, body = line.split("<", 1)[1][:-3], []
        elif match := INSTRUCTION.match(line):
            body.append((int(match[1], 16), match[2]))
    if body:
        yield name, body


def inner_loops(body):
    """The instructions from the target of a jump backwards to the jump, where there is no such jump in between."""
    index = {address: i for i, (address, _) in enumerate(body)}
    runs = []
    for i, (_, text) in enumerate(body):
        match = JUMP.match(text)
        start = match and index.get(int(match[1], 16))
        if start is not None and start <= i:
            runs.append((start, i))
    for start, end in runs:
        if not any((s, e) != (start, end) and start <= s and e <= end for s, e in runs):
            yield [text for _, text in body[start : end + 1]]


def instruction_set(multiply_add):
    if "pdpbusd" in multiply_add:
        return "VNNI"
    if "dpbf16" in multiply_add:
        return "AVX512-BF16"
    return "AVX-512" if "%zmm" in multiply_add else "AVX2" if "%ymm" in multiply_add else None


def main():
    rlib = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/release/libtinderbox_kernels.rlib")
    if not rlib.exists():
        sys.exit(f"check_machine_code.py: there is no `{rlib}`\n  hint: see the head of this file, or name the file")
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(rlib)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        found, faults = collections.Counter(), []
        for name, body in functions(process.stdout):
            if name.endswith("simd::fused"):
                continue
            for loop in inner_loops(body):
                multiply_adds = [text for text in loop if MULTIPLY_ADD.search(text)]
                if len(multiply_adds) < 4 or not any(BROADCAST.search(text) for text in loop):
                    continue
                kind = instruction_set(multiply_adds[0])
                if kind is None:
                    continue
                found[kind] += 1
                calls = [text for text in loop if text.startswith("call")]
                spills = [text for text in loop if SPILL.search(text)]
                if calls or 8 * len(spills) > len(multiply_adds):
                    what = f"{len(multiply_adds)} multiply-adds, {len(calls)} calls, {len(spills)} spills"
                    faults.append(f"{kind}: {what} in {name}: {(calls + spills)[0]}")
    print(", ".join(f"{found[kind]} loops of {kind}" for kind in SETS))
    for fault in faults:
        print(fault)
    if faults or not all(found[kind] for kind in SETS):
        sys.exit("check_machine_code.py: an inner loop of a product is not as it should be, or was not found")


main()
