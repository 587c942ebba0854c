#!/usr/bin/env bash
# Tinderbox and PyTorch in turn on this machine's CPU: medians and ratios of several rounds, as a table.
#
#     scripts/fetch_data.sh
#     cargo build --release
#     scripts/compare_pytorch.sh train                     # training steps: three models
#     scripts/compare_pytorch.sh generate                  # writing, against Hugging Face transformers
#     scripts/compare_pytorch.sh train nano-cpu            # only one of them
#
# Nothing else should run meanwhile. Settings, as environment variables:
#
#     ROUNDS     rounds of each side; 5
#     STEPS      steps of a training round, or less for the large model; 40
#     PRECISION  what Tinderbox trains in: f32, or bf16 (train.matmul_precision); f32
#     TORCH_DTYPE what PyTorch trains in: float32, or bfloat16 (its autocast); float32
#     COMPILE    1: PyTorch trains with torch.compile, too, and the faster of the two counts; 0
#     TORCH_GPT  another PyTorch training script than scripts/torch_gpt.py, with its arguments and its JSON object
#     PYTHON     python3, with torch, and for `generate` transformers
#     TINDERBOX  target/release/tinderbox
#
# A training round of Tinderbox is `tinderbox bench train`: steps of the real trainer on the same text, and nothing else,
# as in the script. Peak memory is that of the whole process on both sides.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${ROUNDS:-5}
steps=${STEPS:-40}
precision=${PRECISION:-f32}
torch_dtype=${TORCH_DTYPE:-float32}
python=${PYTHON:-python3}
tinderbox=${TINDERBOX:-target/release/tinderbox}
torch_gpt=${TORCH_GPT:-scripts/torch_gpt.py}
compile=${COMPILE:-0}
corpus=data/tinyshakespeare.txt

fail() {
    echo "compare_pytorch.sh: $1" >&2
    echo "  hint: $2" >&2
    exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# number KEY: the first number behind a key of the JSON object on standard input.
number() {
    sed -E "s/.*\"$1\": ?([0-9.eE+-]+).*/\1/"
}

# median FILE: the upper of the two in the middle.
median() {
    sort -g "$1" | awk '{ x[NR] = $1 } END { print x[int(NR / 2) + 1] }'
}

# row NAME WHAT: what both sides of a measurement came to, and how many times theirs ours is.
row() {
    awk -v name="$1" -v what="$2" -v ours="$(median "$work/ours.$2")" -v theirs="$(median "$work/theirs.$2")" \
        'BEGIN { printf "%-28s %-16s %12.1f %12.1f %7.2f\n", name, what, ours, theirs, ours / theirs }'
}

heading() {
    printf '%-28s %-16s %12s %12s %7s\n' "$1" "median of $rounds" tinderbox pytorch ratio
}

# keep SIDE JSON KEY...: adds a round's numbers to those of the rounds before.
keep() {
    local side=$1 json=$2 key
    shift 2
    for key in "$@"; do number "$key" <<<"$json" >>"$work/$side.$key"; done
}

forget() {
    rm -f "$work"/ours.* "$work"/theirs.* "$work"/compiled.*
}

# faster: makes the compiled side theirs, if it was measured and makes more tokens per second; prints which it is.
faster() {
    [ -f "$work/compiled.tokens_per_s" ] || return 0
    local key
    if awk -v eager="$(median "$work/theirs.tokens_per_s")" -v compiled="$(median "$work/compiled.tokens_per_s")" \
        'BEGIN { exit !(compiled > eager) }'; then
        for key in median_step_ms tokens_per_s peak_rss_mib; do mv "$work/compiled.$key" "$work/theirs.$key"; done
        printf ', compiled'
    else
        printf ', eager'
    fi
}

# train_row PRESET STEPS "SCRIPT'S ARGUMENTS" CONFIG SETTING...
train_row() {
    local preset=$1 n=$2 arguments=$3 config=$4 setting json i
    shift 4
    local set=(--set 'model.bias=false' --set 'model.dropout=0.0' --set 'tokenizer.kind="char"')
    set+=(--set "train.matmul_precision=$precision")
    set+=(--set "data.path=\"$corpus\"" --set "data.cache_dir=\"$work/tokens\"")
    for setting in "$@"; do set+=(--set "$setting"); done
    forget
    for ((i = 0; i < rounds; i++)); do
        # shellcheck disable=SC2086 # several arguments
        json=$("$python" "$torch_gpt" --preset "$preset" --corpus "$corpus" --steps "$n" --dtype "$torch_dtype" \
            $arguments)
        keep theirs "$json" median_step_ms tokens_per_s peak_rss_mib
        if [ "$compile" = 1 ]; then
            # shellcheck disable=SC2086
            json=$("$python" "$torch_gpt" --preset "$preset" --corpus "$corpus" --steps "$n" --dtype "$torch_dtype" \
                $arguments --compile)
            keep compiled "$json" median_step_ms tokens_per_s peak_rss_mib
        fi
        json=$("$tinderbox" bench train "$config" "${set[@]}" --own-text --device cpu --rounds 1 --steps "$n" --json \
            2>>"$work/log") || fail "tinderbox failed: $(tail -n 1 "$work/log")" "try: tinderbox bench train $config"
        keep ours "${json//median_ms/median_step_ms}" median_step_ms tokens_per_s peak_rss_mib
    done
    row "$preset$(faster)" median_step_ms
    row "" tokens_per_s
    row "" peak_rss_mib
}

train() {
    [ -f "$torch_gpt" ] || fail "there is no \`$torch_gpt\`" "TORCH_GPT names another PyTorch training script"
    [ -f "$corpus" ] || fail "there is no \`$corpus\`" "run scripts/fetch_data.sh"
    "$python" -c 'import torch' 2>/dev/null || fail "\`$python\` has no torch" "$python -m pip install torch numpy"
    heading "training, $precision / $torch_dtype"
    local few=$((steps / 4 > 6 ? steps / 4 : 6)) preset
    [ $# -gt 0 ] || set -- nano-cpu baby-gpu gpt2-124m
    for preset in "$@"; do
        case $preset in
            nano-cpu) train_row nano-cpu "$steps" "" configs/shakespeare-nanogpt.toml ;;
            baby-gpu) train_row baby-gpu "$few" "--batch-size 4" configs/shakespeare-gpu.toml train.batch_size=4 ;;
            gpt2-124m)
                # Characters too, so that the sizes go on top of a config for characters.
                train_row gpt2-124m "$few" "--context 256 --batch-size 1" configs/shakespeare-gpu.toml \
                    model.n_layers=12 model.n_heads=12 model.n_kv_heads=12 model.d_model=768 model.d_ff=3072 \
                    train.batch_size=1
                ;;
            *) fail "there is no preset \`$preset\`" "nano-cpu, baby-gpu or gpt2-124m" ;;
        esac
    done
}

