//! Qwen3: like Qwen2, with norms on queries and keys instead of biases.
//!
//! Source: Yang et al. 2025, "Qwen3 Technical Report".

use super::llama::{self, LlamaJson};
use super::{Family, LlamaCpp, Transformers, qwen2, windows};
use crate::hf::Key;
use tinderbox_model::config::ModelConfig;

pub(super) const FAMILY: Family = Family {
    name: "qwen3",
    closest_config: |config| ModelConfig {
        bias: false,
        qkv_bias: false,
        qk_norm: true,
        attention_window: windows::of_one_size(config),
        ..llama::closest_config(config)
    },
    hf: Transformers { class: "Qwen3ForCausalLM", keys: || llama::keys(&CONFIG_JSON), ..llama::FAMILY.hf },
    gguf: Some(LlamaCpp { architecture: "qwen3", ..qwen2::GGUF }),
    ..qwen2::FAMILY
};

const CONFIG_JSON: LlamaJson = LlamaJson {
    head_dim: &[Key::SizeOr("head_dim", |model| &mut model.head_dim, |_| 128)],
    bias: &[Key::Only("attention_bias", false), Key::Expected("mlp_bias", false)],
    ..qwen2::CONFIG_JSON
};
