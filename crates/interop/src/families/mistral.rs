//! Mistral: like Llama, without biases; its sliding windows are not supported here.
//!
//! Source: Jiang et al. 2023, "Mistral 7B".

use serde_json::json;

use super::llama::{self, LlamaJson};
use super::{Family, Transformers};
use crate::hf::ConfigJson;
use tinderbox_train::config::ModelConfig;

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    nearest: |config| ModelConfig { bias: false, qkv_bias: false, ..llama::nearest(config) },
    heads_divide_width: false,
    hf: Transformers {
        class: "MistralForCausalLM",
        read: |family, keys| llama::read(family, keys, &CONFIG_JSON),
        write: |model| llama::write(model, &CONFIG_JSON, json!({ "sliding_window": null })),
        ..llama::FAMILY.hf
    },
    ..llama::FAMILY
};

const CONFIG_JSON: LlamaJson =
    LlamaJson { n_kv_heads: Some(8), check_windows, bias: llama::no_bias, ..llama::CONFIG_JSON };

/// Reports a window that restricts attention.
fn check_windows(keys: &mut ConfigJson<'_>, context_length: usize) {
    let window = if keys.has("sliding_window") { keys.get("sliding_window").cloned() } else { Some(4096.into()) };
    let window = window.filter(|window| window.as_u64().is_none_or(|window| window < context_length as u64));
    if let Some(window) = window {
        let supported = format!("null is supported, or at least max_position_embeddings = {context_length}");
        keys.problem("sliding_window", &window, &supported);
    }
}
