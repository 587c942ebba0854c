#!/bin/sh
# scripts/check_pages.sh PAGE.html...: looks for barriers in pages with axe-core, in every tab, on a wide and a narrow
# screen, in light and dark. Needs npm and node to fetch and run it, and Chromium (or TINDERBOX_CHROMIUM).
set -eu
folder=$(mktemp -d)
trap 'sleep 1; rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" axe-core@4
node "$(dirname "$0")/check_pages.mjs" "$folder" "$@"
