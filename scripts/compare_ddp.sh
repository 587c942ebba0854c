#!/usr/bin/env bash
# Compares training steps of two processes with one thread each with one process of two threads and with two processes of
# PyTorch's DistributedDataParallel (gloo), in alternation on this machine: a table of medians and ratios of several rounds.
#
#     scripts/fetch_data.sh shakespeare
#     cargo build --release --features mpi
#     scripts/compare_ddp.sh
#     scripts/compare_ddp.sh configs/shakespeare-gpu.toml     # another model; PyTorch builds the same one
#
# Run nothing else meanwhile. The model must be like GPT-2: learned positions, layer norm, GELU, tied
# embeddings, no dropout. Settings, as environment variables:
#
#     ROUNDS     rounds of each side; 5
#     STEPS      steps of a round; 100
#     PYTHON     python3, with torch
#     TINDERBOX  target/release/tinderbox, built with the feature `mpi`
#     OPTIONS    options of mpirun; --bind-to none
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

config=${1:-configs/shakespeare-nanogpt.toml}
rounds=${ROUNDS:-5}
steps=${STEPS:-100}
python=${PYTHON:-python3}
tinderbox=${TINDERBOX:-target/release/tinderbox}
read -ra options <<<"${OPTIONS:---bind-to none}"
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

fail() {
    echo "compare_ddp.sh: $1" >&2
    echo "  hint: $2" >&2
    exit 1
}

command -v mpirun >/dev/null || fail "there is no mpirun" "apt-get install libopenmpi-dev openmpi-bin libclang-dev"
[ -x "$tinderbox" ] || fail "there is no \`$tinderbox\`" "cargo build --release --features mpi"
"$python" -c 'import torch' 2>/dev/null || fail "$python has no torch" "pip install torch, or set PYTHON"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# median_step_ms: the first number behind this key on standard input.
median_step_ms() {
    sed -nE 's/.*"median_step_ms": ?([0-9.eE+-]+).*/\1/p'
}

# ours ROUND LAUNCHER...: training steps alone, as far as a run allows.
ours() {
    local run=$work/run-$1
    shift
    "$@" "$tinderbox" train "$config" --device cpu --run-dir "$run" --json \
        --set "train.max_steps=$steps" --set train.eval_interval=0 --set train.checkpoint_interval=0 \
        --set train.sample_tokens=0 --set train.eval_batches=1 --set "train.log_interval=$steps" 2>"$work/stderr" |
        median_step_ms || { cat "$work/stderr" >&2; exit 1; }
    cp "$run/config.toml" "$work/config.toml" # with all defaults, for PyTorch
    rm -rf "$run"
}

torch() {
    OMP_NUM_THREADS=1 "$python" scripts/compare_ddp.py --processes 2 --steps "$steps" "$work/config.toml" | median_step_ms
}

# middle FILE: the upper of the two in the middle.
middle() {
    sort -g "$1" | sed -n "$(($(wc -l <"$1") / 2 + 1))p"
}

for ((round = 0; round < rounds; round++)); do
    ours "$round" env RAYON_NUM_THREADS=2 >>"$work/one"
    ours "$round" env RAYON_NUM_THREADS=1 mpirun "${options[@]}" -n 2 >>"$work/two"
    torch >>"$work/torch"
done

one=$(middle "$work/one") two=$(middle "$work/two") torch=$(middle "$work/torch")
printf '%-44s %9s %12s\n' "$(basename "$config" .toml)" ms/step "times as fast"
printf '%-44s %9.2f %12s\n' "two ranks of one thread" "$two" ""
printf '%-44s %9.2f %12s\n' "one process of two threads" "$one" "$(awk "BEGIN { printf \"%.2f\", $one / $two }")"
printf '%-44s %9.2f %12s\n' "PyTorch DDP, gloo, two processes" "$torch" "$(awk "BEGIN { printf \"%.2f\", $torch / $two }")"
