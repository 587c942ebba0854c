#!/usr/bin/env bash
# Trains on four simulated machines: a network namespace for each, and a switch with a limited rate and a delay
# (scripts/network/switch.py, since some kernels lack tc's netem). Needs root, MPI and
# Python.
#
#     scripts/fetch_data.sh shakespeare
#     cargo build --release --features mpi
#     scripts/simulate_network.sh                          # communication of a step, and the time of its bytes
#     scripts/simulate_network.sh curve OUT.tsv            # loss over tokens and time, for `step` and `local`
#
# Run nothing else meanwhile. Environment variables:
#
#     CONFIG     configs/shakespeare-nanogpt.toml
#     RATES      Mbit/s of the networks: "1000 100"
#     DELAY      milliseconds from machine to machine: 1
#     RANKS      4
#     STEPS      steps of a measurement; 20; of a curve, 600
#     SYNCS      the curves: "step local-1 local-10 local-50", the last three with their local steps
#     SETTINGS   further settings of the runs, such as "model.n_layers=2"
#     PYTHON     python3
#     TINDERBOX  target/release/tinderbox, built with the feature `mpi`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=${1:-communication}
config=${CONFIG:-configs/shakespeare-nanogpt.toml}
read -ra rates <<<"${RATES:-1000 100}"
read -ra settings <<<"${SETTINGS:-}"
delay=${DELAY:-1}
ranks=${RANKS:-4}
python=${PYTHON:-python3}
tinderbox=$(realpath "${TINDERBOX:-target/release/tinderbox}")

fail() {
    echo "simulate_network.sh: $1" >&2
    echo "  hint: $2" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || fail "namespaces need root" "sudo"
[ -c /dev/net/tun ] || fail "there is no /dev/net/tun" "modprobe tun"
for program in ip mpirun; do
    command -v "$program" >/dev/null || fail "there is no $program" "apt-get install iproute2 libopenmpi-dev openmpi-bin"
done
[ -x "$tinderbox" ] || fail "there is no \`$tinderbox\`" "cargo build --release --features mpi"
case $what in communication) ;; curve) out=${2:?the file to write} ;; *) fail "\`$what\`?" "communication or curve" ;; esac

work=$(mktemp -d)
export NETWORK_WORK=$work OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
switch= launcher=
close_network() {
    # The launcher ends the ranks while there is a network.
    [ -z "$launcher" ] || { kill "$launcher" && wait "$launcher"; } 2>/dev/null || true
    [ -z "$switch" ] || kill "$switch" 2>/dev/null || true
    for ((i = 1; i <= ranks; i++)); do
        ip netns del "tinderbox$i" 2>/dev/null || true
    done
    switch= launcher=
}
trap 'exit 1' INT TERM
trap 'close_network; rm -rf "$work"' EXIT

# open_network RATE: Mbit/s.
open_network() {
    local taps=()
    for ((i = 1; i <= ranks; i++)); do
        taps+=("tinderbox$i")
    done
    "$python" scripts/network/switch.py "$1" "$delay" "${taps[@]}" >"$work/switch" &
    switch=$!
    until grep -q ready "$work/switch" 2>/dev/null; do
        kill -0 "$switch" || fail "the switch did not start" "see above"
        sleep 0.1
    done
    for ((i = 1; i <= ranks; i++)); do
        ip netns add "tinderbox$i"
        ip link set "tinderbox$i" netns "tinderbox$i" address "02:00:00:00:00:$(printf %02x "$i")"
        ip -n "tinderbox$i" addr add "10.77.0.$i/24" dev "tinderbox$i"
        ip -n "tinderbox$i" link set lo up
        ip -n "tinderbox$i" link set "tinderbox$i" up
    done
}

