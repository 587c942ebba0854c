#!/usr/bin/env bash
# Runs the program of an archive in an empty root: nothing is there but the archive, the libraries that the program
# names, /tmp and /dev/null.
#
#     scripts/release/check_archive.sh ARCHIVE.tar.gz
set -euo pipefail
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/tmp" "$root/dev"
tar -C "$root" -xzf "$1" --strip-components=1
ldd "$root/tinderbox" | grep -oE '/[^ ]+' | while read -r library; do
    install -D "$library" "$root$library"
done
enter=(chroot)
[ "$(id -u)" -eq 0 ] || enter=(unshare --map-root-user chroot)
run() { env -i HOME=/tmp PATH="$PATH" "${enter[@]}" "$root" /tinderbox "$@"; }
: >"$root/dev/null"
run devices
run train quickstart --set model.context_length=32 --set train.max_steps=2 --set train.eval_batches=1 --run-dir /tmp/run --json
run generate /tmp/run --prompt Once --max-new-tokens 8
