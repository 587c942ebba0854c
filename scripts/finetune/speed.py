"""Speed and memory of fine-tuning beside PyTorch with PEFT: LoRA of rank 16 in all linear layers, 4 rows of 256 tokens, all of
which count, in models with random weights of published shapes.

    speed.py TINDERBOX TOKENIZER WORK [SHAPE...]

TOKENIZER is a folder of transformers with the tokenizer of SmolLM2, such as an export of it. What is made stays in WORK. Ours
is what `tinderbox plan` measures of the fine-tuning. Two threads each; ROUNDS=2 rounds in turn.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SHAPES = {
    "smollm2-135m": ("llama", dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, vocab_size=49152)),
    "smollm2-360m": ("llama", dict(hidden_size=960, intermediate_size=2560, num_hidden_layers=32, num_attention_heads=15, num_key_value_heads=5, vocab_size=49152)),
    "qwen3-0.6b": ("qwen3", dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151936)),
}
ROWS, TOKENS, THREADS = 4, 256, 2


def make(shape, tokenizer, folder):
    """A model with random weights."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    family, sizes = SHAPES[shape]
    config_of, model_of = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}[family]
    torch.manual_seed(1)
    config = config_of(**sizes, tie_word_embeddings=True, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2)
    model_of(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def theirs(folder, dtype):
    """Measures PEFT, in a process of its own."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, weight_decay=0.0)
    ids = torch.randint(0, 49152, (ROWS, TOKENS + 1))
    times = []
    for _ in range(4):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        times.append(time.perf_counter() - began)
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) / 1024
    print(json.dumps({"tokens_per_s": ROWS * TOKENS / statistics.median(times[1:]), "mib": peak}))


def ours(tinderbox, run, work, base_weights, precision):
    config = work / f"{run.name}.toml"
    arguments = [tinderbox, "finetune", run, "--data", work / "texts.jsonl", "--print-config"]
    config.write_text(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    sets = [f"train.batch_size={ROWS}", "train.max_steps=8", f"finetune.max_tokens={TOKENS + 1}"]
    sets += [f'finetune.base_weights="{base_weights}"', f'train.matmul_precision="{precision}"', "train.eval_batches=1"]
    sets = [part for value in sets for part in ("--set", value)]
    arguments = [tinderbox, "plan", config, "--json", "--device", "flex", *sets]
    environment = os.environ | {"RAYON_NUM_THREADS": str(THREADS)}
    plan = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment).stdout)
    assert plan["largest_batch"] == ROWS * TOKENS, plan
    return {"tokens_per_s": plan["measured"]["tokens_per_s"], "mib": plan["measured"]["peak"] / 2**20}


def main():
    if sys.argv[1] == "--theirs":
        return theirs(*sys.argv[2:])
    tinderbox, tokenizer, work = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    work.mkdir(parents=True, exist_ok=True)
    text = " ".join(f"The {word} of the river {n} is deeper than the lake." for n in range(40) for word in ("bank", "bed", "mouth"))
    (work / "texts.jsonl").write_text("".join(json.dumps({"text": f"{n} {text}"}) + "\n" for n in range(60)))
    sides = [("f32", "f32", "f32"), ("base in bf16", "bf16", "f32"), ("base in int8", "int8", "f32")]
    if os.environ.get("BF16"):  # where the CPU multiplies in it
        sides += [("products in bf16", "f32", "bf16"), ("products in bf16, base in int8", "int8", "bf16")]
    for shape in sys.argv[4:] or SHAPES:
        hf, run = work / f"{shape}-hf", work / shape
        if not hf.is_dir():
            make(shape, tokenizer, hf)
        if not run.is_dir():
            subprocess.run([tinderbox, "import", hf, "--run-dir", run], check=True, capture_output=True)
        found = {}
        for _ in range(int(os.environ.get("ROUNDS", "2"))):
            for name, base_weights, precision in sides:
                found.setdefault(name, []).append(ours(tinderbox, run, work, base_weights, precision))
            for dtype in ("float32", "bfloat16")[: 2 if os.environ.get("BF16") else 1]:
                arguments = [sys.executable, __file__, "--theirs", hf, dtype]
                done = subprocess.run(arguments, check=True, capture_output=True, text=True)
                found.setdefault(f"PEFT, {dtype}", []).append(json.loads(done.stdout.splitlines()[-1]))
        base = found["PEFT, float32"]
        mean = lambda rounds, key: statistics.mean(each[key] for each in rounds)
        for name, rounds in found.items():
            speed, mib = mean(rounds, "tokens_per_s"), mean(rounds, "mib")
            each = ", ".join(f"{it['tokens_per_s']:.0f}" for it in rounds)
            print(f"{shape:14} {name:32} {speed:7.0f} tokens/s ({each}) {speed / mean(base, 'tokens_per_s'):5.2f}   "
                  f"{mib:6.0f} MiB {mib / mean(base, 'mib'):5.2f}   (PEFT in f32 = 1)", flush=True)


if __name__ == "__main__":
    main()
