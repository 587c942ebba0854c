//! `OLMo` 2: like Llama, with norms after each layer instead of before it, and norms on queries and keys, each over all
//! heads.
//!
//! Source: `OLMo` Team 2024, "2 `OLMo` 2 Furious".

use super::llama::{self, LlamaJson};
use super::{Family, LlamaCpp, Transformers};
use crate::gguf;
use crate::hf::Key;
use tinderbox_model::config::{MlpKind, ModelConfig};

pub(super) const FAMILY: Family = Family {
    name: "olmo2",
    closest_config: |config| ModelConfig {
        bias: false,
        qkv_bias: false,
        qk_norm: true,
        qk_norm_across_heads: true,
        pre_norm: false,
        post_norm: true,
        head_dim: config.d_model / config.n_heads,
        ..llama::closest_config(config)
    },
    hf: Transformers { class: "Olmo2ForCausalLM", keys: || llama::keys(&CONFIG_JSON), ..llama::FAMILY.hf },
    gguf: Some(LlamaCpp {
        architecture: "olmo2",
        tensors: gguf::TENSORS,
        has_rope_freqs: false,
        has_tied_output: true,
        ..llama::GGUF
    }),
    ..llama::FAMILY
};

const CONFIG_JSON: LlamaJson = LlamaJson {
    head_dim: &[llama::EQUAL_HEADS],
    norm_eps: 1e-5,
    activations: &[("silu", MlpKind::Swiglu)],
    bias: &[Key::Only("attention_bias", false)],
    ..llama::CONFIG_JSON
};
