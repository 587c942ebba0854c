#!/usr/bin/env bash
# Trains the recipes for tiny Shakespeare and prints their losses and times, relative to PyTorch's time in the same session.
#
#     scripts/fetch_data.sh
#     cargo build --release
#     scripts/reproduce_shakespeare.sh                         # every row
#     scripts/reproduce_shakespeare.sh start                   # only these rows: start fast laptop laptop-long
#
# Run nothing else meanwhile. The unit of time is PyTorch's for nanoGPT's CPU run, 2000 steps, which end at a loss of 1.897.
# `start` is the shortest run that reaches this loss, `fast` takes about as long, `laptop` up to 3.5 times
# and `laptop-long` up to 20 times as long. Losses are those of the whole validation split, and of its halves, in nats per
# character: the text is ASCII, so that a character is a byte.
#
# Environment variables:
#
#     SEEDS      seeds of each row, of which the median is printed; "1 2 3"
#     SET        further settings of every row, to try them: "model.dropout=0.1 train.max_steps=4000"
#     TORCH_GPT  another PyTorch training script than scripts/torch_gpt.py
#     TORCH_S    the training time of PyTorch's 2000 steps, if it was measured already: PyTorch is not needed then
#     PYTHON     python3, with torch
#     TINDERBOX  target/release/tinderbox
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seeds=${SEEDS:-1 2 3}
tinderbox=${TINDERBOX:-target/release/tinderbox}
corpus=data/tinyshakespeare.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "reproduce_shakespeare.sh: $1" >&2
    echo "  hint: $2" >&2
    exit 1
}

# number KEY: the number behind a key of the JSON object on standard input.
number() {
    sed -E "s/.*\"$1\": ?([0-9.eE+-]+).*/\1/"
}

# median FILE
median() {
    sort -g "$1" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

[ -x "$tinderbox" ] || fail "there is no $tinderbox" "cargo build --release"
[ -f "$corpus" ] || fail "there is no $corpus" "scripts/fetch_data.sh"

# nats: bits of a byte as nats.
nats() {
    awk '{ printf "%.6f\n", $1 * log(2) }'
}

# The halves of the validation split, which is the last tenth of the text.
characters=$(wc -m <"$corpus")
n_val=$((characters - characters * 9 / 10))
tail -c "$n_val" "$corpus" >"$work/val" # the text is ASCII
head -c $((n_val / 2)) "$work/val" >"$work/first"
tail -c +$((n_val / 2 + 1)) "$work/val" >"$work/second"

# loss RUN FILE
loss() {
    "$tinderbox" eval "$1" --text "$2" --json 2>/dev/null | number bits_per_byte | nats
}

# row NAME CONFIG SETTING...: trains with each seed and prints the medians.
row() {
    local name=$1 config=$2 set=() setting seed run halves=()
    shift 2
    for setting in "$@" ${SET:-}; do set+=(--set "$setting"); done
    for seed in $seeds; do
        run=$work/$name-$seed
        "$tinderbox" train "$config" "${set[@]}" --set "train.seed=$seed" --run-dir "$run" --json \
            >"$work/json" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
        number val_bits_per_byte <"$work/json" | nats >>"$work/$name.loss"
        number train_s <"$work/json" >>"$work/$name.s"
        loss "$run/last" "$work/first" >>"$work/$name.first"
        loss "$run/last" "$work/second" >>"$work/$name.second"
    done
    for setting in first second; do halves+=("$(median "$work/$name.$setting")"); done
    awk -v name="$name" -v loss="$(median "$work/$name.loss")" -v low="$(sort -g "$work/$name.loss" | head -1)" \
        -v high="$(sort -g "$work/$name.loss" | tail -1)" -v s="$(median "$work/$name.s")" -v unit="$unit_s" \
        -v first="${halves[0]}" -v second="${halves[1]}" \
        'BEGIN { printf "%-12s %8.4f %8.4f %8.4f %8.8s %8.8s %9.1f %8.3f\n", name, loss, low, high, first, second, s, s / unit }'
}

if [ -n "${TORCH_S:-}" ]; then
    unit_s=$TORCH_S
else
    unit_s=$("${PYTHON:-python3}" "${TORCH_GPT:-scripts/torch_gpt.py}" --preset nano-cpu --steps 2000 --corpus "$corpus" | number wall_s)
fi
printf 'PyTorch: %.1f s\n%-12s %8s %8s %8s %8s %8s %9s %8s\n' "$unit_s" row loss lowest highest '1st half' '2nd half' 'time, s' share

[ $# -gt 0 ] || set -- start fast laptop laptop-long
for name; do
    case $name in
    start)
        row start configs/shakespeare-fast.toml model.n_layers=2 model.d_model=64 model.n_heads=2 model.n_kv_heads=2 \
            model.d_ff=176 model.context_length=32 tokenizer.vocab_size=512 train.batch_size=24 train.max_steps=300
        ;;
    fast) row fast configs/shakespeare-fast.toml ;;
    laptop) row laptop configs/shakespeare-laptop.toml ;;
    laptop-long)
        row laptop-long configs/shakespeare-laptop.toml model.n_layers=6 model.d_model=256 model.n_heads=8 \
            model.n_kv_heads=8 model.d_ff=688 model.dropout=0.15 train.batch_size=4 train.max_steps=3000 \
            train.matmul_precision=auto
        ;;
    *) fail "there is no row $name" "start, fast, laptop or laptop-long" ;;
    esac
done
