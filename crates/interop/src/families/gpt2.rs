//! GPT-2: learned positions, layer norm, GELU, biases everywhere.
//!
//! Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

use super::{Family, LlamaCpp, Transformers, no_dropout, plain};
use crate::InteropError;
use crate::gguf::{self, ArchitectureKeys, Value};
use crate::hf::Key;
use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;
use tinderbox_model::config::{MlpKind, ModelConfig, NormKind, PositionKind};

pub(super) const FAMILY: Family = Family {
    name: "gpt2",
    closest_config,
    has_all_biases: true,
    heads_divide_width: false,
    hf: Transformers {
        class: "GPT2LMHeadModel",
        keys: || {
            vec![
                Key::Only("scale_attn_weights", true),
                Key::Only("scale_attn_by_inverse_layer_idx", false),
                Key::Size("n_embd", |model| &mut model.d_model),
                Key::Size("n_head", |model| &mut model.n_heads),
                Key::Size("n_positions", |model| &mut model.context_length),
                Key::Size("n_layer", |model| &mut model.n_layers),
                Key::PlainHeads("n_embd", "n_head"),
                Key::SizeOr("n_inner", |model| &mut model.d_ff, four_widths),
                Key::NumberOr("layer_norm_epsilon", |model| &mut model.norm_eps, 1e-5),
                Key::Activation("activation_function", &ACTIVATIONS),
                Key::FlagOr("tie_word_embeddings", |model| &mut model.tie_embeddings, true),
                Key::Written("attn_pdrop", no_dropout),
                Key::Written("embd_pdrop", no_dropout),
                Key::Written("resid_pdrop", no_dropout),
            ]
        },
        tensors: TensorNames {
            qkv: QkvNames::Fused("transformer.h.{}.attn.c_attn"),
            is_conv: true,
            norms_less_one: false,
            own: &[],
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
    gguf: Some(GGUF),
};

pub(super) const GGUF: LlamaCpp = LlamaCpp {
    architecture: "gpt2",
    read: |keys, config| read_gelu(keys, config, MlpKind::GeluTanh),
    write: |config| Ok(vec![gelu_key(config)]),
    tensors: TensorNames { qkv: gguf::FUSED_QKV, ..gguf::TENSORS },
    has_scales: false,
    has_windows: false,
    has_rope_freqs: false,
    has_tied_output: false,
};

/// The names of activations, the default first.
pub(super) const ACTIVATIONS: [(&str, MlpKind); 4] = [
    ("gelu_new", MlpKind::GeluTanh),
    ("gelu_pytorch_tanh", MlpKind::GeluTanh),
    ("gelu_fast", MlpKind::GeluTanh),
    ("gelu", MlpKind::Gelu),
];

pub(super) fn closest_config(config: &ModelConfig) -> ModelConfig {
    ModelConfig {
        position: PositionKind::Learned,
        norm: NormKind::LayerNorm,
        mlp: if config.mlp == MlpKind::GeluTanh { MlpKind::GeluTanh } else { MlpKind::Gelu },
        n_kv_heads: config.n_heads,
        head_dim: config.d_model / config.n_heads,
        ..plain(config)
    }
}

/// The default of `d_ff`.
pub(super) fn four_widths(model: &ModelConfig) -> usize {
    model.d_model.saturating_mul(4)
}

/// The GGUF key of the kind of GELU, which llama.cpp does not tell apart.
pub(super) fn gelu_key(model: &ModelConfig) -> (&'static str, Value) {
    ("hidden_activation", Value::string(if model.mlp == MlpKind::GeluTanh { "gelu_new" } else { "gelu" }))
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
