//! Mistral: like Llama, without biases, and with sliding windows in all layers or none.
//!
//! Source: Jiang et al. 2023, "Mistral 7B".

use super::llama::{self, LlamaJson};
use super::{Family, Transformers, windows};
use tinderbox_model::config::ModelConfig;

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    closest_config: |config| ModelConfig {
        bias: false,
        qkv_bias: false,
        attention_window: windows::in_all_layers(config),
        ..llama::closest_config(config)
    },
    heads_divide_width: false,
    hf: Transformers { class: "MistralForCausalLM", keys: || llama::keys(&CONFIG_JSON), ..llama::FAMILY.hf },
    ..llama::FAMILY
};

const CONFIG_JSON: LlamaJson =
    LlamaJson { n_kv_heads: |_| 8, windows: windows::IN_ALL_LAYERS, bias: llama::NO_BIAS, ..llama::CONFIG_JSON };
