"""Whether a GGUF file that Tinderbox wrote opens in gguf-py and in mistral.rs, if that is installed."""

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import safe_open

from common import tinderbox
from real_model import overwriting


def gguf_py(bars, name, file, expected):
    """Every tensor is there, and its numbers are those of the folder that was exported beside it."""
    reader = GGUFReader(file)
    wrong = []
    shown = {tensor.name: tensor for tensor in reader.tensors}
    embedding = shown.get("token_embd.weight")
    if embedding is None:
        wrong.append("no token_embd.weight")
    elif not np.array_equal(dequantize(embedding.data, embedding.tensor_type), expected):
        wrong.append("token_embd.weight differs")
    wrong += [name for name, tensor in shown.items() if not np.isfinite(dequantize(tensor.data, tensor.tensor_type)).all()]
    bars.none(f"{name}: gguf-py reads {len(shown)} tensors", max(len(shown), 1), wrong)


def mistral_rs(bars, name, file):
    try:
        from mistralrs import CompletionRequest, Runner, Which
    except ImportError:
        bars.add(f"{name}: mistral.rs", "writes", "not installed: not checked", True)
        return
    runner = Runner(which=Which.GGUF(tok_model_id=None, quantized_model_id=str(file.parent), quantized_filename=file.name))
    answer = runner.send_completion_request(
        CompletionRequest(model="default", prompt="Once upon a time", max_tokens=16, temperature=0.0)
    )
    text = answer.choices[0].text
    bars.add(f"{name}: mistral.rs", "writes", repr(text[:40]), bool(text.strip()))


def check(bars, work, run):
    """`run` is an imported SmolLM2."""
    out = work / "out"
    folder = overwriting("export", run, "--to", "hf", "--dtype", "f32", output=out / "engines-hf")
    path = next(path for path in sorted(folder.glob("*.safetensors")))
    with safe_open(path, "np") as tensors:
        expected = tensors.get_tensor("model.embed_tokens.weight")
    for dtype in ("f32", "f16", "bf16", "q8_0"):
        file = overwriting("export", run, "--to", "gguf", "--dtype", dtype, output=out / f"engines-{dtype}.gguf")
        rounded = {"f32": expected, "f16": expected.astype(np.float16).astype(np.float32)}.get(dtype)
        if dtype == "bf16":
            rounded = torch.from_numpy(expected.copy()).bfloat16().float().numpy()
        if rounded is None:  # gguf-py's own rounding is the reference
            from gguf import GGMLQuantizationType
            from gguf.quants import quantize

            rounded = dequantize(quantize(expected, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
        bars.attempt(f"GGUF {dtype}: gguf-py", "reads", gguf_py, bars, f"GGUF {dtype}", file, rounded)
        if dtype in ("f32", "q8_0"):
            bars.attempt(f"GGUF {dtype}: mistral.rs", "writes", mistral_rs, bars, f"GGUF {dtype}", file)