# generate_row NAME BATCH_SIZE PROMPT NEW VOCABULARY CONFIG SETTING...
generate_row() {
    local name=$1 batch=$2 prompt=$3 new=$4 vocabulary=$5 config=$6 setting json i
    shift 6
    local sizes=(--batch-size "$batch" --prompt-tokens "$prompt" --new-tokens "$new") set=()
    for setting in "$@"; do set+=(--set "$setting"); done
    forget
    for ((i = 0; i < rounds; i++)); do
        json=$("$python" scripts/transformers_generate.py "$config" --vocab-size "$vocabulary" "${sizes[@]}")
        keep theirs "$json" prompt_tokens_per_s tokens_per_s peak_rss_mib
        json=$("$tinderbox" bench generate "$config" "${set[@]}" "${sizes[@]}" --device cpu --rounds 3 --json \
            2>>"$work/log") || fail "tinderbox failed: $(tail -n 1 "$work/log")" "try: tinderbox bench generate $config"
        keep ours "$json" prompt_tokens_per_s tokens_per_s peak_rss_mib
    done
    row "$name" prompt_tokens_per_s
    row "" tokens_per_s
    row "" peak_rss_mib
}

generate() {
    "$python" -c 'import torch, transformers' 2>/dev/null ||
        fail "\`$python\` has no torch and transformers" "$python -m pip install torch transformers"
    heading writing
    generate_row "shakespeare-gpu" 1 128 100 65 configs/shakespeare-gpu.toml model.bias=true
    generate_row "shakespeare-gpu, 16 texts" 16 128 100 65 configs/shakespeare-gpu.toml model.bias=true
    generate_row "gpt2-124m" 1 128 64 50257 configs/gpt2-124m.toml
}

[ -x "$tinderbox" ] || fail "there is no \`$tinderbox\`" "cargo build --release, or TINDERBOX=PATH"
case ${1-} in
    train) shift && train "$@" ;;
    generate) generate ;;
    *) fail "compare what?" "$0 train [nano-cpu|baby-gpu|gpt2-124m]..., or $0 generate" ;;
esac
