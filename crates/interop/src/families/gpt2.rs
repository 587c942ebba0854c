//! GPT-2: learned positions, layer norm, GELU, biases everywhere.
//!
//! Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

use serde_json::json;

use super::{Family, LlamaCpp, Transformers, plain};
use crate::InteropError;
use crate::gguf::{self, ArchitectureKeys, Value};
use crate::hf::ConfigJson;
use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;
use tinderbox_train::config::{MlpKind, ModelConfig, NormKind, PositionKind};

pub(super) const FAMILY: Family = Family {
    name: "gpt2",
    nearest,
    has_all_biases: true,
    heads_divide_width: false,
    hf: Transformers {
        class: "GPT2LMHeadModel",
        read,
        write: |model| {
            json!({
                "n_positions": model.context_length, "n_embd": model.d_model, "n_layer": model.n_layers,
                "n_head": model.n_heads, "n_inner": model.d_ff, "activation_function": activation(model),
                "layer_norm_epsilon": model.norm_eps, "scale_attn_weights": true,
                "scale_attn_by_inverse_layer_idx": false, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
            })
        },
        tensors: TensorNames {
            qkv: QkvNames::Fused("transformer.h.{}.attn.c_attn"),
            is_conv: true,
            others: &[
                (Role::TokenEmbedding, "transformer.wte"),
                (Role::PositionEmbedding, "transformer.wpe"),
                (Role::AttentionNorm, "transformer.h.{}.ln_1"),
                (Role::AttentionOutput, "transformer.h.{}.attn.c_proj"),
                (Role::MlpNorm, "transformer.h.{}.ln_2"),
                (Role::Up, "transformer.h.{}.mlp.c_fc"),
                (Role::Down, "transformer.h.{}.mlp.c_proj"),
                (Role::FinalNorm, "transformer.ln_f"),
                (Role::Output, "lm_head"),
            ],
        },
    },
    gguf: Some(LlamaCpp {
        architecture: "gpt2",
        read: |keys, config| read_gelu(keys, config, MlpKind::GeluTanh),
        write: |config| Ok(vec![gelu_key(config)]),
        tensors: TensorNames { qkv: gguf::FUSED_QKV, ..gguf::TENSORS },
        has_rope_freqs: false,
        has_tied_output: false,
    }),
};

/// The names of activations, the default first.
pub(super) const ACTIVATIONS: [(&str, MlpKind); 4] = [
    ("gelu_new", MlpKind::GeluTanh),
    ("gelu_pytorch_tanh", MlpKind::GeluTanh),
    ("gelu_fast", MlpKind::GeluTanh),
    ("gelu", MlpKind::Gelu),
];

/// The nearest config of GPT-2 and its descendants.
pub(super) fn nearest(config: &ModelConfig) -> ModelConfig {
    ModelConfig {
        position: PositionKind::Learned,
        norm: NormKind::LayerNorm,
        mlp: if config.mlp == MlpKind::GeluTanh { MlpKind::GeluTanh } else { MlpKind::Gelu },
        n_kv_heads: config.n_heads,
        head_dim: config.d_model / config.n_heads,
        ..plain(config)
    }
}

fn read(family: &Family, keys: &mut ConfigJson<'_>) -> ModelConfig {
    keys.only("scale_attn_weights", true);
    keys.only("scale_attn_by_inverse_layer_idx", false);
    let (d_model, n_heads) = (keys.size("n_embd"), keys.size("n_head"));
    ModelConfig {
        context_length: keys.size("n_positions"),
        d_model,
        n_layers: keys.size("n_layer"),
        n_heads,
        n_kv_heads: n_heads,
        head_dim: keys.head_dim(("n_embd", d_model), ("n_head", n_heads)),
        d_ff: keys.size_or("n_inner", d_model.saturating_mul(4)),
        norm_eps: keys.number_or("layer_norm_epsilon", 1e-5),
        mlp: keys.one_of("activation_function", &ACTIVATIONS),
        bias: true,
        qkv_bias: true,
        tie_embeddings: keys.flag_or("tie_word_embeddings", true),
        ..family.fixed()
    }
}

/// The name of a kind of GELU, in a `config.json` and in a GGUF file.
pub(super) fn activation(model: &ModelConfig) -> &'static str {
    if model.mlp == MlpKind::GeluTanh { "gelu_new" } else { "gelu" }
}

/// The GGUF key of the kind of GELU, which llama.cpp does not tell apart.
pub(super) fn gelu_key(model: &ModelConfig) -> (&'static str, Value) {
    ("hidden_activation", Value::string(activation(model)))
}

/// Reads the key that [`gelu_key`] writes.
pub(super) fn read_gelu(
    keys: &ArchitectureKeys<'_>,
    config: &mut ModelConfig,
    default: MlpKind,
) -> Result<(), InteropError> {
    config.mlp = match keys.string("hidden_activation")? {
        None => default,
        Some("gelu") => MlpKind::Gelu,
        Some("gelu_new") => MlpKind::GeluTanh,
        Some(other) => return Err(keys.unsupported("hidden_activation", &format!("{other:?}"), "gelu, gelu_new")),
    };
    Ok(())
}
