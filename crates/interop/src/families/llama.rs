//! Llama: rotary positions, RMS norm, SwiGLU; and the parts that its descendants share.
//!
//! Source: Touvron et al. 2023, "`LLaMA`: Open and Efficient Foundation Language Models".

use serde_json::Value;

use super::{Family, LlamaCpp, Transformers, no_dropout, plain};
use crate::gguf;
use crate::hf::Key;
use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;
use tinderbox_model::config::{MlpKind, ModelConfig, NormKind, PositionKind};

pub(super) const FAMILY: Family = Family {
    name: "llama",
    closest_config: |config| ModelConfig { qkv_bias: config.bias, ..closest_config(config) },
    has_all_biases: false,
    heads_divide_width: true,
    hf: Transformers {
        class: "LlamaForCausalLM",
        keys: || keys(&CONFIG_JSON),
        tensors: TensorNames {
            qkv: QkvNames::Separate([
                "model.layers.{}.self_attn.q_proj",
                "model.layers.{}.self_attn.k_proj",
                "model.layers.{}.self_attn.v_proj",
            ]),
            own: &[],
            others: &[
                (Role::TokenEmbedding, "model.embed_tokens"),
                (Role::AttentionNorm, "model.layers.{}.input_layernorm"),
                (Role::QNorm, "model.layers.{}.self_attn.q_norm"),
                (Role::KNorm, "model.layers.{}.self_attn.k_norm"),
                (Role::AttentionOutput, "model.layers.{}.self_attn.o_proj"),
                (Role::PostAttentionNorm, "model.layers.{}.post_attention_layernorm"),
                (Role::MlpNorm, "model.layers.{}.post_attention_layernorm"),
                (Role::Gate, "model.layers.{}.mlp.gate_proj"),
                (Role::Up, "model.layers.{}.mlp.up_proj"),
                (Role::Down, "model.layers.{}.mlp.down_proj"),
                (Role::PostMlpNorm, "model.layers.{}.post_feedforward_layernorm"),
                (Role::FinalNorm, "model.norm"),
                (Role::Output, "lm_head"),
            ],
            is_conv: false,
            norms_less_one: false,
        },
    },
    gguf: Some(GGUF),
};

/// The architecture in llama.cpp, where `RoPE` rotates neighbouring dimensions.
pub(super) const GGUF: LlamaCpp = LlamaCpp {
    architecture: "llama",
    read: |_, _| Ok(()),
    write: |config| {
        let head_dim = || gguf::Value::count(config.head_dim);
        Ok(vec![("attention.key_length", head_dim()), ("attention.value_length", head_dim())])
    },
    tensors: TensorNames { qkv: gguf::INTERLEAVED_QKV, ..gguf::TENSORS },
    has_scales: false,
    has_windows: false,
    has_rope_freqs: true,
    has_tied_output: false,
};

/// The differences between the `config.json` of Llama and of its descendants.
pub(super) struct LlamaJson {
    pub(super) head_dim: &'static [Key],
    /// The default of `num_key_value_heads`.
    pub(super) n_kv_heads: fn(&ModelConfig) -> usize,
    /// The default of `rms_norm_eps`.
    pub(super) norm_eps: f64,
    /// The names of activations, the default first.
    pub(super) activations: &'static [(&'static str, MlpKind)],
    pub(super) windows: &'static [Key],
    pub(super) bias: &'static [Key],
    pub(super) rope: Key,
}

pub(super) const CONFIG_JSON: LlamaJson = LlamaJson {
    head_dim: &[
        Key::Read(|keys, model| {
            model.head_dim = match keys.get("head_dim") {
                None => keys.head_dim(("hidden_size", model.d_model), ("num_attention_heads", model.n_heads)),
                Some(_) => keys.size("head_dim"),
            };
        }),
        Key::Written("head_dim", |model| model.head_dim.into()),
    ],
    n_kv_heads: |model| model.n_heads,
    norm_eps: 1e-6,
    activations: &[("silu", MlpKind::Swiglu), ("swish", MlpKind::Swiglu)],
    windows: &[Key::Expected("use_sliding_window", false), LAYER_TYPES],
    bias: &[
        Key::FlagOr("attention_bias", |model| &mut model.bias, false),
        Key::Read(|keys, model| {
            model.qkv_bias = model.bias;
            keys.as_other("mlp_bias", model.bias, "attention_bias");
        }),
        Key::Written("mlp_bias", |model| model.bias.into()),
    ],
    rope: Key::Rope("rope_theta", None),
};

/// The `head_dim` of families whose heads have equal shares of the width.
pub(super) const EQUAL_HEADS: Key = Key::Read(|keys, model| {
    model.head_dim = keys.head_dim(("hidden_size", model.d_model), ("num_attention_heads", model.n_heads));
});

/// Checks that no layer has a window.
pub(super) const LAYER_TYPES: Key = Key::Read(|keys, _| {
    let types = keys.get("layer_types");
    let are_full = |types: &Value| types.as_array().is_some_and(|all| all.iter().all(|it| it == "full_attention"));
    if let Some(types) = types.filter(|types| !are_full(types)) {
        keys.problem("layer_types", types, "\"full_attention\" is supported");
    }
});

/// The `bias` of descendants without biases.
pub(super) const NO_BIAS: &[Key] = &[Key::Expected("attention_bias", false), Key::Expected("mlp_bias", false)];

/// The closest config of Llama and its descendants, apart from biases.
pub(super) fn closest_config(config: &ModelConfig) -> ModelConfig {
    ModelConfig { position: PositionKind::Rope, norm: NormKind::RmsNorm, mlp: MlpKind::Swiglu, ..plain(config) }
}

pub(super) fn keys(json: &LlamaJson) -> Vec<Key> {
    let first = [
        Key::Size("hidden_size", |model| &mut model.d_model),
        Key::Size("num_attention_heads", |model| &mut model.n_heads),
        Key::Size("max_position_embeddings", |model| &mut model.context_length),
    ];
    let last = [
        Key::Activation("hidden_act", json.activations),
        json.rope,
        Key::Size("num_hidden_layers", |model| &mut model.n_layers),
        Key::SizeOr("num_key_value_heads", |model| &mut model.n_kv_heads, json.n_kv_heads),
        Key::Size("intermediate_size", |model| &mut model.d_ff),
        Key::NumberOr("rms_norm_eps", |model| &mut model.norm_eps, json.norm_eps),
        Key::FlagOr("tie_word_embeddings", |model| &mut model.tie_embeddings, false),
        Key::Written("attention_dropout", no_dropout),
    ];
    [&first[..], json.head_dim, json.windows, json.bias, &last].concat()
}
