"""Compares the logits of a base with an exported adapter in PEFT, and of the merged export in transformers.

    compare_logits.py BASE ADAPTER MERGED
"""

import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base, adapter, merged = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(base)
text = tokenizer.apply_chat_template(
    [{"role": "user", "content": "Yoga with Maya at home, Sunday at 09:45."}], add_generation_prompt=True, tokenize=False
)
ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
load = lambda path: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
with torch.no_grad():
    plain = load(base)(input_ids=ids).logits
    beside = PeftModel.from_pretrained(load(base), adapter)(input_ids=ids).logits
    whole = load(merged)(input_ids=ids).logits
away = (beside - whole).abs().max().item()
print(f"largest difference of the logits: {away:.1e}; from the base: {(whole - plain).abs().max().item():.1e}")
if not away < 1e-4:
    sys.exit("they differ")
