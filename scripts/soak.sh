#!/usr/bin/env bash
# Runs the tests that take minutes and are not part of the gate, part by part.
#
#   scripts/soak.sh                     all parts
#   scripts/soak.sh kills power_loss    some of them
#
#   fuzz           50 times as many damaged inputs as in the gate: 1,000 to 20,000 of each kind
#   kills          a run is killed 200 times while it saves, and 96 fine-tunings while they are compared with their base
#   pairs          runs that together have every pair of options: resumed, measured, exported, generated from, planned
#   resume         200 runs of such options are killed up to twice and resumed
#   together       two exports to one place and two imports into one run at once, 200 rounds each
#   plans          2,000 configs with extreme values are planned or refused
#   disks          disks of 60 sizes fill up
#   permissions    files and folders become unreadable or read-only
#   power_loss     the power fails after each change of a file
#   interrupts     Ctrl-C ends a run within five seconds in every phase; nothing else should run meanwhile
#   templates      1,000 damaged chat templates are rendered; none ends the server or delays it, and hostile ones are
#                  refused by every command
#   tokenizers     500 mutated tokenizers are opened or refused
#   schemas        1,000 hostile JSON schemas are refused or take bounded work; other completions go on beside them
#   unread         answers that nobody reads, whole and streamed, take less than 200 MiB
#   load           the largest requests, and 600 clients that send nothing or half, leave the server reachable
#   records        300,000 records of fine-tuning, one of 40 MB and one of 4,000 messages take little memory
#   memory         16 short completions of SmolLM2-135M's shape in int8 take less than 400 MiB
#   endurance      20,000 steps on flex keep their memory
#   endurance_gpu  2,000 steps on wgpu keep their memory
#
# Each part prints its figures and its time. docs/reliability.md says what the tests hold.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null # nothing here may ask a question

# tests FILTER...: several at once would wait for each other's disk.
tests() {
    cargo test --release --locked --test it -- --nocapture --test-threads 1 "$@"
}

run() {
    case $1 in
    fuzz) TINDERBOX_FUZZ_TIMES=${TINDERBOX_FUZZ_TIMES:-50} tests damage:: ;;
    kills) tests --ignored two_hundred_kills_keep_saved_checkpoints ninety_six_killed_comparisons ;;
    pairs) tests --ignored runs_of_all_pairs ;;
    resume) tests --ignored two_hundred_killed_runs ;;
    together) tests --ignored two_hundred_concurrent_exports ;;
    plans) tests --ignored two_thousand_random_configs ;;
    disks) tests --ignored full_disk_of_any_size ;;
    permissions) tests --ignored lost_permissions_keep ;;
    power_loss) tests --ignored power_loss:: ;;
    interrupts) tests --ignored every_phase_ends_soon ;;
    templates) tests --include-ignored serve::templates hostile::every_command ;;
    tokenizers) tests --ignored five_hundred_mutated_tokenizers ;;
    schemas) tests --ignored thousand_hostile_schemas ;;
    unread) tests --ignored unread_answers_take_bounded_memory ;;
    load) tests --include-ignored serve::load --skip short_completions --skip unread_answers_take ;;
    records) tests --ignored three_hundred_thousand_records ;;
    memory) tests --ignored short_completions_take_little_memory ;;
    endurance) tests --ignored twenty_thousand_steps ;;
    endurance_gpu) tests --ignored two_thousand_gpu_steps ;;
    esac
}

all=(fuzz kills pairs resume together plans disks permissions power_loss interrupts templates tokenizers schemas unread
    load records memory endurance endurance_gpu)
(($#)) || set -- "${all[@]}"
for part in "$@"; do
    [[ " ${all[*]} " == *" $part "* ]] || { echo "there is no part \`$part\`: ${all[*]}" >&2; exit 2; }
done
for part in "$@"; do
    printf '\n=== %s\n' "$part"
    start=$SECONDS
    run "$part"
    printf '=== %s: %d:%02d minutes\n' "$part" $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60))
done
