#!/usr/bin/env python3
"""Published tokenizer.model files, as `tinderbox import` reads them, beside SentencePiece itself.

    python scripts/interop/tokenizer_model.py TINDERBOX TEXT TOKENIZER_MODEL...

Each file gets a random model of its vocabulary's size, is imported, and encodes and decodes every line of TEXT and some
hostile ones. Needs sentencepiece, tokenizers, safetensors and numpy. Exit code 1 if an id or a decoded text differs.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentencepiece
from safetensors.numpy import save_file
from tokenizers import Tokenizer

HOSTILE = [
    " ", "  two  spaces ", "\n", "a\n\n b", "\t\ttabs", "naïve café", "e\u0301 and é", "日本語のテキスト", "한국어", "🙂👩‍👩‍👧", "ﬁ ﬂ ①",
    "\u00a0nbsp\u2009thin", "\u200bzero\ufeff", "▁ ▁▁", "1234567 3.14", "ABC-DEF_ghi", "https://example.org/?q=a&b=c", "x" * 300,
]


def write_model(folder, file, n_tokens):
    """A Llama of one layer with this tokenizer."""
    width, hidden = 8, 16
    (folder / "tokenizer.model").write_bytes(Path(file).read_bytes())
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": n_tokens, "hidden_size": width,
        "intermediate_size": hidden, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True,
    }))
    layer, random = "model.layers.0.", np.random.default_rng(0)
    shapes = {
        "model.embed_tokens": (n_tokens, width), "model.norm": (width,), layer + "input_layernorm": (width,),
        layer + "post_attention_layernorm": (width,), layer + "mlp.gate_proj": (hidden, width),
        layer + "mlp.up_proj": (hidden, width), layer + "mlp.down_proj": (width, hidden),
    } | {f"{layer}self_attn.{name}_proj": (width, width) for name in "qkvo"}
    tensors = {f"{name}.weight": random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")


def compare(tinderbox, file, texts):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    with tempfile.TemporaryDirectory() as path:
        model, run = Path(path) / "model", Path(path) / "run"
        model.mkdir()
        write_model(model, file, theirs.vocab_size())
        subprocess.run([tinderbox, "import", model, "--run-dir", run], check=True, capture_output=True)
        ours = Tokenizer.from_file(str(run / "tokenizer.json"))
    n_ids = n_texts = 0
    for text in texts:
        want, got = theirs.encode(text), ours.encode(text, add_special_tokens=False).ids
        if n_ids < 5 and got != want:
            print(f"  {text!r}: {got} instead of {want}")
        n_ids += got != want
        n_texts += ours.decode(want) != theirs.decode(want)
    print(f"{file}: {theirs.vocab_size()} tokens, {len(texts)} texts: {n_ids} with other ids, {n_texts} decoded otherwise")
    return n_ids + n_texts == 0


def main():
    tinderbox, text, *files = sys.argv[1:]
    texts = Path(text).read_text(encoding="utf-8").splitlines() + HOSTILE
    sys.exit(0 if all([compare(tinderbox, file, texts) for file in files]) else 1)


if __name__ == "__main__":
    main()