# train ARGS...: ranks of one thread, each on a machine of its own if there is a network.
train() {
    local hosts= launch=(mpirun)
    if [ -n "$switch" ]; then
        for ((i = 1; i <= ranks; i++)); do
            hosts+="${hosts:+,}10.77.0.$i:1"
        done
        # The first machine is the launcher's own.
        launch=(scripts/network/agent.sh 10.77.0.1 exec mpirun --host "$hosts"
            --mca plm_rsh_agent "$PWD/scripts/network/agent.sh" --mca btl tcp,self
            --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24)
    fi
    "${launch[@]}" -n "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
        -x RAYON_NUM_THREADS=1 -x HOME "$tinderbox" train "$config" --device cpu "$@" >"$work/json" 2>"$work/stderr" &
    launcher=$!
    wait "$launcher" || { tail -30 "$work/stderr" >&2; exit 1; }
    launcher=
}

set_all() {
    printf -- '--set %s ' "$@" ${settings[@]+"${settings[@]}"}
}

# measure DTYPE: the median of a step's communication, after the first few steps, which open connections.
measure() {
    # shellcheck disable=SC2046
    train --run-dir "$work/run" --overwrite --json $(set_all "train.max_steps=${STEPS:-20}" train.eval_interval=0 \
        train.checkpoint_interval=0 train.sample_tokens=0 train.eval_batches=1 train.log_interval=1 \
        "distributed.gradient_dtype=$1")
    measured=$("$python" - "$work/run/timings.jsonl" <<'PYTHON'
import json, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
times = [line["communication_share"] * line["median_step_ms"] for line in lines if "communication_share" in line]
print(f"{statistics.median(times[5:]):.1f}")
PYTHON
    )
}

communication() {
    local rate dtype measured wire
    printf '%-14s %-6s %22s %22s %8s\n' network dtype "measured, ms per step" "bytes / bandwidth, ms" ratio
    for dtype in f32 bf16; do
        # The ranks' own computation for an exchange, on cores that they share, unlike machines.
        measure "$dtype"
        printf '%-14s %-6s %22.1f\n' "shared memory" "$dtype" "$measured"
    done
    for rate in "${rates[@]}"; do
        open_network "$rate"
        for dtype in f32 bf16; do
            measure "$dtype"
            # shellcheck disable=SC2046
            wire=$("$tinderbox" plan "$config" --device cpu --no-measure --json --ranks "$ranks" \
                $(set_all "distributed.gradient_dtype=$dtype") | "$python" -c \
                "import json, sys; print(json.load(sys.stdin)['distributed']['step']['bytes'] * 8 / ($rate * 1e3))")
            printf '%-14s %-6s %22.1f %22.1f %8.2f\n' "$rate Mbit/s" "$dtype" "$measured" "$wire" \
                "$(awk "BEGIN { print $measured / $wire }")"
        done
        close_network
    done
}

curve() {
    local steps=${STEPS:-600} rate name
    printf 'network\tsync\tstep\ttokens\twall_s\tval_loss\n' >"$out"
    for rate in "${rates[@]}"; do
        open_network "$rate"
        for name in ${SYNCS:-step local-1 local-10 local-50}; do
            local sync=(distributed.sync=step)
            case $name in
                local-1) sync=(distributed.sync=local distributed.local_steps=1 distributed.outer_learning_rate=1 distributed.outer_momentum=0) ;;
                local-*) sync=(distributed.sync=local "distributed.local_steps=${name#local-}" distributed.outer_momentum=0.5) ;;
            esac
            # shellcheck disable=SC2046
            train --run-dir "$work/run" --overwrite --json $(set_all "${sync[@]}" "train.max_steps=$steps" \
                "train.eval_interval=$((steps / 6))" train.checkpoint_interval=0 train.sample_tokens=0 \
                "train.log_interval=$((steps / 6))")
            "$python" - "$work/run" "$rate Mbit/s" "$name" >>"$out" <<'PYTHON'
import json, sys
run, network, name = sys.argv[1:]
read = lambda log: [json.loads(line) for line in open(f"{run}/{log}")]
wall = {line["step"]: line["wall_s"] for line in read("timings.jsonl") if "median_step_ms" in line}
for line in read("metrics.jsonl"):
    if "val_loss_estimate" in line:
        step = line["step"]
        print(network, name, step, line["tokens"], f"{wall[step]:.1f}", f"{line['val_loss_estimate']:.4f}", sep="\t")
PYTHON
        done
        close_network
    done
    echo "wrote $out"
}

"$what"
