#!/bin/sh
# Prints a large text for measurements: lines of words from data/stories.txt in random order, with a new word in every third
# line, as large texts have them. The same size gives the same text with the same awk.
#
#     scripts/make_text.sh 1024 > /tmp/large.txt    # MiB
set -eu
if [ $# -ne 1 ]; then
    echo "usage: scripts/make_text.sh MIB" >&2
    exit 2
fi
LC_ALL=C awk -v mib="$1" '
    { for (i = 1; i <= NF; i++) words[n++] = $i }
    END {
        srand(1)
        for (k = 0; k < 20000; k++) {
            line = words[int(n * rand())]
            for (i = 0; i < 5 + 30 * rand(); i++) line = line " " words[int(n * rand())]
            lines[k] = line
        }
        while (bytes < mib * 1048576) {
            line = lines[int(20000 * rand())]
            if (rand() < 1 / 3) line = line " w" int(1e9 * rand())
            print line
            bytes += length(line) + 1
        }
    }' "$(dirname "$0")/../data/stories.txt"
