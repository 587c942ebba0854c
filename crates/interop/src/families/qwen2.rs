//! Qwen2: like Llama, with biases on queries, keys and values.
//!
//! Source: Yang et al. 2024, "Qwen2 Technical Report".

use super::llama::{self, LlamaJson};
use super::{Family, LlamaCpp, Transformers, windows};
use crate::gguf;
use tinderbox_model::config::ModelConfig;

pub(super) const FAMILY: Family = Family {
    name: "qwen2",
    closest_config: |config| ModelConfig {
        bias: false,
        qkv_bias: true,
        attention_window: windows::of_one_size(config),
        ..llama::closest_config(config)
    },
    heads_divide_width: false,
    hf: Transformers { class: "Qwen2ForCausalLM", keys: || llama::keys(&CONFIG_JSON), ..llama::FAMILY.hf },
    gguf: Some(GGUF),
    ..llama::FAMILY
};

pub(super) const CONFIG_JSON: LlamaJson =
    LlamaJson { windows: windows::IN_SOME_LAYERS, bias: llama::NO_BIAS, ..llama::CONFIG_JSON };

/// The architecture in llama.cpp, where `RoPE` rotates the halves of a head, as it does here.
pub(super) const GGUF: LlamaCpp =
    LlamaCpp { architecture: "qwen2", tensors: gguf::TENSORS, has_rope_freqs: false, ..llama::GGUF };
