#!/bin/sh
# scripts/check_pages.sh [--browser firefox] [--pictures FOLDER] PAGE...: checks pages, files or addresses of
# `tinderbox serve`, in every tab, at 360, 390, 1280 and 1920 pixels, in light and dark: accessibility with axe-core,
# errors, sideways scrolling, small text, and use by keyboard alone and by touch. --pictures saves a picture of each view.
# Needs npm and node to fetch and run puppeteer-core and axe-core, and Chromium (or TINDERBOX_CHROMIUM) or firefox-esr.
set -eu
folder=$(mktemp -d)
trap 'sleep 1; rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" axe-core@4 puppeteer-core@24
cp "$(dirname "$0")/check_pages.mjs" "$folder/"
node "$folder/check_pages.mjs" "$@"
