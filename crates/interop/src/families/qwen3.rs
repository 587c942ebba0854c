//! Qwen3: like Qwen2, with norms on queries and keys instead of biases.
//!
//! Source: Yang et al. 2025, "Qwen3 Technical Report".

use serde_json::json;

use super::llama::{self, LlamaJson};
use super::{Family, LlamaCpp, Transformers, qwen2};
use tinderbox_train::config::ModelConfig;

pub(super) const FAMILY: Family = Family {
    name: "qwen3",
    nearest: |config| ModelConfig { bias: false, qkv_bias: false, qk_norm: true, ..llama::nearest(config) },
    hf: Transformers {
        class: "Qwen3ForCausalLM",
        read: |family, keys| llama::read(family, keys, &CONFIG_JSON),
        write: |model| {
            llama::write(model, &CONFIG_JSON, json!({ "attention_bias": false, "use_sliding_window": false }))
        },
        ..llama::FAMILY.hf
    },
    gguf: Some(LlamaCpp { architecture: "qwen3", ..qwen2::GGUF }),
    ..qwen2::FAMILY
};

const CONFIG_JSON: LlamaJson = LlamaJson { head_dim: Some(128), ..qwen2::CONFIG_JSON };
