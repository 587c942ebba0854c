#!/usr/bin/env bash
# Hashes the files of short runs and the output of commands, to compare before and after a refactoring.
#
#     scripts/golden.sh before.txt               # with target/release/tinderbox; about a minute on two cores
#     scripts/golden.sh after.txt
#     scripts/golden.sh --compare before.txt after.txt
#
#     --binary PATH     another binary
#     --only PATTERN    only groups whose name matches: runs resume generate eval plan inspect report
#                       runs-table tokenizer init help bench errors devices; the runs that they need are trained
#     --quickstart      also trains the shipped quick start in full: about two minutes more
#     --wgpu            also runs on wgpu, if there is an adapter: minutes more on a software adapter
#     --keep DIR        keeps the hashed files for `diff -r`
#
# A line of the result is `sha256  name`; a line with # says what was left out. Compare results of one machine: which
# instructions it has decides the last digits. What a clock or a meter says is masked; see `mask`. Not covered: the
# dashboard and the bar, which need a terminal, and `init --from-text`, whose config depends on how fast the machine is.
set -euo pipefail

# compare BEFORE AFTER: what is different. Names that a result with --only lacks do not count.
compare() {
    awk '
        { hash = $1; sub(/^[^ ]+ +/, "") }
        FNR == NR { before[$0] = hash; next }
        hash == "#" && /^only / { is_part = 1; next }
        { n++; is_new = !($0 in before) }
        is_new || before[$0] != hash { print (is_new ? "new      " : "changed  ") $0; bad++ }
        { delete before[$0] }
        END {
            for (name in before) if (!is_part) { print "missing  " name; bad++ }
            print n + 0 " compared, " bad + 0 " different"
            exit bad > 0
        }' "$1" "$2"
}

binary='' only=. keep='' out='' quickstart=false wgpu=false
while (($#)); do
    case $1 in
    --compare) compare "$2" "$3"; exit ;;
    --binary) binary=$(realpath "$2"); shift ;;
    --only) only=$2; shift ;;
    --keep) keep=$(realpath -m "$2"); shift ;;
    --quickstart) quickstart=true ;;
    --wgpu) wgpu=true ;;
    -*) echo "unknown option $1" >&2; exit 2 ;;
    *) out=$(realpath -m "$1") ;;
    esac
    shift
done
[ -n "$out" ] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }

