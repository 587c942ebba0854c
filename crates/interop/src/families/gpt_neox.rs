//! GPT-NeoX: rotary positions on a part of each head, layer norm, GELU, parallel attention and MLP: Pythia.
//!
//! Source: Black et al. 2022, "GPT-NeoX-20B: An Open-Source Autoregressive Language Model".

use super::{Family, LlamaCpp, Transformers, gpt2, no_dropout};
use crate::gguf::Value;
use crate::hf::Key;
use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;
use tinderbox_model::config::{MlpKind, ModelConfig, PositionKind};

pub(super) const FAMILY: Family = Family {
    name: "gpt_neox",
    closest_config: |config| ModelConfig {
        position: PositionKind::Rope,
        rotary_fraction: config.rotary_fraction,
        parallel_residual: config.parallel_residual,
        ..gpt2::closest_config(config)
    },
    hf: Transformers {
        class: "GPTNeoXForCausalLM",
        keys: || {
            vec![
                Key::Only("attention_bias", true),
                Key::Size("hidden_size", |model| &mut model.d_model),
                Key::Size("num_attention_heads", |model| &mut model.n_heads),
                Key::Rope("rotary_emb_base", Some(("rotary_pct", 0.25))),
                Key::Size("max_position_embeddings", |model| &mut model.context_length),
                Key::Size("num_hidden_layers", |model| &mut model.n_layers),
                Key::PlainHeads("hidden_size", "num_attention_heads"),
                Key::Size("intermediate_size", |model| &mut model.d_ff),
                Key::NumberOr("layer_norm_eps", |model| &mut model.norm_eps, 1e-5),
                Key::Activation("hidden_act", &ACTIVATIONS),
                Key::FlagOr("use_parallel_residual", |model| &mut model.parallel_residual, true),
                Key::FlagOr("tie_word_embeddings", |model| &mut model.tie_embeddings, false),
                Key::Written("attention_dropout", no_dropout),
                Key::Written("hidden_dropout", no_dropout),
            ]
        },
        tensors: TensorNames {
            qkv: QkvNames::ByHead("gpt_neox.layers.{}.attention.query_key_value"),
            own: &[],
            others: &[
                (Role::TokenEmbedding, "gpt_neox.embed_in"),
                (Role::AttentionNorm, "gpt_neox.layers.{}.input_layernorm"),
                (Role::AttentionOutput, "gpt_neox.layers.{}.attention.dense"),
                (Role::MlpNorm, "gpt_neox.layers.{}.post_attention_layernorm"),
                (Role::Up, "gpt_neox.layers.{}.mlp.dense_h_to_4h"),
                (Role::Down, "gpt_neox.layers.{}.mlp.dense_4h_to_h"),
                (Role::FinalNorm, "gpt_neox.final_layer_norm"),
                (Role::Output, "embed_out"),
            ],
            is_conv: false,
            norms_less_one: false,
        },
    },
    gguf: Some(LlamaCpp {
        architecture: "gptneox",
        read: |keys, config| {
            config.parallel_residual = keys.bool("use_parallel_residual")?.unwrap_or(true);
            gpt2::read_gelu(keys, config, MlpKind::Gelu)
        },
        write: |config| {
            Ok(vec![gpt2::gelu_key(config), ("use_parallel_residual", Value::bool(config.parallel_residual))])
        },
        has_tied_output: true,
        ..gpt2::GGUF
    }),
    ..gpt2::FAMILY
};

const ACTIVATIONS: [(&str, MlpKind); 4] = [
    ("gelu", MlpKind::Gelu),
    ("gelu_new", MlpKind::GeluTanh),
    ("gelu_pytorch_tanh", MlpKind::GeluTanh),
    ("gelu_fast", MlpKind::GeluTanh),
];
