#!/usr/bin/env bash
# Compares Tinderbox with PyTorch and, with LLM_C, llm.c, in alternation on this machine's CPU, or with DEVICE on its
# GPU: medians and ratios of several rounds.
#
#     scripts/fetch_data.sh
#     cargo build --release
#     scripts/compare_pytorch.sh train                     # training steps: three models
#     scripts/compare_pytorch.sh generate                  # generation, against Hugging Face transformers
#     scripts/compare_pytorch.sh train nano-cpu            # only one of them
#
# Run nothing else meanwhile. Environment variables:
#
#     ROUNDS     rounds of each side; 5
#     STEPS      steps of a training round, or less for the large model; 40
#     PRECISION  Tinderbox's train.matmul_precision: f32 or bf16; f32
#     TORCH_DTYPE what PyTorch trains in: float32, or bfloat16 (its autocast); float32
#     COMPILE    1: PyTorch trains with torch.compile, too, and the faster of the two counts; 0
#     LLM_C      a clone of https://github.com/karpathy/llm.c: `train` measures its train_gpt2.c, too, in f32, built
#                with gcc in a temporary folder; not set
#     TORCH_GPT  another PyTorch training script than scripts/torch_gpt.py, with its arguments and its JSON object
#     TINDERBOX_SIMD avx2, avx512 or amx: holds both sides to these instructions, PyTorch by ATEN_CPU_CAPABILITY,
#                MKL_ENABLE_INSTRUCTIONS and ONEDNN_MAX_CPU_ISA
#     DEVICE     Tinderbox's device for `train`, such as wgpu; cpu
#     TORCH_DEVICE PyTorch's: cpu, or cuda for a GPU; cpu. On GPUs there is a row for steps that are not waited for
#     PYTHON     python3, with torch, and for `generate` transformers
#     TINDERBOX  target/release/tinderbox
#
# A training round of Tinderbox is `tinderbox bench train`: steps of the real trainer on the same text, and nothing
# else, as in the scripts. Peak memory is that of the whole process on every side.
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
device=${DEVICE:-cpu}
torch_device=${TORCH_DEVICE:-cpu}
keys=(median_step_ms tokens_per_s peak_rss_mib)
[ "$device" = cpu ] || [ "$torch_device" = cpu ] || keys+=(unwaited_ms)
llm_c=${LLM_C:-}
corpus=data/tinyshakespeare.txt
case ${TINDERBOX_SIMD:-} in
    avx2) export ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 ;;
    avx512) export ATEN_CPU_CAPABILITY=avx512 MKL_ENABLE_INSTRUCTIONS=AVX512 ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 ;;
    amx) export ATEN_CPU_CAPABILITY=avx512 MKL_ENABLE_INSTRUCTIONS=AVX512 ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX ;;
esac

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

# row NAME WHAT: what the sides of a measurement came to, and how many times that of each other side ours is.
row() {
    local ours side
    ours=$(median "$work/ours.$2")
    awk -v name="$1" -v what="$2" -v ours="$ours" 'BEGIN { printf "%-28s %-16s %12.1f", name, what, ours }'
    for side in theirs llm_c; do
        [ -f "$work/$side.$2" ] || continue
        awk -v ours="$ours" -v theirs="$(median "$work/$side.$2")" \
            'BEGIN { printf " %12.1f %7.2f", theirs, ours / theirs }'
    done
    echo
}

# heading WHAT SIDE...: the first line of a table, with the sides other than ours.
heading() {
    printf '%-28s %-16s %12s' "$1" "median of $rounds" tinderbox
    shift
    printf ' %12s   ratio' "$@"
    echo
}

# keep SIDE JSON KEY...: adds a round's numbers to those of the rounds before.
keep() {
    local side=$1 json=$2 key
    shift 2
    for key in "$@"; do number "$key" <<<"$json" >>"$work/$side.$key"; done
}

forget() {
    rm -f "$work"/ours.* "$work"/theirs.* "$work"/compiled.* "$work"/llm_c.*
}

# faster: makes the compiled side theirs, if it was measured and makes more tokens per second; prints which it is.
faster() {
    [ -f "$work/compiled.tokens_per_s" ] || return 0
    local key
    if awk -v eager="$(median "$work/theirs.tokens_per_s")" -v compiled="$(median "$work/compiled.tokens_per_s")" \
        'BEGIN { exit !(compiled > eager) }'; then
        for key in "${keys[@]}"; do mv "$work/compiled.$key" "$work/theirs.$key"; done
        printf ', compiled'
    else
        printf ', eager'
    fi
}

