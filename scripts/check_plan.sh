#!/usr/bin/env bash
# Holds what `tinderbox plan` estimates against what `tinderbox train` then measures, for three configs.
#
#     scripts/fetch_data.sh
#     cargo build --release
#     scripts/check_plan.sh            # a few minutes; nothing else should run meanwhile
#
# Each run is shortened to some steps and evaluations; its plan is made with the same settings. Printed are the
# process's peak memory, the median time of a step and the time of the whole run: estimated, measured, and
# their ratio.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tinderbox=${TINDERBOX:-target/release/tinderbox}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# check CONFIG STEPS SETTING...
check() {
    local config=$1 steps=$2 name setting
    shift 2
    name=$(basename "$config" .toml)
    local set=(--device cpu --set "train.max_steps=$steps" --set "data.cache_dir=\"$work/tokens\"")
    for setting in "$@"; do set+=(--set "$setting"); done
    "$tinderbox" plan "$config" "${set[@]}" --json >"$work/$name.plan" 2>"$work/$name.log"
    "$tinderbox" train "$config" "${set[@]}" --run-dir "$work/$name" --json >"$work/$name.train" 2>>"$work/$name.log"
    compare "$name" "$work/$name.plan" "$work/$name.train"
}

# number KEY FILE: the first number behind a key of a JSON object on one line.
number() {
    sed -E "s/.*\"$1\":([0-9.eE+-]+).*/\1/" "$2"
}

compare() {
    local name=$1 plan=$2 train=$3
    row "$name" "peak MiB" "$(awk "BEGIN { print $(number peak "$plan") / 1048576 }")" "$(number peak_rss_mib "$train")"
    row "$name" "step ms" "$(number step_ms "$plan")" "$(number median_step_ms "$train")"
    row "$name" "whole run s" "$(number total_s "$plan")" "$(number wall_s "$train")"
}

row() {
    awk -v name="$1" -v what="$2" -v plan="$3" -v run="$4" \
        'BEGIN { printf "%-22s %-12s %10.1f %10.1f %7.2f\n", name, what, plan, run, plan / run }'
}

printf '%-22s %-12s %10s %10s %7s\n' config what estimated measured ratio
check configs/quickstart.toml 300 train.eval_interval=100
check configs/shakespeare-nanogpt.toml 500 train.eval_interval=250
check configs/shakespeare-gpu.toml 30 train.batch_size=8 train.eval_interval=15 train.eval_batches=2 data.val_fraction=0.02
