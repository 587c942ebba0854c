"""Adapters of every kind that PEFT makes, used here: the logits are PEFT's, or the adapters are refused by the name of
what is not supported.

    compare_kinds.py TINDERBOX WORK

The bases are small random models of three families: Llama, GPT-2 (Conv1D) and Phi-3 (fused projections). Each adapter is
moved away from its start by noise, as training would, saved, and loaded by PEFT on the base as it is on disk. Merged here,
it gives PEFT's logits; imported here and exported again, it gives them in PEFT on the same base. Some go through a GGUF
file of adapters, too.
"""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

warnings.simplefilter("ignore")
disable_progress_bar()
TINDERBOX, WORK = sys.argv[1], Path(sys.argv[2])
LIMIT = 1e-4
N = 256
TOKENS = torch.randint(0, N, (2, 24), generator=torch.Generator().manual_seed(9))
COMMON = {"vocab_size": N, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None, "initializer_range": 0.15}
LLAMA = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}
BASES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, **LLAMA)),
    "llama-bias": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, **LLAMA, attention_bias=True, mlp_bias=True)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**COMMON, n_embd=48, n_layer=2, n_head=4, n_positions=64)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**COMMON, **LLAMA)),
}
ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
FUSED, GPT2 = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], ["c_attn", "c_proj", "c_fc"]
ALL = {"target_modules": ATTENTION + MLP}
# The kind, its base, the settings that differ from r = 4 and lora_alpha = 12, and what a refusal names.
KINDS = [
    ("lora", "llama", ALL, None),
    ("some modules", "llama", {"target_modules": ["q_proj", "v_proj"]}, None),
    ("all-linear", "llama", {"target_modules": "all-linear"}, None),
    ("a pattern of modules", "llama", {"target_modules": r".*\.(q|up)_proj"}, None),
    ("excluded modules", "llama", {**ALL, "exclude_modules": ["k_proj"]}, None),
    ("rslora", "llama", {**ALL, "use_rslora": True}, None),
    ("dora", "llama", {**ALL, "use_dora": True}, None),
    ("rank_pattern", "llama", {**ALL, "rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 8}}, None),
    ("alpha_pattern", "llama", {**ALL, "alpha_pattern": {"v_proj": 3, "layers.2.self_attn.v_proj": 7, "down_proj": 1}}, None),
    ("alpha_pattern, ranks, rslora", "llama", {**ALL, "use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 5}}, None),
    ("alpha_pattern of an expression", "llama", {**ALL, "alpha_pattern": {"[qk]_proj": 3}}, "alpha_pattern"),
    ("layers_to_transform", "llama", {**ALL, "layers_to_transform": [1, 2]}, None),
    ("one layer in the middle", "llama", {**ALL, "layers_to_transform": 1, "layers_pattern": "layers"}, None),
    ("dropout, inference", "llama", {**ALL, "lora_dropout": 0.3}, None),
    *((f"init {init}", "llama", {**ALL, "init_lora_weights": init}, None) for init in [False, "gaussian", "orthogonal"]),
    ("init mica", "llama", {**ALL, "init_lora_weights": "mica"}, None),
    ("pissa", "llama", {**ALL, "init_lora_weights": "pissa"}, None),
    ("pissa, rslora, ranks", "llama", {**ALL, "init_lora_weights": "pissa", "use_rslora": True, "rank_pattern": {"q_proj": 2}}, None),
    ("pissa, dora", "llama", {**ALL, "init_lora_weights": "pissa", "use_dora": True}, None),
    ("pissa_niter_4", "llama", {**ALL, "init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
    ("olora", "llama", {**ALL, "init_lora_weights": "olora"}, None),
    ("olora, alphas", "llama", {**ALL, "init_lora_weights": "olora", "alpha_pattern": {"up_proj": 2}}, None),
    ("pissa, converted by PEFT", "llama", {**ALL, "init_lora_weights": "pissa"}, None),
    ("modules_to_save", "llama", {**ALL, "modules_to_save": ["lm_head"]}, "modules_to_save"),
    ("norms saved", "llama", {**ALL, "modules_to_save": ["input_layernorm"]}, "modules_to_save"),
    ("tokens trained", "llama", {**ALL, "trainable_token_indices": [3, 5]}, "trainable_token_indices"),
    ("embedding", "llama", {"target_modules": ["embed_tokens", "q_proj"]}, "embed_tokens"),
    ("output layer", "llama", {"target_modules": ["lm_head", "q_proj"]}, "lm_head"),
    ("bias", "llama-bias", {**ALL, "bias": "all"}, "bias"),
    ("lora_bias", "llama-bias", {"target_modules": ATTENTION, "lora_bias": True}, "lora_bias"),
    ("biases of the base", "llama-bias", ALL, None),
    ("alora", "llama", {**ALL, "alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
    ("layers replicated", "llama", {**ALL, "layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
    ("qalora off, its group size", "llama", {**ALL, "qalora_group_size": 8}, None),
    ("another task", "llama", {**ALL, "task_type": "FEATURE_EXTRACTION"}, "task_type"),
    ("fan_in_fan_out", "gpt2", {"target_modules": GPT2, "fan_in_fan_out": True}, None),
    ("Conv1D, dora", "gpt2", {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "use_dora": True}, None),
    ("Conv1D, pissa", "gpt2", {"target_modules": GPT2, "fan_in_fan_out": True, "init_lora_weights": "pissa"}, None),
    ("Phi-3", "phi3", {"target_modules": FUSED}, None),
    ("Phi-3, qkv_proj", "phi3", {"target_modules": ["qkv_proj"]}, None),
    ("Phi-3, dora", "phi3", {"target_modules": FUSED, "use_dora": True}, None),
    ("Phi-3, pissa", "phi3", {"target_modules": FUSED, "init_lora_weights": "pissa"}, None),
    ("Phi-3, olora", "phi3", {"target_modules": FUSED, "init_lora_weights": "olora"}, None),
]
THROUGH_GGUF = ["lora", "rank_pattern", "olora, alphas", "fan_in_fan_out", "Phi-3"]


def run(*arguments):
    done = subprocess.run([TINDERBOX, *map(str, arguments)], capture_output=True, text=True)
    return done.stderr if done.returncode else None


def must(*arguments):
    if error := run(*arguments):
        sys.exit(f"{arguments}: {error}")


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


def away(one, other):
    return (one - other).abs().max().item()


def base(name):
    folder = WORK / name
    if not folder.exists():
        torch.manual_seed(4)
        model = BASES[name]()
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.data.normal_(0, 0.1)
        model.save_pretrained(folder)
        tokenizer = Tokenizer(models.BPE({f"<{i}>": i for i in range(N)}, [], unk_token="<0>"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
        must("import", folder, "--run-dir", WORK / f"{name}-run")
    return folder, WORK / f"{name}-run"


def save(name, base_folder, settings, folder):
    """Adapters that PEFT trains, or would: random changes of all that it would train."""
    model = get_peft_model(load(base_folder), LoraConfig(**{"r": 4, "lora_alpha": 12, "task_type": "CAUSAL_LM", **settings}))
    at_first = WORK / "at-first"
    if "converted" in name:
        model.peft_config["default"].init_lora_weights = True
        model.save_pretrained(at_first)
        model.peft_config["default"].init_lora_weights = settings["init_lora_weights"]
    torch.manual_seed(6)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += torch.randn_like(parameter) * 0.03
    more = {"path_initial_model_for_weight_conversion": str(at_first)} if "converted" in name else {}
    trained = logits(model.eval())
    model.save_pretrained(folder, **more)
    return trained


def main():
    WORK.mkdir(parents=True, exist_ok=True)
    bases = {name: base(name) for name in BASES}
    failures, counts = [], {"equal": 0, "refused": 0}
    for name, of, settings, refusal in KINDS:
        base_folder, base_run = bases[of]
        folder = WORK / "".join(c if c.isalnum() else "-" for c in name)
        try:
            trained = save(name, base_folder, settings, folder)
            model = PeftModel.from_pretrained(load(base_folder), folder).eval()
            wanted = logits(model)
        except Exception as error:  # PEFT itself may not know the kind
            print(f"{name}: not made by this PEFT: {str(error)[:150]}", flush=True)
            continue
        moved = away(wanted, logits(load(base_folder)))
        error = run("merge", base_run, "--adapter", folder, "--run-dir", WORK / "merged", "--overwrite")
        if error is not None:
            is_named = refusal is not None and refusal in error
            counts["refused"] += is_named
            print(f"{name}: refused: {' '.join(error.split())[-160:]}", flush=True)
            if not is_named:
                failures.append(name)
            continue
        must("export", WORK / "merged", "--to", "hf", "--output", WORK / "merged-hf", "--overwrite")
        must("import", folder, "--base", base_run, "--run-dir", WORK / "imported", "--overwrite")
        must("export", WORK / "imported", "--adapter", "--to", "hf", "--output", WORK / "again", "--overwrite")
        here = away(wanted, logits(load(WORK / "merged-hf")))
        again = PeftModel.from_pretrained(load(base_folder), WORK / "again").eval()
        back = away(wanted, logits(again))
        if name in THROUGH_GGUF:
            must("export", WORK / "imported", "--adapter", "--to", "gguf", "--output", WORK / "adapter.gguf", "--overwrite")
            must("merge", base_run, "--adapter", WORK / "adapter.gguf", "--run-dir", WORK / "merged", "--overwrite")
            must("export", WORK / "merged", "--to", "hf", "--output", WORK / "merged-hf", "--overwrite")
            back = max(back, away(wanted, logits(load(WORK / "merged-hf"))))
        print(
            f"{name}: merged here {here:.1e}, exported again {back:.1e}; the adapters change the logits by {moved:.2f}, "
            f"and PEFT gets back what it trained within {away(wanted, trained):.1e}", flush=True,
        )
        is_good = max(here, back) < LIMIT and moved > 0.05 and refusal is None
        counts["equal"] += is_good
        if not is_good:
            failures.append(name)
    print(f"{counts['equal']} kinds give PEFT's logits, {counts['refused']} are refused by name")
    if failures:
        sys.exit("failed: " + "; ".join(failures))


main()
