#!/usr/bin/env bash
# Draws the pictures of the README and of docs/attention.md from a run of the quick start, which it trains if none is given:
#     scripts/pictures.sh [RUN]
# A given run needs samples of early steps: train it with --set train.eval_interval=40, which changes no weight.
# TINDERBOX is the program (default: target/release/tinderbox). Needs Python 3 and Chromium, but no network.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${TINDERBOX:-target/release/tinderbox}
out=docs/pictures
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run=${1:-$work/quickstart}
if [ $# = 0 ]; then
    "$program" train configs/quickstart.toml --set train.eval_interval=40 --run-dir "$run"
fi
mkdir -p "$out"

speech="Pip laughed. \"The animal didn't cross the street because it was too tired"
"$program" inspect attention "$run" --prompt "$speech" --format json > "$work/attention.json"
"$program" inspect lens "$run" --prompt "$speech" --format json > "$work/lens.json"
"$program" report "$run" --output "$work/report.html"
python3 scripts/pictures/draw.py "$run" "$work" "$out"

"$program" inspect attention "$run" --prompt "$speech" --layer 3 --head 1 --format svg \
    --output docs/images/attention-quote-head.svg
"$program" inspect attention "$run" --prompt "$speech" --format svg --output docs/images/attention-all-heads.svg

chromium=${TINDERBOX_CHROMIUM:-$(command -v chromium || command -v google-chrome)}
for theme in dark:0 light:1; do
    "$chromium" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,860 \
        --user-data-dir="$work/profile" --blink-settings=preferredColorScheme="${theme#*:}" \
        --screenshot="$PWD/$out/report-${theme%:*}.png" "file://$work/report.html" 2> "$work/chromium.log" ||
        { cat "$work/chromium.log" >&2; exit 1; }
done
total=$(cat "$out"/* | wc -c)
[ "$total" -le 1500000 ] || { echo "the pictures take $total bytes, more than 1.5 MB" >&2; exit 1; }
echo "wrote $(ls "$out" | wc -l) pictures, $total bytes"
