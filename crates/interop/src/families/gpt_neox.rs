//! GPT-NeoX: rotary positions on a part of each head, layer norm, GELU, parallel attention and MLP: Pythia.
//!
//! Source: Black et al. 2022, "GPT-NeoX-20B: An Open-Source Autoregressive Language Model".

use serde_json::json;

use super::{Family, LlamaCpp, Transformers, gpt2};
use crate::gguf::{self, Value};
use crate::hf::{ConfigJson, RopeSettings, rope_scaling};
use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;
use tinderbox_train::config::{MlpKind, ModelConfig, PositionKind};

pub(super) const FAMILY: Family = Family {
    name: "gpt_neox",
    nearest: |config| ModelConfig {
        position: PositionKind::Rope,
        rotary_fraction: config.rotary_fraction,
        parallel_residual: config.parallel_residual,
        ..gpt2::nearest(config)
    },
    hf: Transformers {
        class: "GPTNeoXForCausalLM",
        read,
        write: |model| {
            json!({
                "max_position_embeddings": model.context_length, "hidden_size": model.d_model,
                "num_hidden_layers": model.n_layers, "num_attention_heads": model.n_heads,
                "intermediate_size": model.d_ff, "hidden_act": gpt2::activation(model),
                "layer_norm_eps": model.norm_eps, "attention_bias": true,
                "use_parallel_residual": model.parallel_residual, "rotary_pct": model.rotary_fraction,
                "rotary_emb_base": model.rope_theta, "rope_scaling": rope_scaling(model),
                "attention_dropout": 0.0, "hidden_dropout": 0.0,
            })
        },
        tensors: TensorNames {
            qkv: QkvNames::ByHead("gpt_neox.layers.{}.attention.query_key_value"),
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
        tensors: TensorNames { qkv: gguf::FUSED_QKV, ..gguf::TENSORS },
        has_rope_freqs: false,
        has_tied_output: true,
    }),
    ..gpt2::FAMILY
};

/// The names of activations, the default first.
const ACTIVATIONS: [(&str, MlpKind); 4] = [
    ("gelu", MlpKind::Gelu),
    ("gelu_new", MlpKind::GeluTanh),
    ("gelu_pytorch_tanh", MlpKind::GeluTanh),
    ("gelu_fast", MlpKind::GeluTanh),
];

fn read(family: &Family, keys: &mut ConfigJson<'_>) -> ModelConfig {
    keys.only("attention_bias", true);
    let (d_model, n_heads) = (keys.size("hidden_size"), keys.size("num_attention_heads"));
    let rope = RopeSettings::read(keys, "rotary_emb_base", Some(("rotary_pct", 0.25)));
    ModelConfig {
        context_length: keys.size("max_position_embeddings"),
        d_model,
        n_layers: keys.size("num_hidden_layers"),
        n_heads,
        n_kv_heads: n_heads,
        head_dim: keys.head_dim(("hidden_size", d_model), ("num_attention_heads", n_heads)),
        d_ff: keys.size("intermediate_size"),
        rope_theta: rope.theta,
        rope_scaling: rope.scaling,
        rotary_fraction: rope.fraction,
        norm_eps: keys.number_or("layer_norm_eps", 1e-5),
        mlp: keys.one_of("hidden_act", &ACTIVATIONS),
        bias: true,
        qkv_bias: true,
        parallel_residual: keys.flag_or("use_parallel_residual", true),
        tie_embeddings: keys.flag_or("tie_word_embeddings", false),
        ..family.fixed()
    }
}
