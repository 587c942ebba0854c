//! Gemma 2: norms before and after each layer, GEGLU, caps on scores and logits, windows in every second layer.
//!
//! Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size".

use serde_json::json;

use super::gemma3::{self, check_scale, embedding_scale, scale_of_27b};
use super::{Family, LlamaCpp, OwnKeys, Transformers, llama, plain, windows};
use crate::InteropError;
use crate::gguf::{ArchitectureKeys, Value};
use crate::hf::{ConfigJson, Key};
use tinderbox_model::config::{MlpKind, ModelConfig, NormKind, PositionKind};

pub(super) const FAMILY: Family = Family {
    name: "gemma2",
    closest_config: |config| ModelConfig {
        position: PositionKind::Rope,
        norm: NormKind::RmsNorm,
        mlp: MlpKind::Geglu,
        bias: false,
        qkv_bias: false,
        post_norm: true,
        attention_scale: config.attention_scale,
        attention_softcap: config.attention_softcap,
        attention_window: windows::of_one_size(config),
        embedding_scale: embedding_scale(config),
        logit_softcap: config.logit_softcap,
        ..plain(config)
    },
    hf: Transformers { class: "Gemma2ForCausalLM", keys, ..gemma3::FAMILY.hf },
    gguf: Some(LlamaCpp { architecture: "gemma2", read, write, ..gemma3::GGUF }),
    ..gemma3::FAMILY
};

/// The caps that transformers and llama.cpp take for granted.
const SCORES: f64 = 50.0;
const LOGITS: f64 = 30.0;
/// The size of windows that llama.cpp takes for granted.
const WINDOW: usize = 4096;
/// The number of layers of the model whose scores llama.cpp scales by the width and not by the heads.
const LAYERS_OF_27B: usize = 46;

fn keys() -> Vec<Key> {
    let own = [
        Key::Rope("rope_theta", None),
        Key::Read(|keys, model| {
            model.attention_softcap = read_cap(keys, "attn_logit_softcapping", SCORES);
            model.logit_softcap = read_cap(keys, "final_logit_softcapping", LOGITS);
        }),
        Key::Written("attn_logit_softcapping", |model| json!(model.attention_softcap)),
        Key::Written("final_logit_softcapping", |model| json!(model.logit_softcap)),
        // Every second layer has one, from the first on.
        Key::Read(|keys, model| windows::read_in_all_but(keys, model, WINDOW, is_global)),
    ];
    [gemma3::sizes(|_| 8192), own.to_vec()].concat()
}

/// A cap, which may be null: none.
fn read_cap(keys: &mut ConfigJson<'_>, key: &str, default: f64) -> Option<f64> {
    let is_none = keys.has(key) && keys.get(key).is_none();
    (!is_none).then(|| keys.number_or(key, default))
}

/// Whether a layer sees the whole context.
fn is_global(layer: usize) -> bool {
    !layer.is_multiple_of(2)
}

fn read(keys: &ArchitectureKeys<'_>, config: &mut ModelConfig) -> Result<(), InteropError> {
    let window = keys.optional_count("attention.sliding_window")?.unwrap_or(WINDOW);
    // A window as long as the context restricts nothing.
    let window = if window < config.context_length { window } else { 0 };
    config.attention_window = windows::repeated(&[window, 0]);
    config.embedding_scale = embedding_scale(config);
    config.attention_softcap = Some(keys.float("attn_logit_softcapping")?.unwrap_or(SCORES));
    config.logit_softcap = Some(keys.float("final_logit_softcapping")?.unwrap_or(LOGITS));
    config.attention_scale = scale_of_27b(config, LAYERS_OF_27B);
    Ok(())
}

fn write(config: &ModelConfig) -> Result<OwnKeys, String> {
    if !config.tie_embeddings {
        return Err("model.tie_embeddings = false: llama.cpp has no output layer of its own for this family".to_owned());
    }
    let window = windows::in_all_but(config, is_global)
        .ok_or("in llama.cpp every second layer of this family has no window, and all others have one")?;
    check_scale(config, scale_of_27b(config, LAYERS_OF_27B))?;
    let cap = |key: &str, cap: Option<f64>| cap.ok_or_else(|| format!("model.{key} is missing: llama.cpp has one"));
    let mut keys = (llama::GGUF.write)(config)?;
    // llama.cpp has windows in any case.
    keys.push(("attention.sliding_window", Value::count(if window > 0 { window } else { config.context_length })));
    keys.push(("attn_logit_softcapping", Value::f32(cap("attention_softcap", config.attention_softcap)?)));
    keys.push(("final_logit_softcapping", Value::f32(cap("logit_softcap", config.logit_softcap)?)));
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_cpp_has_no_output_layer() {
        let untied = ModelConfig { tie_embeddings: false, ..ModelConfig::default() };
        assert!(write(&untied).is_err_and(|why| why.contains("model.tie_embeddings = false")));
    }
}
