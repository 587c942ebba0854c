#!/usr/bin/env bash
# Downloads tiny Shakespeare, the corpus of configs/shakespeare-*.toml, to data/tinyshakespeare.txt.
# A file that is already there and right is left alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
sha256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
target=data/tinyshakespeare.txt

fail() {
    echo "fetch_data.sh: $1" >&2
    echo "  hint: $2" >&2
    exit 1
}

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
