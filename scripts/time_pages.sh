#!/bin/sh
# scripts/time_pages.sh PAGE.html...: how large pages of attention are, how fast they open in a headless Chromium (or
# TINDERBOX_CHROMIUM), and how fast they answer to a mouse and to keys: medians and the slowest, in milliseconds from the
# input to the picture. Needs npm and node to fetch and run puppeteer-core.
set -eu
folder=$(mktemp -d)
trap 'sleep 1; rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" puppeteer-core@24
cp "$(dirname "$0")/time_pages.mjs" "$folder/"
node "$folder/time_pages.mjs" "$@"
