#!/bin/sh
# scripts/time_pages.sh PAGE.html...: measures the size of attention pages, and how fast they open in a headless Chromium (or
# TINDERBOX_CHROMIUM) and respond to mouse and keyboard: medians and maxima, in milliseconds from the input to the picture. Needs npm and node to fetch and run puppeteer-core.
set -eu
folder=$(mktemp -d)
trap 'sleep 1; rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" puppeteer-core@24
cp "$(dirname "$0")/time_pages.mjs" "$folder/"
node "$folder/time_pages.mjs" "$@"