repository=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
binary=${binary:-$(cd "$repository" && realpath -m "${CARGO_TARGET_DIR:-target}/release/tinderbox")}
[ -x "$binary" ] || { echo "no binary at $binary: cargo build --release" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exec </dev/null

# Every path that is printed is relative to here, so that it is the same each time.
cd "$work"
cp -r "$repository/data" "$repository/configs" .
ln -s "$binary" tinderbox
kept=$work/kept
mkdir "$kept"
head -c 3000 data/stories.txt >prompt.txt
head -n 40 data/stories.txt | sed -E 's/["\\]//g; s/.*/{"body": "&"}/' | gzip -n >letters.jsonl.gz
# A home of its own: no token file and no tuned kernel of before is found. Mesa would complain that there is no desktop.
tb=(env -i "PATH=$PATH" "HOME=$work" CUBECL_AUTOTUNE_LEVEL=minimal ./tinderbox)
for name in VK_DRIVER_FILES VK_ICD_FILENAMES; do
    [ -z "${!name:-}" ] || tb=("${tb[@]:0:2}" "$name=${!name}" "${tb[@]:2}")
done

# mask [SED]: replaces clock values, speeds and memory in JSON, text and pages; SED is for one command's output.
mask() {
    # What is read for less than a second is not said.
    sed -E \
        -e '/^(reading|counting the words of|finding the merges of|encoding) `/d' \
        -e 's/"(began_unix_s|[a-z_]+_(s|ms)|peak_rss_mib|available)": ?[0-9.e+-]+/"\1":MASKED/g' \
        -e 's/[0-9][0-9.,]* tokens\/s/SPEED/g; s/[0-9][0-9.]* [kMGT]? ?FLOPs\/s/SPEED/g' \
        -e 's/[0-9.]+ [MG]iB( are)? free/FREE/g' \
        -e 's/([0-9][0-9.,]* (days?|h|min|s|ms)\b ?)+/TIME /g; s/(TIME \/step) +/\1 /' \
        -e 's/(<dt>(Tokens per second|Peak memory|Time of [a-z]+|Began)<\/dt>).*/\1 MASKED/' \
        -e "${1:-}"
}

# shot NAME ARGUMENT...: keeps what the program prints with these arguments, and its exit code. `extra` is one more mask.
shot() {
    local name=$1 code=0
    shift
    mkdir -p "$kept/$(dirname "$name")"
    "${tb[@]}" "$@" >stdout 2>stderr || code=$?
    { mask "${extra:-}" <stdout; echo "--- standard error"; mask "${extra:-}" <stderr; echo "--- exit code $code"; } \
        >"$kept/$name"
}

# collect NAME: keeps the files of a run.
collect() {
    local file to
    [ -d "runs/$1" ] || return 0 # it was refused
    while read -r file; do
        to=$kept/$file
        mkdir -p "$(dirname "$to")"
        case $file in
        */timings.jsonl) sed -E 's/:[0-9.e+-]+/:MASKED/g' "$file" >"$to" ;;
        *.tfevents.*) { wc -c <"$file"; grep -aoE '(loss|bits_per_byte)/[a-z_]+|learning_rate' "$file"; } >"$to" ;; # it has times
        *.log | *.html) mask <"$file" >"$to" ;;
        *) cp "$file" "$to" ;;
        esac
    done < <(find "runs/$1" -type f)
}

# Small enough for a second each, with two evaluations and two checkpoints.
tiny="data.cache_dir=tokens data.val_fraction=0.01 model.context_length=32 model.d_model=32 model.n_layers=2 model.d_ff=64
    train.max_steps=20 train.batch_size=4 train.log_interval=4 train.eval_interval=10 train.eval_batches=2
    train.checkpoint_interval=10 train.sample_tokens=40 schedule.warmup_steps=5
    model.norm=layer_norm model.mlp=relu_squared optimizer.kind=adamw optimizer.learning_rate=4e-3 tokenizer.end_of_text=false"
gpt2="model.position=learned model.mlp=gelu model.bias=true model.qk_norm=false"
llama="model.norm=rms_norm model.mlp=swiglu model.n_kv_heads=2 model.tie_embeddings=false tokenizer.kind=bpe tokenizer.vocab_size=300"
# Sizes that fill no block, and sizes of several blocks.
odd="model.context_length=67 model.d_model=60 model.n_heads=3 model.n_kv_heads=3 model.d_ff=100 model.n_layers=1 train.batch_size=3"
wide="model.context_length=160 model.d_model=256 model.d_ff=1024 train.batch_size=2 train.max_steps=4 train.eval_interval=4 train.sample_tokens=0"
short="train.max_steps=4 train.eval_interval=4 train.log_interval=1"
# A GPU in software compiles each kernel for seconds, and then is slow.
few="data.path=prompt.txt data.val_fraction=0.1 train.max_steps=3 train.eval_interval=3 train.eval_batches=1 train.log_interval=1
    train.sample_tokens=0 model.n_layers=1"
