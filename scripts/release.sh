#!/usr/bin/env bash
# Builds a release: the program (profile `dist`), packed as a wheel for pip and as an archive with completions, manual pages,
# licences, an SBOM and checksums. Two runs give the same bytes. On Linux both are then tested without Rust, without a
# network and in a new home.
#
#     scripts/release.sh [OUTPUT_FOLDER]        default: target/release-packages
#
# Needs Python, and installs maturin in a venv in target/. On Linux zig, also from PyPI, links the program, so that it runs
# with glibc 2.28 or later, whatever this machine has. The build takes 40 minutes of CPU time.
# The name of the archive is what `cargo binstall` expects, see [package.metadata.binstall] in Cargo.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

output=${1:-target/release-packages}
target=$(rustc -vV | sed -n 's/^host: //p')
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=tinderbox-$version-$target
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
is_linux=false
[[ $target = *-linux-gnu ]] && is_linux=true

tools=$CARGO_TARGET_DIR/release-tools
python=$(command -v python3 || command -v python)
[[ -d $tools ]] || "$python" -m venv "$tools"
bin=$tools/bin
[[ -d $bin ]] || bin=$tools/Scripts # on Windows
packages=(maturin==1.16.0)
$is_linux && packages+=(ziglang==0.17.1)
"$bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
export PATH=$bin:$PATH

mkdir -p "$output"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir "$stage/$name"
python scripts/release/pack.py licences "$target" THIRD-PARTY-LICENSES.txt
python scripts/release/pack.py sbom "$target" "$stage/$name/tinderbox.cdx.json"

# No path of this machine is in the program.
flags=(--remap-path-prefix="$PWD=tinderbox" --remap-path-prefix="${CARGO_HOME:-$HOME/.cargo}=cargo")
wheel=(--locked --out "$stage/wheel" --sbom-include "$stage/$name/tinderbox.cdx.json")
if $is_linux; then
    flags+=(-Clinker="$PWD/scripts/release/link.sh" -Clinker-flavor=gcc)
    wheel+=(--zig --compatibility manylinux_2_28)
fi
wheel+=(--target "$target")
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}") maturin build "${wheel[@]}"

binary=$CARGO_TARGET_DIR/$target/dist/tinderbox
[[ -f $binary ]] || binary+=.exe
cp -r "$binary" README.md LICENSE-MIT LICENSE-APACHE THIRD-PARTY-LICENSES.txt configs "$stage/$name"
mkdir "$stage/$name/completions"
for shell in bash elvish fish powershell zsh; do
    "$binary" completions "$shell" >"$stage/$name/completions/tinderbox.$shell"
done
"$binary" man --output "$stage/$name/man1" 2>/dev/null
python scripts/release/pack.py archive "$stage/$name" "$output/$name.tar.gz"
cp "$stage"/wheel/*.whl "$output"
wheel=$(basename "$stage"/wheel/*.whl)
python scripts/release/pack.py sums "$output" "$name.tar.gz" "$wheel"
du -h "$binary" "$output/$name.tar.gz" "$output/$wheel"

if $is_linux; then
    newest=$(objdump -T "$binary" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
    [[ $(printf '%s\n' "$newest" GLIBC_2.28 | sort -V | tail -n 1) = GLIBC_2.28 ]] || { echo "it needs $newest" >&2; exit 1; }
    scripts/release/check_archive.sh "$output/$name.tar.gz"
    scripts/release/check_wheel.sh "$output/$wheel"
fi
echo "packed: $output/$name.tar.gz, $output/$wheel"
