#!/usr/bin/env bash
# Updates the command outputs in the docs: runs the commands in ```console blocks, and replaces the output below each.
#
#     scripts/docs_output.sh                     # every page, with target/release/tinderbox; look at `git diff` then
#     scripts/docs_output.sh docs/lens.md        # one page
#     scripts/docs_output.sh --list              # lists the commands and what would be done
#     scripts/docs_output.sh --check             # changes nothing, and fails if any output would change
#
#     --binary PATH    another binary
#     --only PATTERN   only commands that match
#     --long           also commands that train or measure: minutes each, and other numbers on another machine
#
# Commands run in the repository, so they need the runs that they name: `tinderbox train configs/quickstart.toml` makes
# the one that most show. A block has a `$ ` before each command and a `\` at the end of a line that goes on. An output
# stays as it is if its run is missing, if its command changes files (`>`), and if it is not one of `tinderbox`: the
# examples' outputs are compared by the tests. One that was shortened, with a line `...`, is shortened as much again;
# with several such lines it stays as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

binary=target/release/tinderbox only=. mode=write long=false pages=()
while (($#)); do
    case $1 in
    --binary) binary=$2; shift ;;
    --only) only=$2; shift ;;
    --list | --check) mode=${1#--} ;;
    --long) long=true ;;
    -*) echo "unknown option $1" >&2; exit 2 ;;
    *) pages+=("$1") ;;
    esac
    shift
done
((${#pages[@]})) || pages=(README.md docs/*.md)
[[ $mode = list || -x $binary ]] || { echo "there is no $binary: cargo build --release" >&2; exit 1; }
binary=$(realpath -m "$binary")

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/bin"
ln -s "$binary" "$tmp/bin/tinderbox"

# why_kept COMMAND OLD_OUTPUT: why an output stays as it is; nothing if it is made again.
why_kept() {
    local run
    [[ $1 =~ ^(target/release/)?tinderbox\  ]] || { echo "not tinderbox"; return; }
    [[ $1 =~ $only ]] || { echo "not asked for"; return; }
    [[ $1 == *'>'* ]] && { echo "writes files"; return; }
    (($(grep -cxF '...' <<<"$2") > 1)) && { echo "shortened in several places"; return; }
    if ! $long && [[ $1 =~ tinderbox\ (train|bench|init) ]]; then echo "long"; return; fi
    for run in $(grep -oE 'runs/[A-Za-z0-9_-]+' <<<"$1"); do
        [[ -d $run ]] || { echo "there is no $run"; return; }
    done
}

# shorten OLD FILE: the lines of the file, without its middle if the old output lacks that: as many before and after.
shorten() {
    local before after
    before=$(grep -nxF '...' <<<"$1" | cut -d: -f1) || true
    [[ -n $before ]] || { cat "$2"; return; }
    after=$(($(printf '%s' "$1" | wc -l) - before))
    head -n $((before - 1)) "$2"
    echo ...
    ((after == 0)) || tail -n "$after" "$2"
}

status=0
for page in "${pages[@]}"; do
    : >"$tmp/page"
    command='' output='' in_block=false
    # The command at hand is complete: its output follows, old or new.
    flush() {
        [[ -n $command ]] || return 0
        local kept plain=${command//$'\\\n'/ }
        kept=$(why_kept "$plain" "$output")
        [[ $mode != list ]] || printf '%s: %s\n    %s\n' "$page" "${kept:-made again}" "$plain"
        if [[ -z $kept && $mode != list ]]; then
            echo "$page: $plain" >&2
            # A failure is an output too: some pages show errors.
            (PATH=$tmp/bin:$PATH bash -c "${plain//target\/release\/tinderbox/tinderbox}" >"$tmp/out" 2>&1 </dev/null) || true
            shorten "$output" "$tmp/out" >"$tmp/shown"
            output=$(cat "$tmp/shown")
            [[ -z $output ]] || output+=$'\n'
        fi
        printf '%s' "$output" >>"$tmp/page"
        command='' output=''
    }
    continues=false
    while IFS= read -r line || [[ -n $line ]]; do
        if ! $in_block; then
            [[ $line = '```console' ]] && in_block=true
        elif [[ $line = '```' ]]; then
            flush
            in_block=false
        elif $continues; then
            command+=$'\n'$line
            printf '%s\n' "$line" >>"$tmp/page"
            [[ $line == *\\ ]] || continues=false
            continue
        elif [[ $line == '$ '* ]]; then
            flush
            command=${line#'$ '}
            [[ $line == *\\ ]] && continues=true
            printf '%s\n' "$line" >>"$tmp/page"
            continue
        elif [[ -n $command ]]; then
            output+=$line$'\n'
            continue
        fi
        printf '%s\n' "$line" >>"$tmp/page"
    done <"$page"
    cmp -s "$page" "$tmp/page" && continue
    if [[ $mode = check ]]; then
        diff -u "$page" "$tmp/page" || status=1
    elif [[ $mode = write ]]; then
        cp "$tmp/page" "$page"
        echo "changed $page" >&2
    fi
done
exit "$status"
