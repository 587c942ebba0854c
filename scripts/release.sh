#!/usr/bin/env bash
# Makes a binary to give away: builds the `dist` profile, packs it with its licences and configs, and runs it in an
# empty root that holds nothing but the C library.
#
#     scripts/release.sh [OUTPUT_FOLDER]        default: target/release-packages
#
# The name of the archive is what `cargo binstall` expects, see [package.metadata.binstall] in Cargo.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

output=${1:-target/release-packages}
target=$(rustc -vV | sed -n 's/^host: //p')
version=$(cargo metadata --no-deps --format-version 1 --locked |
    sed -E 's/.*"name":"tinderbox","version":"([^"]+)".*/\1/')
name=tinderbox-$version-$target
binary=${CARGO_TARGET_DIR:-target}/dist/tinderbox

# The linker folds functions of the same instructions into one (lld, which Rust brings on this platform).
cargo rustc --profile dist --locked --bin tinderbox -- -C link-arg=-Wl,--icf=all

mkdir -p "$output"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir "$stage/$name"
cp -r "$binary" README.md LICENSE-MIT LICENSE-APACHE configs "$stage/$name"
tar -C "$stage" -czf "$output/$name.tar.gz" "$name"
(cd "$output" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")

# The root has the unpacked archive, the libraries that the binary names, /tmp and /dev/null: nothing of this machine.
root=$stage/root
mkdir -p "$root/tmp" "$root/dev"
tar -C "$root" -xzf "$output/$name.tar.gz" --strip-components=1
ldd "$binary" | grep -oE '/[^ ]+' | while read -r library; do
    install -D "$library" "$root$library"
done
printf 'Once there was a lamp. It burned low, and then it burned bright.\n%.0s' {1..200} >"$root/tmp/text.txt"
enter=(chroot)
[ "$(id -u)" -eq 0 ] || enter=(unshare --map-root-user chroot)
run() { env -i HOME=/tmp PATH="$PATH" "${enter[@]}" "$root" /tinderbox "$@"; }
: >"$root/dev/null"
run devices
run train configs/quickstart.toml --set data.path=/tmp/text.txt --set model.context_length=32 \
    --set train.max_steps=2 --set train.eval_batches=1 --run-dir /tmp/run --json
run generate /tmp/run --prompt Once --max-new-tokens 8

du -h "$binary" "$output/$name.tar.gz"
echo "packed and checked: $output/$name.tar.gz"
