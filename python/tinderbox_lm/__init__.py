"""Reads runs of Tinderbox: weights as numpy arrays, the vocabulary as bytes, metrics as a pandas table.

    import tinderbox_lm
    run = tinderbox_lm.Run("runs/quickstart")          # or RUN/last, RUN/best, RUN/checkpoints/step-N
    run.weights()["blocks.0.attention.qkv.weight"]     # [d_model, queries then keys then values], in f32
    run.metrics().plot(y=["train_loss", "val_loss_estimate"])
    run.decode([17, 4])

To encode text, open `run.path / "tokenizer.json"` with the package `tokenizers`, which gives the program's ids.
It needs numpy and pandas: `pip install tinderbox-lm[reader]`.
"""

import json
import pathlib
import struct

import numpy
import pandas

__all__ = ["Run"]


class Run:
    """A run directory and one of its checkpoints: the best one, unless the path names another."""

    def __init__(self, path):
        path = pathlib.Path(path)
        name = "best"
        if path.parent.name == "checkpoints":
            path, name = path.parent.parent, path.name
        elif path.name in ("best", "last") and not path.is_dir():
            path, name = path.parent, path.name
        if name in ("best", "last"):
            name = (path / name).read_text(encoding="utf-8").strip()
        self.path, self.checkpoint = path, path / "checkpoints" / name

    def weights(self):
        """The weights of the checkpoint by their names; bf16 and f16 are widened to f32. Matrices are [in, out]."""
        data = (self.checkpoint / "model.safetensors").read_bytes()
        (n,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + n])
        header.pop("__metadata__", None)
        return {name: _array(data[8 + n :], tensor) for name, tensor in header.items()}

    def metrics(self):
        """Losses, learning rate, speed and times by step: metrics.jsonl and timings.jsonl, nested keys with dots."""
        steps = {}
        for name in ("metrics.jsonl", "timings.jsonl"):
            path = self.path / name
            for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
                record = json.loads(line)
                steps.setdefault(record["step"], {}).update(record)
        rows = pandas.json_normalize([steps[step] for step in sorted(steps)])
        return rows.set_index("step")

    def vocabulary(self):
        """The bytes of each token id; a text that stands for a token, such as <|endoftext|>, as it is written."""
        tokenizer = json.loads((self.path / "tokenizer.json").read_text(encoding="utf-8"))
        is_bytes = "ByteLevel" in json.dumps([tokenizer.get("pre_tokenizer"), tokenizer.get("decoder")])
        of_character = _byte_of_character() if is_bytes else None
        tokens = {i: _bytes(text, of_character) for text, i in tokenizer["model"]["vocab"].items()}
        tokens |= {token["id"]: token["content"].encode() for token in tokenizer.get("added_tokens", [])}
        return [tokens.get(i, b"") for i in range(max(tokens) + 1)]

    def decode(self, ids):
        """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
        vocabulary = self.vocabulary()
        return b"".join(vocabulary[i] for i in ids).decode(errors="replace")


def _array(data, tensor):
    begin, end = tensor["data_offsets"]
    if tensor["dtype"] == "BF16":  # the upper half of an f32
        upper = numpy.frombuffer(data[begin:end], "<u2").astype(numpy.uint32)
        return (upper << 16).view(numpy.float32).reshape(tensor["shape"])
    array = numpy.frombuffer(data[begin:end], {"F32": "<f4", "F16": "<f2"}[tensor["dtype"]])
    return array.astype(numpy.float32).reshape(tensor["shape"])


def _byte_of_character():
    """The byte that each character of a byte-level BPE stands for.

    Source: GPT-2's encoder.py, bytes_to_unicode.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _bytes(text, of_character):
    if of_character is None or not all(character in of_character for character in text):
        return text.encode()
    return bytes(of_character[character] for character in text)
