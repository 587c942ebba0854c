#!/usr/bin/env bash
# Compares the estimates of `tinderbox plan` with the measurements of `tinderbox train`, for the shipped configs.
#
#     cargo build --release
#     scripts/check_plan.sh                  # a few minutes; run nothing else meanwhile
#     scripts/check_plan.sh quickstart ...   # some of them
#
# Each run is shortened to a few steps and evaluations, and models that are large for a CPU use small batches of characters;
# the plan has the same settings. data/stories.txt replaces a missing text. A line has the process's peak memory in MiB, the
# median time of a step in ms and the time of the whole run in s: planned, measured, and their ratio. The script fails if a
# peak is off by more than 15 %.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tinderbox=${TINDERBOX:-target/release/tinderbox}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chosen=" $* "
status=0

# check CONFIG STEPS SETTING...
check() {
    local name=$1 steps=$2 config=$work/$1.toml setting
    shift 2
    [[ $chosen = "  " || $chosen = *" $name "* ]] || return 0
    # No tokens of words: of how many characters they are, only encoding tells.
    sed -E '/^vocab_size = /d; s/^kind = "bpe"/kind = "char"/' "configs/$name.toml" >"$config"
    local set=(--device cpu --set "train.max_steps=$steps" --set "data.cache_dir=\"$work/tokens\"")
    [[ -e $(sed -nE 's/^path = "(.*)"/\1/p' "$config") ]] || set+=(--set 'data.path="data/stories.txt"')
    for setting in "$@"; do set+=(--set "$setting"); done
    "$tinderbox" plan "$config" "${set[@]}" --json >"$work/$name.plan" 2>"$work/$name.log" &&
        "$tinderbox" train "$config" "${set[@]}" --run-dir "$work/$name" --json >"$work/$name.train" 2>>"$work/$name.log" ||
        { echo "$name failed:" >&2; tail -n 5 "$work/$name.log" >&2; status=1; return 0; }
    compare "$name" "$work/$name.plan" "$work/$name.train" || status=1
}

# number KEY FILE: the first number behind a key of a JSON object on one line.
number() {
    sed -E "s/.*\"$1\":([0-9.eE+-]+).*/\1/" "$2"
}

# One line. Fails if the peaks differ by more than 15 %.
compare() {
    local name=$1 plan=$2 train=$3
    awk -v name="$name" -v peak="$(number peak "$plan")" -v peak_run="$(number peak_rss_mib "$train")" \
        -v step="$(number step_ms "$plan")" -v step_run="$(number median_step_ms "$train")" \
        -v whole="$(number total_s "$plan")" -v whole_run="$(number wall_s "$train")" '
        function ratio(planned, measured) { printf " %9.1f %9.1f %5.2f", planned, measured, planned / measured }
        BEGIN {
            peak /= 1048576
            printf "%-20s", name
            ratio(peak, peak_run); ratio(step, step_run); ratio(whole, whole_run)
            is_off = peak / peak_run > 1.15 || peak_run / peak > 1.15
            print is_off ? "  peak is off" : ""
            exit is_off
        }'
}

printf '%-20s %9s %9s %5s %9s %9s %5s %9s %9s %5s\n' config \
    'peak MiB' measured ratio 'step ms' measured ratio 'run s' measured ratio
check quickstart 300 train.eval_interval=100
check shakespeare-nanogpt 500 train.eval_interval=250
check shakespeare-gpu 30 train.batch_size=8 train.eval_interval=15 train.eval_batches=2 data.val_fraction=0.02
check stories-15m 30 train.batch_size=8 train.grad_accumulation_steps=2 train.eval_interval=15 train.eval_batches=2 \
    data.val_fraction=0.02
check gpt2-124m 5 train.batch_size=1 train.grad_accumulation_steps=2 model.context_length=256 train.eval_interval=5 \
    train.eval_batches=1 data.val_fraction=0.005
exit $status
