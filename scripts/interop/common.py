"""Parts of the comparisons with other engines: Tinderbox as a process, llama.cpp as a server, and the table of bars."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
BUILT = Path(os.environ.get("BUILT", ROOT / "target" / "release"))
TINDERBOX = os.environ.get("TINDERBOX", str(BUILT / "tinderbox"))
LOGITS = os.environ.get("LOGITS", str(BUILT / "examples" / "logits"))
THREADS = 2
# The environment of both sides: as many threads, and no progress bars.
ENVIRONMENT = {**os.environ, "RAYON_NUM_THREADS": str(THREADS), "NO_COLOR": "1"}


class Bars:
    """A requirement and its measurement."""

    def __init__(self):
        self.rows = []

    def add(self, name, required, measured, passed):
        self.rows.append((name, required, measured, passed))
        print(f"{'ok  ' if passed else 'FAIL'}  {name}: {measured} (required: {required})", file=sys.stderr, flush=True)

    def at_most(self, name, limit, measured):
        self.add(name, f"<= {limit:g}", f"{measured:.3g}", bool(measured <= limit))

    def at_least(self, name, limit, measured, unit=""):
        self.add(name, f">= {limit:g}{unit}", f"{measured:.3g}{unit}", bool(measured >= limit))

    def none(self, name, of, wrong):
        """`wrong` lists what is not as it should be, of `of`."""
        detail = f": {'; '.join(map(str, wrong[:3]))}" if wrong else ""
        self.add(name, f"{of} of {of}", f"{of - len(wrong)} of {of}{detail}", not wrong and of > 0)

    def attempt(self, name, required, part, *arguments):
        """Runs a part; one that breaks is a row that fails, and the others go on."""
        try:
            part(*arguments)
        except Exception as error:  # noqa: BLE001: whatever it was, it is reported
            self.add(name, required, f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"[:300], False)

    def print(self):
        rows = [("BAR", "REQUIRED", "MEASURED", ""), *((*row[:3], "pass" if row[3] else "FAIL") for row in self.rows)]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0])).rstrip())
        n_failed = sum(not row[3] for row in self.rows)
        print(f"\n{len(self.rows) - n_failed} of {len(self.rows)} bars pass")
        return n_failed == 0 and bool(self.rows)


class Failed(Exception):
    pass


def tinderbox(*arguments):
    """The program's output."""
    ran = subprocess.run([TINDERBOX, *map(str, arguments)], capture_output=True, env=ENVIRONMENT)
    if ran.returncode != 0:
        raise Failed(f"tinderbox {' '.join(map(str, arguments))}: {ran.stderr.decode(errors='replace')}")
    return ran.stdout


def measured(*arguments):
    """Seconds that the program takes, and the most memory of its own that it holds, in bytes."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen([TINDERBOX, *map(str, arguments)], stdout=said, stderr=said, env=ENVIRONMENT)
        peak = 0
        status = Path(f"/proc/{child.pid}/status")
        while child.poll() is None:
            try:
                # Not VmHWM: that counts the pages of a mapped file, which are the system's.
                lines = [line.split() for line in status.read_text().splitlines() if line.startswith("RssAnon")]
                peak = max([peak, *(int(line[1]) * 1024 for line in lines)])
            except OSError:
                break
            time.sleep(0.002)
        code = child.wait()
        seconds = time.perf_counter() - began
        if code != 0:
            said.seek(0)
            raise Failed(f"tinderbox {' '.join(map(str, arguments))}: {said.read().decode(errors='replace')}")
    return seconds, peak


def ids(run, text):
    """The tokens of a text by a run's tokenizer."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        return [int(token) for token in tinderbox("tokenizer", "encode", run, "--file", file.name, "--ids").split()]


def decoded(run, tokens):
    return tinderbox("tokenizer", "decode", run, *tokens)


class Logits:
    """`[T, V]` logits of a run for T tokens."""

    def __init__(self, run):
        self.child = subprocess.Popen([LOGITS, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT)

    def __call__(self, tokens):
        self.child.stdin.write(json.dumps(list(map(int, tokens))).encode() + b"\n")
        self.child.stdin.flush()
        size = self.child.stdout.readline().split()
        if not size:
            raise Failed("the logits example ended")
        t, v = map(int, size)
        return np.frombuffer(self.child.stdout.read(4 * t * v), "<f4").reshape(t, v)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.stdin.close()
        self.child.wait()


class LlamaCpp:
    """llama.cpp's server, in a process of its own, with a cache in f32 and without flash attention."""

    def __init__(self, path, n_ctx=1024, adapter=None):
        program = Path(__file__).with_name("llama_server.py")
        beside = ["1", str(adapter)] if adapter else []
        self.child = subprocess.Popen(
            [sys.executable, str(program), str(path), str(n_ctx), str(THREADS), *beside],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for line in self.child.stdout:
            if line.startswith("http"):
                self.address = line.strip()
                return
        raise Failed(f"llama.cpp does not open {Path(path).name}")

    def post(self, path, **body):
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def log_probabilities(self, tokens, vocab_size):
        """Of the next token, `[V]`."""
        answer = self.post(
            "/completion", prompt=tokens, n_predict=1, n_probs=vocab_size, cache_prompt=False, temperature=0
        )
        found = np.full(vocab_size, -np.inf)
        for each in answer["completion_probabilities"][0]["top_logprobs"]:
            found[each["id"]] = each["logprob"]
        return found

    def greedy(self, tokens, n):
        return self.post(
            "/completion", prompt=tokens, n_predict=n, cache_prompt=False, temperature=0, return_tokens=True, ignore_eos=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.stdin.close()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def log_softmax(logits):
    logits = logits.astype(np.float64)
    highest = logits.max(-1, keepdims=True)
    return logits - highest - np.log(np.exp(logits - highest).sum(-1, keepdims=True))


def difference(ours, theirs, tie=2e-3):
    """The largest difference, and the positions where the likeliest token differs though it is no near-tie."""
    top = np.sort(np.partition(theirs, -2, axis=-1)[..., -2:], axis=-1)
    is_clear = top[..., 1] - top[..., 0] > tie
    wrong = is_clear & (ours.argmax(-1) != theirs.argmax(-1))
    return float(np.abs(ours.astype(np.float64) - theirs).max()), int(wrong.sum())
