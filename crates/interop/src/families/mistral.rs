//! Mistral: like Llama, without biases; its sliding windows are not supported here.
//!
//! Source: Jiang et al. 2023, "Mistral 7B".

use serde_json::Value;

use super::llama::{self, LlamaJson};
use super::{Family, Transformers};
use crate::hf::{ConfigJson, Key};
use tinderbox_train::config::ModelConfig;

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    nearest: |config| ModelConfig { bias: false, qkv_bias: false, ..llama::nearest(config) },
    heads_divide_width: false,
    hf: Transformers { class: "MistralForCausalLM", keys: || llama::keys(&CONFIG_JSON), ..llama::FAMILY.hf },
    ..llama::FAMILY
};

const CONFIG_JSON: LlamaJson = LlamaJson {
    n_kv_heads: |_| 8,
    windows: &[Key::Read(check_windows), Key::Written("sliding_window", |_| Value::Null)],
    bias: llama::NO_BIAS,
    ..llama::CONFIG_JSON
};

/// Reports a window that restricts attention.
fn check_windows(keys: &mut ConfigJson<'_>, model: &mut ModelConfig) {
    let context_length = model.context_length;
    let window = if keys.has("sliding_window") { keys.get("sliding_window").cloned() } else { Some(4096.into()) };
    let window = window.filter(|window| window.as_u64().is_none_or(|window| window < context_length as u64));
    if let Some(window) = window {
        let supported = format!("null is supported, or at least max_position_embeddings = {context_length}");
        keys.problem("sliding_window", &window, &supported);
    }
}