declare -A settings=(
    [gpt2]="$gpt2 model.dropout=0.1 train.grad_accumulation_steps=2 train.head_metrics=true train.tensorboard=true schedule.kind=cosine"
    [gpt2-bf16]="$gpt2 model.dropout=0.1 train.grad_accumulation_steps=2 train.matmul_precision=bf16"
    [llama]="$llama optimizer.kind=muon schedule.kind=wsd train.head_metrics=true"
    [llama-bf16]="$llama optimizer.kind=muon schedule.kind=wsd train.matmul_precision=bf16"
    [relu]="tokenizer.kind=byte optimizer.grad_clip_norm=0 schedule.kind=constant"
    [relu-bias]="tokenizer.kind=byte model.bias=true model.norm=rms_norm model.dropout=0.2 model.tie_embeddings=false optimizer.kind=muon"
    [odd]="$odd $gpt2" [odd-bf16]="$odd optimizer.kind=muon train.matmul_precision=bf16"
    [wide]="$wide optimizer.kind=muon" [wide-bf16]="$wide model.mlp=swiglu train.matmul_precision=bf16"
    [file]="tokenizer.kind=file tokenizer.path=runs/llama/tokenizer.json"
    [ndarray-gpt2]="$gpt2 model.dropout=0.1 $short train.device=ndarray"
    [ndarray-llama]="$llama optimizer.kind=muon $short train.device=ndarray"
    [wgpu-gpt2]="$gpt2 model.dropout=0.1 $few train.device=wgpu"
    [wgpu-llama]="$llama optimizer.kind=muon $few train.device=wgpu"
)

# train NAME [SETTINGS [ARGUMENT...]]: trains and keeps a run; CONFIG is another config than the quick start's.
train() {
    local name=$1 sets=() setting
    for setting in $tiny ${2:-}; do sets+=(--set "$setting"); done
    shot "runs/$name/train" train "${CONFIG:-configs/quickstart.toml}" "${sets[@]}" --run-dir "runs/$name" "${@:3}"
    collect "$name"
}

# need NAME...: trains those of the table that are not there.
need() {
    local name
    for name; do [ -d "runs/$name" ] || train "$name" "${settings[$name]}"; done
}

group_runs() {
    need gpt2 gpt2-bf16 llama llama-bf16 relu relu-bias odd odd-bf16 wide wide-bf16 file ndarray-gpt2 ndarray-llama
    printf '%s\n' '[[data.sources]]' 'path = "data/stories.txt"' 'weight = 3.0' '[[data.sources]]' \
        'path = "letters.jsonl.gz"' 'weight = 1.0' 'text_field = "body"' >two.toml
    CONFIG=two.toml train two "model.n_heads=2 train.early_stopping_patience=1" --json
    # The model and the tokenizer are those of the other run, so that most of $tiny may not be said.
    printf '%s\n' 'data = { path = "prompt.txt", cache_dir = "tokens" }' \
        'train = { device = "cpu", max_steps = 6, batch_size = 4, eval_interval = 3, eval_batches = 2, sample_tokens = 20 }' >further.toml
    tiny='' CONFIG=further.toml train further '' --from runs/relu/last
    tiny='' CONFIG=further.toml train refused model.d_model=64 --from runs/relu
}

group_devices() {
    extra='s/ +/ /g' shot devices devices
    $wgpu || return 0
    # That two runs give the same bytes here has not been checked: run the same binary twice before you trust a difference.
    if ! grep -q '^wgpu:' "$kept/devices"; then
        echo "skipped: wgpu, of which there is no adapter here" | tee -a "$work/notes"
        return
    fi
    need wgpu-gpt2 wgpu-llama
    shot generate/wgpu generate runs/wgpu-gpt2 --prompt "The bank" --max-new-tokens 20 --device wgpu
}

# same RUN: whether a run ended as the uninterrupted one did, file by file.
same() {
    local file
    for file in checkpoints/step-000020/{model.safetensors,optimizer.safetensors,state.json} samples.txt best last; do
        cmp -s "runs/whole/$file" "runs/$1/$file" && echo "same $file" || echo "DIFFERENT $file"
    done | tee "$kept/runs/$1/same-as-whole" | sed -n "/^D/s/^/warning: resumed $1: /p"
}

