#!/usr/bin/env bash
# The gate that every change must pass: format, licences and sources of dependencies, lints, types of every backend, build,
# tests (with MPI where it is installed), docs.
#
# It stops at the first failing stage, and prints the minutes of each stage. With TINDERBOX_REQUIRE_WGPU=1 the wgpu tests
# fail instead of being skipped without an adapter, and with TINDERBOX_REQUIRE_BROWSER=1 the page tests without Chromium.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null # nothing here may ask a question

names=()
seconds=()

table() {
    local i total=0
    echo
    printf '%-28s %7s\n' stage minutes
    for i in "${!names[@]}"; do
        printf '%-28s %4d:%02d\n' "${names[i]}" $((seconds[i] / 60)) $((seconds[i] % 60))
        total=$((total + seconds[i]))
    done
    printf '%-28s %4d:%02d\n' total $((total / 60)) $((total % 60))
}

# stage NAME COMMAND...: runs the command, and keeps its time.
stage() {
    local name=$1 start=$SECONDS status=0 elapsed
    shift
    printf '\n=== %s: %s\n' "$name" "$*"
    "$@" || status=$?
    elapsed=$((SECONDS - start))
    names+=("$name")
    seconds+=("$elapsed")
    printf '=== %s: %d:%02d minutes\n' "$name" $((elapsed / 60)) $((elapsed % 60))
    if [ "$status" -ne 0 ]; then
        table
        printf '\nfailed: %s (exit code %d)\n' "$name" "$status" >&2
        exit "$status"
    fi
}

cargo --version
echo "$(getconf _NPROCESSORS_ONLN) cores, target folder ${CARGO_TARGET_DIR:-target}"

# One profile throughout. Clippy, check and doc share their view of the dependencies, build and test theirs.
stage format cargo fmt --check
stage "supply chain" scripts/check_supply_chain.sh --if-there
stage clippy cargo clippy --release --all-targets --locked -- -D warnings
stage "types: flex alone" cargo check --release --no-default-features --features flex --locked
stage "types: kernels alone" cargo check --release --package tinderbox-kernels --locked
# DOCS_RS tells the build script of the `cuda` backend not to download LLVM, which types do not need.
stage "types: every backend" env DOCS_RS=1 cargo check --release --features vulkan,metal,cuda --locked
stage build cargo build --release --locked
stage test cargo test --release --locked
# A feature of its own, since it needs MPI's library and libclang.
if command -v mpirun >/dev/null && command -v mpicc >/dev/null; then
    stage "clippy: mpi" cargo clippy --release --all-targets --features mpi --locked -- -D warnings
    stage "test: mpi" cargo test --release --features mpi --locked --test it -- distributed::
else
    printf '\n=== test: mpi: SKIPPED, there is no mpirun or no mpicc (apt-get install libopenmpi-dev openmpi-bin libclang-dev)\n'
fi
stage docs env RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps --locked

table
printf '\nall checks passed\n'
