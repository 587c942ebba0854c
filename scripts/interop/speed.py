"""Speed and memory of import and export, and of writing against llama.cpp, on SmolLM2."""

import json
import statistics
from pathlib import Path

from common import THREADS, LlamaCpp, measured, tinderbox
from real_model import gguf_file, overwriting

ROUNDS = 5
N_PROMPT, N_WRITTEN = 128, 64
MIB = 1 << 20


def size(path):
    path = Path(path)
    return path.stat().st_size if path.is_file() else sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def conversions(bars, work, run):
    """MB/s of what is read or written, whichever is more, and memory above that of a command that opens no weights."""
    _, resident = measured("tokenizer", "info", run)
    largest = 49152 * 576 * 4
    folder, out = work / "smollm2-hf", work / "out"
    cases = [
        ("import GGUF Q4_1", "import", gguf_file(), ["--run-dir", work / "runs" / "speed", "--overwrite"]),
        ("import folder in bf16", "import", folder, ["--run-dir", work / "runs" / "speed", "--overwrite"]),
        *((f"export HF {dtype}", "export", run, ["--to", "hf", "--dtype", dtype, "--output", out / f"speed-{dtype}", "--overwrite"]) for dtype in ("f32", "bf16")),
        *((f"export GGUF {dtype}", "export", run, ["--to", "gguf", "--dtype", dtype, "--output", out / f"speed-{dtype}.gguf", "--overwrite"]) for dtype in ("f32", "bf16", "q8_0")),
    ]
    for name, command, source, arguments in cases:
        rounds = [measured(command, source, *arguments) for _ in range(3)]
        seconds, peak = statistics.median(round[0] for round in rounds), max(round[1] for round in rounds)
        moved = max(size(source if command == "import" else weights_of(run)), size(arguments[-2]))
        bars.at_least(f"{name}", 300, moved / 1e6 / seconds, " MB/s")
        bars.at_most(f"{name}: memory above the resident, in largest tensors", 1.3, (peak - resident) / largest)


def weights_of(run):
    return next((Path(run) / "checkpoints").glob("step-*/model.safetensors"))


def ours(run, weights, activations, prompt_tokens, new_tokens):
    case = json.loads(tinderbox(
        "bench", "generate", run, "--weights", weights, "--activations", activations, "--batch-size", 1, "--prompt-tokens", prompt_tokens,
        "--new-tokens", new_tokens, "--rounds", 1, "--device", "cpu", "--json",
    ))["cases"][0]
    return case["prompt_tokens_per_s"], case["tokens_per_s"]


def theirs(server, prompt_tokens, new_tokens):
    prompt = [(97 * at) % 40_000 + 100 for at in range(prompt_tokens)]
    timings = server.greedy(prompt, new_tokens)["timings"]
    return timings["prompt_per_second"], timings["predicted_per_second"]


def writing(bars, work, run):
    # llama.cpp rounds the activations too where weights are in q8_0.
    cases = [("f32", "exact", "f32", 1.0), ("bf16", "exact", "bf16", 1.0), ("int8", "exact", "q8_0", 1.2), ("int8", "int8", "q8_0", 1.2)]
    for weights, activations, dtype, required in cases:
        file = overwriting("export", run, "--to", "gguf", "--dtype", dtype, output=work / "out" / f"speed-{dtype}.gguf")
        with LlamaCpp(file) as server:
            theirs(server, N_PROMPT, 8)  # to warm up
            # In turn, so that both meet the same machine.
            rounds = [(ours(run, weights, activations, N_PROMPT, N_WRITTEN), theirs(server, N_PROMPT, N_WRITTEN)) for _ in range(ROUNDS)]
        for at, name, bar in [(1, "writing", required), (0, f"a prompt of {N_PROMPT}", 2.0)]:
            mine, other = (statistics.median(round[side][at] for round in rounds) for side in (0, 1))
            bars.at_least(f"{name}, {weights}, activations {activations}: {mine:.0f} against {other:.0f} tokens/s, {THREADS} threads", bar, mine / other, " times")


def check(bars, work, run):
    bars.attempt("import and export: speed", ">= 300 MB/s", conversions, bars, work, run)
    bars.attempt("writing against llama.cpp", "as fast", writing, bars, work, run)
