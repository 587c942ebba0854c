#!/usr/bin/env bash
# The tests that take minutes and are left out of the gate: hundreds of kills while a run saves, and the like.
#
#   scripts/soak.sh [FILTER]    only those whose names contain FILTER
#
# docs/reliability.md says what they hold.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null # nothing here may ask a question

# One after another: several at once would wait for each other's disk.
cargo test --release --locked --test it -- --ignored --test-threads 1 "$@"
