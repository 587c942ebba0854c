#!/usr/bin/env bash
# `tinderbox sweep` and Optuna's Hyperband, which drives `tinderbox train --json`, with the same space and the same
# budget; then both best settings, and the base config, trained for equal time with three seeds.
#
#     cargo build --release
#     pip install optuna
#     scripts/compare_optuna.sh BASE.toml MINUTES KEY=VALUES...
#
# Nothing else should run meanwhile. Settings, as environment variables:
#
#     SEEDS      seeds of the last runs; "1 2 3"
#     PYTHON     python3, with optuna
#     TINDERBOX  target/release/tinderbox
#     OUT        the folder of all runs, which must not exist; /tmp/compare-optuna
set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: scripts/compare_optuna.sh BASE.toml MINUTES KEY=VALUES..." >&2
    exit 2
fi
base=$1 minutes=$2
shift 2
tinderbox=${TINDERBOX:-target/release/tinderbox}
out=${OUT:-/tmp/compare-optuna}
mkdir "$out"

space=()
for dimension in "$@"; do space+=(--space "$dimension"); done
"$tinderbox" sweep "$base" --budget "${minutes}m" "${space[@]}" --sweep-dir "$out/sweep" --json >"$out/sweep.json"
"${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/compare_optuna.py" "$tinderbox" "$base" "$minutes" "$out" "$@"

printf '%-10s %6s %14s\n' config seed bits/byte
for name in base sweep optuna; do
    case $name in
    base) config=$base sets=() ;;
    sweep) config=$out/sweep/best.toml sets=() ;;
    optuna) config=$base && mapfile -t sets <"$out/optuna.sets" ;;
    esac
    for seed in ${SEEDS:-1 2 3}; do
        arguments=(--set "train.seed=$seed" --run-dir "$out/last/$name-$seed" --json)
        for set in "${sets[@]}"; do arguments+=(--set "$set"); done
        json=$("$tinderbox" train "$config" "${arguments[@]}" 2>"$out/last-$name-$seed.log")
        printf '%-10s %6s %14s\n' "$name" "$seed" \
            "$(sed -E 's/.*"val_bits_per_byte": ?([0-9.eE+-]+).*/\1/' <<<"$json")"
    done
done