group_resume() {
    local always="$gpt2 model.dropout=0.1 schedule.kind=constant train.eval_interval=5 train.checkpoint_interval=5" pid code=0
    train whole "$always"
    train longer "$always train.max_steps=10"
    train longer "$always" --resume
    same longer
    # Ctrl-C as soon as a step is logged: at which step it comes is chance, where the run ends is not.
    local sets=() setting
    for setting in $tiny $always; do sets+=(--set "$setting"); done
    "${tb[@]}" train configs/quickstart.toml "${sets[@]}" --run-dir runs/stopped >stdout 2>stderr &
    pid=$!
    until grep -q '^step *4/' stderr || ! kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
    kill -INT "$pid" 2>/dev/null || true
    wait "$pid" || code=$?
    train stopped "$always" --resume
    same stopped
    echo "the exit code was $code" >>"$kept/runs/stopped/same-as-whole"
    cmp -s runs/whole/metrics.jsonl runs/stopped/metrics.jsonl && echo "same metrics" >>"$kept/runs/stopped/same-as-whole"
    # When it was stopped shows here.
    rm -f "$kept"/runs/stopped/{train,train.log,timings.jsonl,report.html}
}

group_generate() {
    need gpt2 llama relu gpt2-bf16 wide
    local model weights
    for model in gpt2 llama relu gpt2-bf16 wide; do
        for weights in f32 bf16 int8; do
            shot "generate/$model-$weights" generate "runs/$model" --prompt "The bank of" --max-new-tokens 60 --weights "$weights"
        done
        shot "generate/$model-greedy" generate "runs/$model/last" --prompt "Once" --max-new-tokens 40 --temperature 0
        shot "generate/$model-many" generate "runs/$model" --num-samples 3 --max-new-tokens 30 --top-k 5 --seed 7
        shot "generate/$model-nucleus" generate "runs/$model" --prompt-file prompt.txt --max-new-tokens 30 --temperature 1.2 \
            --top-p 0.8 --min-p 0.01 --repetition-penalty 1.3 --stop "zz"
    done
    shot generate/ndarray generate runs/llama --prompt "The" --max-new-tokens 20 --device ndarray
    shot generate/stop generate runs/gpt2 --prompt "The" --max-new-tokens 200 --stop e --stop " "
}

group_eval() {
    need gpt2 llama relu
    local model weights
    for model in gpt2 llama relu; do
        for weights in f32 bf16 int8; do shot "eval/$model-$weights" eval "runs/$model" --json --weights "$weights"; done
        shot "eval/$model-text" eval "runs/$model/last" --text prompt.txt
    done
    shot eval/ndarray eval runs/gpt2 --text prompt.txt --device ndarray --json
}

