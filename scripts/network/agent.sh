#!/usr/bin/env bash
# What mpirun starts instead of ssh: HOST COMMAND... runs the command on a machine of simulate_network.sh, a namespace.
set -euo pipefail
number=${1##*.}
shift
mkdir -p "$NETWORK_WORK/tmp$number"
exec ip netns exec "tinderbox$number" unshare --uts sh -c \
    "hostname machine$number; export TMPDIR='$NETWORK_WORK/tmp$number'; $*"
