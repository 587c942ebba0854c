#!/usr/bin/env python3
"""tokenizer.model files of every kind, trained here, as `tinderbox import` reads them, beside SentencePiece itself.

    python scripts/interop/trained_tokenizers.py TINDERBOX

Methods, normalizers, a space before a text, extra spaces removed or not, bytes for unknown characters, and tokens of the
user: newlines, letters, names, runs of spaces. Each encodes lines of the bundled stories, texts that are easy to get
wrong, and random ones of such parts. Needs sentencepiece, tokenizers, safetensors and numpy. Exit code 1 if an id
differs; a model may be refused if the error names the option.
"""

import io
import itertools
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import sentencepiece
from tokenizer_model import write_model
from tokenizers import Tokenizer

STORIES = (Path(__file__).resolve().parents[2] / "data" / "stories.txt").read_text(encoding="utf-8")
SYMBOLS = [
    [], ["\n"], ["\n", "\n\n"], ["a", "Q"], ["<x>"], ["▁▁", "▁▁▁▁"], ["\n", "<x>", "e", "①"], ["\n", "▁▁", "<|x.*|>"],
    ["  "],
]
TEXTS = [
    "", " ", "   ", "\n", " \n ", "\n\n\n", "a", "<x>", " <x>", "<x> <x>", "a\nb", "one <x> two<x>three", "▁", "▁▁▁", "a▁b",
    "line\n\n\nline  \n  x", "  lead  trail  ", "①②", "QaQ a Q", "  a  ", "\r\n", "a\r\nb\n", "e\u0301 é ﬁ", "<", "x>", "日本 a",
    "1234 5", "\n①\n", "\ta\t", "   \n   ", "<|x.*|> <|xy|>",
]
PARTS = ["\n", " ", "  ", "<x>", "a", "e", "Q", "▁", "▁▁", "①", "the", " was", "\t", "é", "e\u0301", "ABC", "日", "<", "1", "\r", "."]


def texts():
    chance = random.Random(0)
    lines = [line for line in STORIES[120_000:240_000].splitlines() if line][:60]
    return lines + TEXTS + ["".join(chance.choices(PARTS, k=chance.randint(1, 10))) for _ in range(300)]


def train(lines, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=700, hard_vocab_limit=False, num_threads=1,
        self_test_sample_size=0, minloglevel=2, **options,
    )
    return model.getvalue()


def compare(tinderbox, proto, texts):
    """The texts with other ids; the error if the model is refused."""
    theirs = sentencepiece.SentencePieceProcessor(model_proto=proto)
    with tempfile.TemporaryDirectory() as path:
        file, model, run = (Path(path) / name for name in ("file.model", "model", "run"))
        file.write_bytes(proto)
        model.mkdir()
        write_model(model, file, theirs.vocab_size())
        ran = subprocess.run([tinderbox, "import", model, "--run-dir", run], capture_output=True, text=True)
        if ran.returncode:
            return None, ran.stderr
        ours = Tokenizer.from_file(str(run / "tokenizer.json"))
    return [text for text in texts if ours.encode(text, add_special_tokens=False).ids != theirs.encode(text)], ""


def main():
    tinderbox, lines, all_texts = sys.argv[1], STORIES[:120_000].splitlines(), texts()
    counts = dict.fromkeys(["models", "refused", "texts", "other ids"], 0)
    is_good = True
    choices = itertools.product(
        ["unigram", "bpe"], ["nmt_nfkc", "identity", "nfkc_cf"], [True, False], [True, False], [True, False], SYMBOLS,
    )
    for method, rule, prefix, trims, has_bytes, symbols in choices:
        options = {
            "model_type": method, "normalization_rule_name": rule, "add_dummy_prefix": prefix,
            "remove_extra_whitespaces": trims, "byte_fallback": has_bytes, "split_digits": has_bytes,
            "user_defined_symbols": symbols,
        }
        others, error = compare(tinderbox, train(lines, **options), all_texts)
        counts["models"] += 1
        if others is None:
            counts["refused"] += 1
            is_good &= "user_defined_symbols" in error
        else:
            counts["texts"] += len(all_texts)
            counts["other ids"] += len(others)
            is_good &= not others
        if others or error and "user_defined_symbols" not in error:
            print(options, others, error)
    print(", ".join(f"{n} {name}" for name, n in counts.items()))
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