group_plan() {
    need llama
    local config
    for config in configs/*.toml; do
        shot "plan/$(basename "$config").txt" plan "$config" --no-measure --device cpu
        shot "plan/$(basename "$config").json" plan "$config" --no-measure --device cpu --json
    done
    shot plan/bf16-muon plan configs/quickstart.toml --no-measure --set train.matmul_precision=bf16 --set optimizer.kind=muon
    shot plan/ndarray plan configs/quickstart.toml --no-measure --device ndarray --set model.dropout=0.1
    shot plan/too-large plan configs/gpt2-124m.toml --no-measure --device cpu --set train.batch_size=4096
    shot plan/from plan configs/quickstart.toml --no-measure --from runs/llama
    # How many steps are tried depends on the machine.
    extra='s/[0-9,]+ steps of this run/STEPS/' shot plan/measured plan configs/quickstart.toml --set model.n_layers=1 --json
}

group_inspect() {
    need gpt2 llama relu
    local model format text="The bank of the river was low."
    for model in gpt2 llama; do
        for format in text json svg html; do
            shot "inspect/$model-attention.$format" inspect attention "runs/$model" --prompt "$text" --format "$format"
        done
        shot "inspect/$model-head" inspect attention "runs/$model" --prompt "$text" --layer 1 --head 2 --color always --width 70
        for format in text json; do
            shot "inspect/$model-explain.$format" inspect explain "runs/$model" --prompt "$text" --layer 1 --head 3 --format "$format"
            shot "inspect/$model-heads.$format" inspect heads "runs/$model" --windows 2 --format "$format"
            shot "inspect/$model-embeddings.$format" inspect embeddings "runs/$model" --word bank --context river --context money \
                --prompt "$text" --prompt "The bank had money" --format "$format"
            shot "inspect/$model-ablate.$format" inspect ablate "runs/$model" --max-batches 2 --format "$format"
            shot "inspect/$model-lens.$format" inspect lens "runs/$model" --prompt "$text" --top 3 --format "$format"
            shot "inspect/$model-patch.$format" inspect lens "runs/$model" --prompt "She was too wide" --patch-from "She was too hide" \
                --answer a --against e --format "$format"
        done
    done
    shot inspect/several inspect attention runs/relu --prompt "One" --prompt "Two ü" --layer 0 --format json
    shot inspect/output inspect attention runs/relu --prompt-file prompt.txt --format svg --output picture.svg
    cp picture.svg "$kept/inspect/"
}

group_report() {
    need gpt2 llama
    shot report/again report runs/gpt2 --output page.html
    shot report/in-place report runs/llama
    mask <page.html >"$kept/report/page.html"
    mask <runs/llama/report.html >"$kept/report/llama.html"
}

group_runs-table() {
    need gpt2 llama relu
    mkdir -p some && cp -r runs/{gpt2,llama,relu} some/
    # Three that began within a second have no order.
    sed -i 's/"began_unix_s":[0-9.]*/"began_unix_s":1600000000/' some/gpt2/timings.jsonl
    sed -i 's/"began_unix_s":[0-9.]*/"began_unix_s":1500000000/' some/llama/timings.jsonl
    # The widths of columns follow from the times in them.
    local squeeze='s/ +/ /g; s/ (now|TIME ago|TIME *$)/ AGO/g'
    extra="$squeeze" shot runs-table/all runs some
    extra="$squeeze" shot runs-table/by-time runs some --sort time
    extra="$squeeze" shot runs-table/compared runs some/gpt2 some/llama
    extra="$squeeze" shot runs-table/one runs some/gpt2
    shot runs-table/json runs some --json
    local speed='s/ +/ /g; s/ [0-9.]+ [0-9]+$/ SPEED/'
    extra="$speed" shot metrics/table metrics runs/gpt2
    extra="$speed" shot metrics/every metrics runs/llama --every 8
    shot metrics/json metrics runs/gpt2 --json
    extra='s/^(([^,]*,){13}).*/\1/' shot metrics/csv metrics runs/gpt2 --csv
}

group_tokenizer() {
    need gpt2 llama relu file
    local model
    for model in gpt2 llama relu file; do
        shot "tokenizer/$model-encode" tokenizer encode "runs/$model" "The otter did."
        shot "tokenizer/$model-encode.json" tokenizer encode "runs/$model" --json --file prompt.txt
        shot "tokenizer/$model-ids" tokenizer encode "runs/$model" --ids "naïve 🦦 <|endoftext|>"
        shot "tokenizer/$model-decode" tokenizer decode "runs/$model" 5 60 61,70
        shot "tokenizer/$model-info" tokenizer info "runs/$model"
        shot "tokenizer/$model-info.json" tokenizer info "runs/$model" --json
    done
}

group_init() {
    shot init/default init
    for name in quickstart shakespeare shakespeare-gpu stories gpt2; do shot "init/$name" init --preset "$name"; done
    shot init/output init --preset gpt2 --output my.toml
    shot init/there init --preset gpt2 --output my.toml
    shot cache/list cache --cache-dir none
    shot cache/clear.json cache clear --cache-dir none --json
}

