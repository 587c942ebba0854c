"""SmolLM2-135M-Instruct in every quantised type of GGUF, as ggml quantises it: tensors as gguf-py decodes them, and the
next token as llama.cpp predicts it."""

import ctypes
from pathlib import Path

import numpy as np
import xllamacpp
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from safetensors import safe_open

from common import LlamaCpp, Logits, ids, log_softmax
from real_model import gguf_file, overwriting

# As llama-quantize replaces types whose blocks do not divide a row: most rows of this model have 576 numbers.
FALLBACK = {
    Type.Q2_K: Type.IQ4_NL, Type.Q3_K: Type.IQ4_NL, Type.Q4_K: Type.Q5_0, Type.Q5_K: Type.Q5_1, Type.Q6_K: Type.Q8_0,
    Type.IQ4_XS: Type.IQ4_NL,
}
TYPES = [
    Type.Q8_0, Type.Q6_K, Type.Q5_K, Type.Q5_1, Type.Q5_0, Type.Q4_K, Type.Q4_1, Type.Q4_0, Type.IQ4_XS, Type.IQ4_NL,
    Type.MXFP4, Type.Q3_K, Type.Q2_K,
]
# llama.cpp rounds what it multiplies quantised weights with to 8 bits: how much less likely its likeliest token may be.
TIE = 0.2
PROMPTS = [
    "The capital of France is", "Once upon a time, there was a little", "def fibonacci(n):\n    if n", "2 + 2 =",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
]


def ggml():
    """ggml's own quantisation, which gguf-py does not have for every type."""
    library = ctypes.CDLL(next(str(path) for path in Path(xllamacpp.__file__).parent.glob("*.so")))
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    return quantize


def requantized(source, kind, output):
    """The model of `source`, with its matrices in `kind`, or what replaces it; the number of matrices in each type."""
    quantize, reader = ggml(), GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    writer = GGUFWriter(output, architecture)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            is_array = field.types[0] == GGUFValueType.ARRAY
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if is_array else None)
    counts = {}
    for tensor in reader.tensors:
        numbers = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if numbers.ndim == 1:
            writer.add_tensor(tensor.name, numbers)
            continue
        row = numbers.shape[1]
        kind_here = kind if row % GGML_QUANT_SIZES[kind][0] == 0 else FALLBACK[kind]
        n_numbers, n_bytes = GGML_QUANT_SIZES[kind_here]
        encoded = np.zeros((numbers.shape[0], row // n_numbers * n_bytes), dtype=np.uint8)
        written = quantize(int(kind_here), numbers.ctypes.data, encoded.ctypes.data, 0, *numbers.shape, None)
        assert written == encoded.nbytes, f"{kind_here}: {written} bytes"
        writer.add_tensor(tensor.name, encoded, raw_dtype=kind_here)
        counts[kind_here.name] = counts.get(kind_here.name, 0) + 1
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return counts


NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def unequal(file, folder):
    """The tensors of the file that are not, to the bit, those of the folder."""
    with safe_open(folder / "model.safetensors", "np") as ours:
        wrong = []
        for tensor in GGUFReader(file).tensors:
            expected = dequantize(tensor.data, tensor.tensor_type)
            block, layer = tensor.name.split(".")[:-1][-1], tensor.name.split(".")[1]
            name = f"model.layers.{layer}.{NAMES[block]}" if tensor.name.startswith("blk.") else NAMES[block]
            found = ours.get_tensor(f"{name}.weight")
            if block in ("attn_q", "attn_k"):  # neighbouring dimensions there, halves here
                expected = expected.reshape(-1, 32, 2, expected.shape[1]).swapaxes(1, 2).reshape(expected.shape)
            if not np.array_equal(found.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32)):
                wrong.append(tensor.name)
        return wrong


def check(bars, work):
    (work / "out").mkdir(exist_ok=True)
    for kind in TYPES:
        file = work / "out" / f"smollm2-{kind.name}.gguf"
        counts = requantized(gguf_file(), kind, file)
        title = f"GGUF {kind.name} ({', '.join(f'{n} x {name}' for name, n in sorted(counts.items()))})"
        run = overwriting("import", file, output=work / "runs" / "quantized")
        folder = overwriting("export", run, "--to", "hf", "--dtype", "f32", output=work / "out" / "quantized-hf")
        bars.none(f"{title}: tensors as gguf-py's", len(GGUFReader(file).tensors), unequal(file, folder))
        with Logits(run) as ours, LlamaCpp(file) as theirs:
            divergences, wrong = [], []
            for prompt in PROMPTS:
                tokens = ids(run, prompt)
                mine = log_softmax(ours(tokens)[-1])
                other = theirs.log_probabilities(tokens, len(mine))
                is_there = np.isfinite(other)
                divergences.append(float((np.exp(mine) * (mine - other))[is_there].sum()))
                if mine.max() - mine[other.argmax()] > TIE:
                    wrong.append(repr(prompt))
        most = 0.1 if kind == Type.Q2_K else 0.02
        bars.at_most(f"{title}: KL from llama.cpp, mean of {len(PROMPTS)} prompts", most, float(np.mean(divergences)))
        bars.none(f"{title}: likeliest next token as llama.cpp's, but at near-ties", len(PROMPTS), wrong)
        file.unlink()
