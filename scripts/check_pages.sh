#!/bin/sh
# scripts/check_pages.sh [--browser firefox] [--pictures FOLDER] PAGE...: looks for what is wrong with pages, files or
# addresses of `tinderbox serve`, in every tab, at 360, 1280 and 1920 pixels, in light and dark: barriers with axe-core,
# errors, sideways scrolling, small letters, and whether keys alone and a finger reach the tabs and tokens. Saves a
# picture of each view with --pictures. Needs npm and node to fetch and run puppeteer-core and axe-core, and Chromium (or
# TINDERBOX_CHROMIUM) or firefox-esr.
set -eu
folder=$(mktemp -d)
trap 'sleep 1; rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" axe-core@4 puppeteer-core@24
cp "$(dirname "$0")/check_pages.mjs" "$folder/"
node "$folder/check_pages.mjs" "$@"
