#!/usr/bin/env bash
# Profiles a training step by operation: CPU time of all threads, sampled by perf.
#
#     scripts/fetch_data.sh
#     scripts/profile_step.sh                      # three models
#     scripts/profile_step.sh nano-cpu             # one of them
#     TINDERBOX_SIMD=avx2 PRECISION=bf16 scripts/profile_step.sh baby-gpu
#
# Needs perf and addr2line (Debian: linux-perf, binutils); run nothing else meanwhile. The program is built with line numbers
# of the kernels, to find inlined functions, in a separate target folder ($CARGO_TARGET_DIR, default target/profile): the
# first build is cold. The steps are those of `tinderbox bench train` and
# of scripts/compare_pytorch.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target/profile}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo rustc --release --locked --bin tinderbox \
    --config 'profile.release.package.tinderbox-kernels.debug="line-tables-only"' \
    --config 'profile.release.strip="none"'
tinderbox=$(realpath "$CARGO_TARGET_DIR/release/tinderbox")

# profile NAME STEPS CONFIG SETTING...
profile() {
    local name=$1 steps=$2 config=$3 setting set=() bench json run
    shift 3
    for setting in model.bias=false model.dropout=0.0 'tokenizer.kind="char"' \
        "train.matmul_precision=${PRECISION:-f32}" 'data.path="data/tinyshakespeare.txt"' \
        "data.cache_dir=\"$work/tokens\"" "$@"; do
        set+=(--set "$setting")
    done
    # The first run reads and caches the text. The second has all but the further steps of the third.
    bench=("$tinderbox" bench train "$config" "${set[@]}" --own-text --device cpu --rounds 1 --json)
    "${bench[@]}" --steps 1 >/dev/null
    perf record --quiet --event cpu-clock --freq 1999 --output "$work/short" -- "${bench[@]}" --steps 1 >/dev/null
    json=$(perf record --quiet --event cpu-clock --freq 1999 --output "$work/long" -- "${bench[@]}" --steps $((steps + 1)))
    for run in short long; do
        perf script --input "$work/$run" --show-mmap-events --fields period,ip,sym,dso >"$work/$run.txt" 2>/dev/null
    done
    python3 scripts/profile_step.py "$tinderbox" "$name" "$steps" "$json" "$work/short.txt" "$work/long.txt"
}

[ $# -gt 0 ] || set -- nano-cpu baby-gpu gpt2-124m
for model in "$@"; do
    case $model in
        nano-cpu) profile "$model" 400 configs/shakespeare-nanogpt.toml ;;
        baby-gpu) profile "$model" 40 configs/shakespeare-gpu.toml train.batch_size=4 ;;
        gpt2-124m)
            profile "$model" 20 configs/shakespeare-gpu.toml model.n_layers=12 model.n_heads=12 model.n_kv_heads=12 \
                model.d_model=768 model.d_ff=3072 train.batch_size=1
            ;;
        *)
            echo "profile_step.sh: there is no model \`$model\`: nano-cpu, baby-gpu or gpt2-124m" >&2
            exit 1
            ;;
    esac
done
