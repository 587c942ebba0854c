//! Granite 3: like Llama, with scales on embeddings, scores, the residual stream and logits.
//!
//! Source: IBM Granite Team 2024, "Granite 3.0 Language Models".

use super::llama::{self, LlamaJson};
use super::{Family, LlamaCpp, Transformers};
use crate::gguf::Value;
use crate::hf::Key;
use tinderbox_model::config::ModelConfig;

pub(super) const FAMILY: Family = Family {
    name: "granite",
    closest_config: |config| ModelConfig {
        qkv_bias: config.bias,
        head_dim: config.d_model / config.n_heads,
        attention_scale: config.attention_scale,
        embedding_scale: config.embedding_scale,
        residual_scale: config.residual_scale,
        logit_scale: config.logit_scale,
        ..llama::closest_config(config)
    },
    hf: Transformers {
        class: "GraniteForCausalLM",
        keys: || {
            let scales = [
                Key::NumberOr("embedding_multiplier", |model| &mut model.embedding_scale, 1.0),
                Key::NumberOr("residual_multiplier", |model| &mut model.residual_scale, 1.0),
                Key::Read(|keys, model| {
                    model.attention_scale = Some(keys.number_or("attention_multiplier", 1.0));
                    model.logit_scale = 1.0 / keys.number_or("logits_scaling", 1.0);
                }),
                Key::Written("attention_multiplier", |model| model.attention_scale().into()),
                Key::Written("logits_scaling", |model| (1.0 / model.logit_scale).into()),
            ];
            [llama::keys(&CONFIG_JSON), scales.to_vec()].concat()
        },
        ..llama::FAMILY.hf
    },
    gguf: Some(LlamaCpp {
        architecture: "granite",
        read: |keys, config| {
            config.attention_scale = keys.float("attention.scale")?.filter(|scale| *scale != 0.0);
            let scale = |key| keys.float(key).map(|scale| scale.filter(|scale| *scale != 0.0).unwrap_or(1.0));
            config.embedding_scale = scale("embedding_scale")?;
            config.residual_scale = scale("residual_scale")?;
            config.logit_scale = 1.0 / scale("logit_scale")?;
            Ok(())
        },
        write: |config| {
            Ok(vec![
                ("attention.scale", Value::f32(config.attention_scale())),
                ("embedding_scale", Value::f32(config.embedding_scale)),
                ("residual_scale", Value::f32(config.residual_scale)),
                ("logit_scale", Value::f32(1.0 / config.logit_scale)),
            ])
        },
        has_scales: true,
        ..llama::GGUF
    }),
    ..llama::FAMILY
};

const CONFIG_JSON: LlamaJson = LlamaJson { head_dim: &[llama::EQUAL_HEADS], ..llama::CONFIG_JSON };