build_llm_c() {
    [ -f "$llm_c/train_gpt2.c" ] ||
        fail "there is no \`$llm_c/train_gpt2.c\`" "git clone https://github.com/karpathy/llm.c, and LLM_C=PATH"
    # The flags of its Makefile, with OpenMP.
    gcc -Ofast -march=native -fopenmp -DOMP -w -I "$llm_c" scripts/llm_c_train.c -o "$work/llm_c_train" -lm \
        2>>"$work/log" || fail "gcc cannot build llm.c: $(grep -m 1 'error\|not found' "$work/log")" \
        "install gcc, and see in scripts/llm_c_train.c which commit it is written for"
}

# llm_c_round STEPS "SIZES": a round of llm.c, whose sizes are batch size, context, layers, heads and d_model.
llm_c_round() {
    local json
    # shellcheck disable=SC2086 # several sizes
    json=$("$work/llm_c_train" "$corpus" "$1" $2 2>>"$work/log") ||
        fail "llm.c failed: $(tail -n 1 "$work/log")" "see in scripts/llm_c_train.c which commit it is written for"
    keep llm_c "$json" median_step_ms tokens_per_s peak_rss_mib
}

# train_row PRESET STEPS "SCRIPT'S ARGUMENTS" "LLM.C'S SIZES" CONFIG SETTING...
train_row() {
    local preset=$1 n=$2 arguments=$3 sizes=$4 config=$5 setting json i
    shift 5
    local set=(--set 'model.bias=false' --set 'model.dropout=0.0' --set 'tokenizer.kind="char"')
    set+=(--set "train.matmul_precision=$precision")
    set+=(--set "data.path=\"$corpus\"" --set "data.cache_dir=\"$work/tokens\"")
    for setting in "$@"; do set+=(--set "$setting"); done
    forget
    for ((i = 0; i < rounds; i++)); do
        # shellcheck disable=SC2086 # several arguments
        json=$("$python" "$torch_gpt" --preset "$preset" --corpus "$corpus" --steps "$n" --dtype "$torch_dtype" \
            --device "$torch_device" $arguments)
        keep theirs "$json" "${keys[@]}"
        if [ "$compile" = 1 ]; then
            # shellcheck disable=SC2086
            json=$("$python" "$torch_gpt" --preset "$preset" --corpus "$corpus" --steps "$n" --dtype "$torch_dtype" \
                --device "$torch_device" $arguments --compile)
            keep compiled "$json" "${keys[@]}"
        fi
        if [ -n "$llm_c" ]; then llm_c_round "$n" "$sizes"; fi
        json=$("$tinderbox" bench train "$config" "${set[@]}" --own-text --device "$device" --steps "$n" \
            --rounds 1 --json \
            2>>"$work/log") || fail "tinderbox failed: $(tail -n 1 "$work/log")" "try: tinderbox bench train $config"
        keep ours "${json//median_ms/median_step_ms}" "${keys[@]}"
    done
    row "$preset$(faster)" median_step_ms
    row "" tokens_per_s
    row "" peak_rss_mib
    if [ ${#keys[@]} -gt 3 ]; then row "" unwaited_ms; fi
}

train() {
    [ -f "$torch_gpt" ] || fail "there is no \`$torch_gpt\`" "TORCH_GPT names another PyTorch training script"
    [ -f "$corpus" ] || fail "there is no \`$corpus\`" "run scripts/fetch_data.sh"
    "$python" -c 'import torch' 2>/dev/null || fail "\`$python\` has no torch" "$python -m pip install torch numpy"
    if [ -n "$llm_c" ]; then build_llm_c; fi
    heading "training, $precision / $torch_dtype" pytorch ${llm_c:+"llm.c, f32"}
    local few=$((steps / 4 > 6 ? steps / 4 : 6)) preset
    [ $# -gt 0 ] || set -- nano-cpu baby-gpu gpt2-124m
    for preset in "$@"; do
        case $preset in
            nano-cpu) train_row nano-cpu "$steps" "" "12 64 4 4 128" configs/shakespeare-nanogpt.toml ;;
            baby-gpu)
                train_row baby-gpu "$few" "--batch-size 4" "4 256 6 6 384" configs/shakespeare-gpu.toml \
                    train.batch_size=4
                ;;
            gpt2-124m)
                # Characters too, so that the sizes go on top of a config for characters.
                train_row gpt2-124m "$few" "--context 256 --batch-size 1" "1 256 12 12 768" \
                    configs/shakespeare-gpu.toml \
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
    heading writing pytorch
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
