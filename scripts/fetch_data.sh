#!/usr/bin/env bash
# Downloads a corpus that configs refer to and that is not part of the repository:
#
#     scripts/fetch_data.sh [shakespeare]    data/tinyshakespeare.txt, 1.1 MB, for configs/shakespeare-*.toml
#     scripts/fetch_data.sh tinystories      data/tinystories.txt, 2.2 GB, for configs/stories-15m.toml
#
# An intact existing file is kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "fetch_data.sh: $1" >&2
    echo "  hint: $2" >&2
    exit 1
}

[ $# -le 1 ] || fail "one corpus at a time, not: $*" "write: scripts/fetch_data.sh shakespeare|tinystories"

case ${1-shakespeare} in
    shakespeare)
        url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
        sha256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
        target=data/tinyshakespeare.txt
        ;;
    tinystories)
        # Eldan and Li 2023; the stories that GPT-4 wrote, at a fixed revision. Licence: CDLA-Sharing-1.0.
        revision=f54c09fd23315a6f9c86f9dc80f725de7d8f9c64
        url=https://huggingface.co/datasets/roneneldan/TinyStories/resolve/$revision/TinyStoriesV2-GPT4-train.txt
        sha256=6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443
        target=data/tinystories.txt
        ;;
    *)
        fail "there is no corpus \`$1\`" "write: scripts/fetch_data.sh shakespeare|tinystories"
        ;;
esac

sum() {
    if command -v sha256sum >/dev/null; then
        sha256sum "$1"
    elif command -v shasum >/dev/null; then
        shasum -a 256 "$1" # macOS
    else
        fail "neither sha256sum nor shasum is installed" "install coreutils"
    fi | cut -d ' ' -f 1
}

if [ -e "$target" ]; then
    found=$(sum "$target")
    if [ "$found" = "$sha256" ]; then
        echo "$target is there already"
        exit 0
    fi
    fail "$target is there, but its sha256 is $found, not $sha256" "remove or rename it, then start again"
fi

# The file gets its name only when it is whole and right, so that a broken download is never used.
mkdir -p data
part=$(mktemp "$target.XXXXXX")
trap 'rm -f "$part"' EXIT

if command -v curl >/dev/null; then
    download=(curl --fail --silent --show-error --location --retry 3 --output "$part" "$url")
elif command -v wget >/dev/null; then
    download=(wget --quiet --tries 3 --output-document "$part" "$url")
else
    fail "neither curl nor wget is installed" "install one of them, or save $url as $target yourself"
fi
"${download[@]}" || fail "cannot download $url" "check the network, or save it as $target yourself"

found=$(sum "$part")
[ "$found" = "$sha256" ] ||
    fail "the download's sha256 is $found, not $sha256" "a proxy may have changed it; try another network"
chmod 644 "$part"
mv "$part" "$target"
echo "wrote $target"
