#!/usr/bin/env bash
# Compares the recipe of the shipped configs with a plain baseline at equal CPU time on several texts: a setting that helps on
# one text only should not be a default. Each model is trained on one thread.
#
#     scripts/fetch_data.sh
#     cargo build --release
#     scripts/compare_recipe.sh                  # every row
#     scripts/compare_recipe.sh stories code     # some: stories shakespeare bpe code wide
#
# The recipe: rotary positions, RMS norm, SwiGLU, norms of queries and keys; Muon at 0.02, AdamW at 3e-3 for the rest, a
# constant rate that falls to 0 over the last 0.4, no weight decay; windows drawn without replacement. The baseline, with
# as many weights: learned positions, layer norm, GELU; AdamW at 3e-3, weight decay 0.1, a cosine to a tenth;
# windows drawn with replacement. It makes as many steps as fit the same CPU time. Losses are those of the whole
# validation split, in nats per byte.
#
# Settings, as environment variables:
#
#     STEPS      steps of the recipe; 400
#     SEEDS      "1 2"
#     SHAKESPEARE  data/tinyshakespeare.txt
#     TINDERBOX  target/release/tinderbox
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

steps=${STEPS:-400}
seeds=${SEEDS:-1 2}
tinderbox=${TINDERBOX:-target/release/tinderbox}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export RAYON_NUM_THREADS=1
TIMEFORMAT=%U

cat >"$work/base.toml" <<'TOML'
data = { path = "data/stories.txt" }
model = { n_layers = 2, context_length = 64, d_model = 64, n_heads = 2 }
train = { device = "cpu", batch_size = 12, eval_interval = 0, checkpoint_interval = 0, sample_tokens = 0, eval_batches = 1 }
schedule = { warmup_steps = 20 }
TOML
recipe=(model.position=rope model.norm=rms_norm model.mlp=swiglu model.qk_norm=true optimizer.kind=muon
    optimizer.learning_rate=3e-3 'optimizer.betas=[0.9,0.95]' optimizer.weight_decay=0.0 schedule.kind=wsd
    schedule.decay_fraction=0.4 schedule.min_learning_rate=0.0 train.with_replacement=false)
baseline=(optimizer.learning_rate=3e-3)

# train STEPS SEED SETTING...: prints the loss, and writes the processor time to $work/s.
train() {
    local n=$1 seed=$2 set=() setting
    shift 2
    for setting in "$@" "train.max_steps=$n" "train.seed=$seed"; do set+=(--set "$setting"); done
    { time "$tinderbox" train "$work/base.toml" "${set[@]}" --run-dir "$work/run" --overwrite --json \
        >"$work/json" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }; } 2>"$work/s"
    sed -E 's/.*"val_bits_per_byte": ?([0-9.eE+-]+).*/\1/' "$work/json" | awk '{ printf "%.4f", $1 * log(2) }'
}

# seconds SETTING...: the processor time of 50 steps.
seconds() {
    local short
    train 20 1 "$@" >/dev/null
    short=$(cat "$work/s")
    train 70 1 "$@" >/dev/null
    awk -v short="$short" -v long="$(cat "$work/s")" 'BEGIN { print long - short }'
}

# row NAME SETTING...
row() {
    local name=$1 seed n of_recipe=() of_baseline=()
    shift
    n=$(awk -v recipe="$(seconds "$@" "${recipe[@]}")" -v baseline="$(seconds "$@" "${baseline[@]}")" -v steps="$steps" \
        'BEGIN { printf "%d", steps * recipe / baseline }')
    for seed in $seeds; do
        of_recipe+=("$(train "$steps" "$seed" "$@" "${recipe[@]}")")
        of_baseline+=("$(train "$n" "$seed" "$@" "${baseline[@]}")")
    done
    printf '%-12s %6d %-16s %6d %s\n' "$name" "$steps" "${of_recipe[*]}" "$n" "${of_baseline[*]}"
}

[ -x "$tinderbox" ] || { echo "compare_recipe.sh: there is no $tinderbox" >&2; exit 1; }
printf '%-12s %6s %-16s %6s %s\n' text steps recipe steps baseline
[ $# -gt 0 ] || set -- stories shakespeare bpe code wide
shakespeare=${SHAKESPEARE:-data/tinyshakespeare.txt}
for name; do
    case $name in
    stories) row stories ;;
    shakespeare) row shakespeare "data.path=$shakespeare" ;;
    bpe) row bpe "data.path=$shakespeare" tokenizer.kind=bpe tokenizer.vocab_size=512 ;;
    code) row code data.path=src 'data.include=["*.rs"]' ;;
    wide) row wide "data.path=$shakespeare" model.d_model=128 model.n_heads=4 ;;
    *) echo "compare_recipe.sh: there is no row $name: stories shakespeare bpe code wide" >&2; exit 1 ;;
    esac
done