group_help() {
    local shell page words
    for shell in bash zsh fish elvish powershell; do shot "completions/$shell" completions "$shell"; done
    shot help/man man
    shot help/man-pages man --output pages
    cp -r pages "$kept/help/pages"
    shot help/version --version
    # A page is called tinderbox-inspect-lens.1.
    for page in pages/*.1; do
        page=$(basename "$page" .1)
        IFS=- read -ra words <<<"$page"
        shot "help/$page" help "${words[@]:1}"
        shot "help/$page-short" "${words[@]:1}" -h
    done
}

group_bench() {
    # Only which numbers there are, not what they are.
    local extra='s/[0-9][0-9.,]*/N/g; s/ +/ /g'
    need gpt2
    shot bench/train bench train configs/quickstart.toml --set model.n_layers=1 --rounds 1 --steps 2 --warm-up 1 --json
    shot bench/generate bench generate runs/gpt2 --rounds 1 --json
}

group_errors() {
    need gpt2
    local q=configs/quickstart.toml
    shot errors/keys train $q --set model.n_layer=6 --set model.dropout=1.5 --set train.seed=-1 --set nonsense
    shot errors/rules train $q --set model.n_heads=3 --set model.n_kv_heads=5 --set optimizer.kind=sgd
    shot errors/set-syntax train $q --set 'model.d_model=[1'
    shot errors/no-config train configs/none.toml
    shot errors/no-text train $q --set data.path=none.txt
    shot errors/too-long train $q --set data.path=prompt.txt --set model.context_length=4000 --set data.cache_dir=tokens
    shot errors/there train $q --run-dir runs/gpt2
    shot errors/resume-other train $q --run-dir runs/gpt2 --resume
    shot errors/nothing-to-resume train $q --run-dir nowhere/none --resume
    shot errors/from-none train $q --from nowhere/none
    shot errors/no-device train $q --device abacus
    shot errors/no-cuda train $q --device cuda
    shot errors/bf16-ndarray train $q --device ndarray --set train.matmul_precision=bf16
    shot errors/misuse train $q --json --tui
    shot errors/no-command frobnicate
    shot errors/nothing
    shot errors/no-run generate nowhere/none
    shot errors/not-a-run generate data
    shot errors/unknown-character generate runs/gpt2 --prompt "naïve 🦦"
    shot errors/temperature generate runs/gpt2 --temperature -1
    shot errors/top-p generate runs/gpt2 --top-p 2
    shot errors/layer inspect attention runs/gpt2 --prompt The --layer 9
    shot errors/token inspect explain runs/gpt2 --prompt The --token zebra
    shot errors/no-word inspect embeddings runs/gpt2 --prompt The --word zebra
    shot errors/empty inspect lens runs/gpt2 --prompt ""
    shot errors/id tokenizer decode runs/gpt2 9999
    shot errors/eval-text eval runs/gpt2 --text none.txt
    shot errors/no-runs runs none
    shot errors/metrics metrics none
    shot errors/preset init --preset gpt5
    cp -r runs/gpt2 damaged
    for name in damaged/checkpoints/*/model.safetensors; do truncate -s 1000 "$name"; done
    shot errors/damaged generate damaged --prompt The
    echo 'not = [toml' >broken.toml
    shot errors/toml plan broken.toml
}

for group in runs resume generate eval plan inspect report runs-table tokenizer init help bench errors devices; do
    [[ $group =~ $only ]] || continue
    began=$SECONDS
    "group_$group"
    printf '%-12s %4d s\n' "$group" $((SECONDS - began))
done
if $quickstart; then
    shot runs/quickstart/train train configs/quickstart.toml --set data.cache_dir=tokens --run-dir runs/quickstart --json
    collect quickstart
    shot generate/quickstart generate runs/quickstart --prompt "The bank of" --max-new-tokens 400
    printf '%-12s %4d s\n' quickstart $((SECONDS - began))
fi

{
    [ "$only" = . ] || echo "# only $only"
    [ ! -e notes ] || sed 's/^/# /' notes
    (cd "$kept" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum)
} >"$out"
if [ -n "$keep" ]; then
    mkdir -p "$keep"
    cp -r "$kept/." "$keep"
fi
echo "$(grep -vc '^#' "$out") hashes in $out, $SECONDS s"
