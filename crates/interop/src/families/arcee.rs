//! Arcee: like Llama, with squared `ReLU` instead of SwiGLU.
//!
//! Source: Arcee AI 2025, "Announcing the Arcee Foundation Model family" (AFM-4.5B).

use super::llama::{self, LlamaJson};
use super::{Family, LlamaCpp, Transformers};
use tinderbox_model::config::{MlpKind, ModelConfig};

pub(super) const FAMILY: Family = Family {
    name: "arcee",
    closest_config: |config| ModelConfig {
        mlp: MlpKind::ReluSquared,
        qkv_bias: config.bias,
        ..llama::closest_config(config)
    },
    hf: Transformers { class: "ArceeForCausalLM", keys: || llama::keys(&CONFIG_JSON), ..llama::FAMILY.hf },
    gguf: Some(LlamaCpp {
        architecture: "arcee",
        write: |config| match config.bias {
            true => Err("model.bias = true: llama.cpp knows no biases in the family arcee".to_owned()),
            false => (llama::GGUF.write)(config),
        },
        ..llama::GGUF
    }),
    ..llama::FAMILY
};

const CONFIG_JSON: LlamaJson =
    LlamaJson { norm_eps: 1e-5, activations: &[("relu2", MlpKind::ReluSquared)], ..llama::CONFIG_JSON };
