#!/usr/bin/env python3
"""Serves a GGUF file by llama.cpp until its standard input ends; prints the address. See `common.LlamaCpp`.

    llama_server.py FILE CONTEXT THREADS [TEXTS AT ONCE [ADAPTER]]
"""

import os
import sys

import xllamacpp

path, n_ctx, n_threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path = path
params.n_parallel = int(sys.argv[4]) if len(sys.argv) > 4 else 1
params.n_ctx = n_ctx * params.n_parallel
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
if len(sys.argv) > 5:
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(sys.argv[5])]
params.port = 0
params.verbosity = 0
params.ui = False
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)  # its threads do not end by themselves
