#!/usr/bin/env bash
# Where the dependencies come from, and under which licences.
#
#     scripts/check_supply_chain.sh              # everything; needs cargo-deny: cargo install --locked cargo-deny
#     scripts/check_supply_chain.sh --sources    # only that every crate is one of crates.io with a checksum: part of the gate
#
# Run it before a release, and after a change of Cargo.lock. It is not part of the gate as a whole: cargo-deny has
# hundreds of dependencies of its own, whose compilation would take longer on a bare machine than all other tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Every [[package]] but those of this workspace has the registry as its source, and a checksum.
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

[[ ${1:-} = --sources ]] && exit
cargo deny --version >/dev/null 2>&1 ||
    { echo "there is no cargo-deny: cargo install --locked cargo-deny" >&2; exit 1; }
cargo deny --locked check licenses bans sources
