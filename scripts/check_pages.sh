#!/bin/sh
# scripts/check_pages.sh [--browser firefox] [--pictures FOLDER] [PAGE...]: checks pages, files or addresses of
# `tinderbox serve`, in every tab, at 360, 390, 1280 and 1920 pixels, in light and dark: accessibility with axe-core,
# errors, sideways scrolling, small text, and use by keyboard alone and by touch. --pictures saves a picture of each view.
# Without a PAGE it makes one of each kind, with target/release/tinderbox or TINDERBOX, from a small model that it trains.
# Needs npm and node to fetch and run puppeteer-core and axe-core, and Chromium (or TINDERBOX_CHROMIUM) or firefox-esr.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; sleep 1; rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" axe-core@4 puppeteer-core@24
cp "$scripts/check_pages.mjs" "$folder/"

# Makes a page of each kind in $folder/pages, and serves the runs.
make_pages() {
    tinderbox=${TINDERBOX:-$scripts/../target/release/tinderbox}
    mkdir "$folder/pages"
    cd "$folder/pages"
    tinder() { "$tinderbox" "$@" >/dev/null 2>>errors.log || { tail -3 errors.log >&2; exit 1; }; }
    page() { tinder "$@" --format html --output "$name.html"; }
    text="Mia saw a dog. The dog had a ball. Mia"
    small="--set model.d_model=32 --set model.head_dim=8 --set model.d_ff=64 --set model.n_layers=2"
    # shellcheck disable=SC2086 # several arguments
    tinder train quickstart $small --set train.max_steps=40 --set train.eval_interval=20 \
        --set train.checkpoint_interval=20 --set train.keep_checkpoints='"all"' --set train.head_metrics=true
    for n in 1 2 3 4 5 6 7 8 9 10 11 12; do
        echo "{\"messages\": [{\"role\": \"user\", \"content\": \"Who has ball $n?\"}, {\"role\": \"assistant\", \"content\": \"Mia has it.\"}]}"
    done >records.jsonl
    tinder finetune runs/quickstart --data records.jsonl --template chatml --set train.max_steps=4 --run-dir runs/tuned
    # shellcheck disable=SC2086
    tinder sweep quickstart $small --set train.max_steps=4 --space model.n_layers=1,2,3 --space model.mlp=gelu,swiglu \
        --space "optimizer.learning_rate=log(1e-3..1e-2)" --budget 6s
    for name in attention lens explain; do
        page inspect "$name" runs/quickstart --prompt "$text"
    done
    name=patching && page inspect lens runs/quickstart --prompt "Mia saw a dog" --patch-from "Ben saw a dog" --answer " a" --against " the"
    name=heads && page inspect heads runs/quickstart
    name=map && page inspect map runs/quickstart
    name=ablation && page inspect ablate runs/quickstart --max-batches 1
    name=embeddings && page inspect embeddings runs/quickstart --word dog --prompt "Mia saw a dog" --prompt "The big dog"
    name=models && page inspect compare runs/quickstart/checkpoints/step-000020 runs/quickstart --prompt "$text"
    name=tokens && page tokenizer show runs/quickstart "$text"
    name=plan && page plan quickstart --no-measure
    name=records && page data preview runs/tuned
    tinder report runs/tuned
    cp sweeps/quickstart/sweep.html runs/quickstart/report.html .
    cp runs/tuned/report.html report-tuned.html
    "$tinderbox" serve --runs runs --port "${PORT:-8191}" >server.log 2>&1 &
    server=$!
    sleep 3
}

n_pages=0
for argument; do
    case $argument in
    --*) n_pages=$((n_pages - 1)) ;;
    *) n_pages=$((n_pages + 1)) ;;
    esac
done
if [ "$n_pages" -eq 0 ]; then
    make_pages
    at=http://127.0.0.1:${PORT:-8191}
    set -- "$@" "$folder"/pages/*.html "$at/" "$at/compare?runs=quickstart,tuned" "$at/run/quickstart"
    for view in write look why; do
        set -- "$@" "$at/run/quickstart/$view"
    done
    set -- "$@" "$at/run/tuned/chat"
fi
node "$folder/check_pages.mjs" "$@"
