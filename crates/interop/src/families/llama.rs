//! Llama: rotary positions, RMS norm, SwiGLU; and what its descendants share with it.
//!
//! Source: Touvron et al. 2023, "`LLaMA`: Open and Efficient Foundation Language Models".

use serde_json::{Value, json};

use super::{Family, LlamaCpp, Transformers, plain};
use crate::gguf;
use crate::hf::{ConfigJson, RopeSettings, rope_scaling};
use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;
use tinderbox_train::config::{MlpKind, ModelConfig, NormKind, PositionKind};

pub(super) const FAMILY: Family = Family {
    name: "llama",
    nearest: |config| ModelConfig { qkv_bias: config.bias, ..nearest(config) },
    has_all_biases: false,
    heads_divide_width: true,
    hf: Transformers {
        class: "LlamaForCausalLM",
        read: |family, keys| read(family, keys, &CONFIG_JSON),
        write: |model| write(model, &CONFIG_JSON, json!({ "attention_bias": model.bias, "mlp_bias": model.bias })),
        tensors: TensorNames {
            qkv: QkvNames::Separate([
                "model.layers.{}.self_attn.q_proj",
                "model.layers.{}.self_attn.k_proj",
                "model.layers.{}.self_attn.v_proj",
            ]),
            others: &[
                (Role::TokenEmbedding, "model.embed_tokens"),
                (Role::AttentionNorm, "model.layers.{}.input_layernorm"),
                (Role::QNorm, "model.layers.{}.self_attn.q_norm"),
                (Role::KNorm, "model.layers.{}.self_attn.k_norm"),
                (Role::AttentionOutput, "model.layers.{}.self_attn.o_proj"),
                (Role::MlpNorm, "model.layers.{}.post_attention_layernorm"),
                (Role::Gate, "model.layers.{}.mlp.gate_proj"),
                (Role::Up, "model.layers.{}.mlp.up_proj"),
                (Role::Down, "model.layers.{}.mlp.down_proj"),
                (Role::FinalNorm, "model.norm"),
                (Role::Output, "lm_head"),
            ],
            is_conv: false,
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
    has_rope_freqs: true,
    has_tied_output: false,
};

/// The differences between the `config.json` of Llama and those of its descendants.
pub(super) struct LlamaJson {
    /// The default of `head_dim`; `None`: `hidden_size` over the number of heads.
    pub(super) head_dim: Option<usize>,
    /// The default of `num_key_value_heads`; `None`: as many as heads.
    pub(super) n_kv_heads: Option<usize>,
    /// The default of `rms_norm_eps`.
    pub(super) norm_eps: f64,
    /// The names of activations, the default first.
    pub(super) activations: &'static [(&'static str, MlpKind)],
    /// Checks the keys of windows, given `max_position_embeddings`.
    pub(super) check_windows: fn(&mut ConfigJson<'_>, usize),
    /// Whether linear layers have biases.
    pub(super) bias: fn(&mut ConfigJson<'_>) -> bool,
}

pub(super) const CONFIG_JSON: LlamaJson = LlamaJson {
    head_dim: None,
    n_kv_heads: None,
    norm_eps: 1e-6,
    activations: &[("silu", MlpKind::Swiglu), ("swish", MlpKind::Swiglu)],
    check_windows: |keys, _| {
        keys.only("use_sliding_window", false);
        let types = keys.get("layer_types");
        let are_full = |types: &Value| types.as_array().is_some_and(|all| all.iter().all(|it| it == "full_attention"));
        if let Some(types) = types.filter(|types| !are_full(types)) {
            keys.problem("layer_types", types, "\"full_attention\" is supported");
        }
    },
    bias: |keys| {
        let bias = keys.flag_or("attention_bias", false);
        keys.as_other("mlp_bias", bias, "attention_bias");
        bias
    },
};

/// The `bias` of descendants without biases.
pub(super) fn no_bias(keys: &mut ConfigJson<'_>) -> bool {
    keys.only("attention_bias", false);
    keys.only("mlp_bias", false);
    false
}

/// The nearest config of Llama and its descendants, apart from biases.
pub(super) fn nearest(config: &ModelConfig) -> ModelConfig {
    ModelConfig { position: PositionKind::Rope, norm: NormKind::RmsNorm, mlp: MlpKind::Swiglu, ..plain(config) }
}

/// Reads the `config.json` of Llama or a descendant.
pub(super) fn read(family: &Family, keys: &mut ConfigJson<'_>, json: &LlamaJson) -> ModelConfig {
    let fixed = family.fixed();
    let (d_model, n_heads) = (keys.size("hidden_size"), keys.size("num_attention_heads"));
    let context_length = keys.size("max_position_embeddings");
    let head_dim = match (keys.get("head_dim"), json.head_dim) {
        (None, None) => keys.head_dim(("hidden_size", d_model), ("num_attention_heads", n_heads)),
        (_, default) => keys.size_or("head_dim", default.unwrap_or(1)),
    };
    (json.check_windows)(keys, context_length);
    let bias = (json.bias)(keys);
    let mlp = keys.one_of("hidden_act", json.activations);
    let rope = RopeSettings::read(keys, "rope_theta", None);
    ModelConfig {
        context_length,
        d_model,
        n_layers: keys.size("num_hidden_layers"),
        n_heads,
        n_kv_heads: keys.size_or("num_key_value_heads", json.n_kv_heads.unwrap_or(n_heads)),
        head_dim,
        d_ff: keys.size("intermediate_size"),
        rope_theta: rope.theta,
        rope_scaling: rope.scaling,
        norm_eps: keys.number_or("rms_norm_eps", json.norm_eps),
        mlp,
        bias,
        qkv_bias: bias || fixed.qkv_bias,
        tie_embeddings: keys.flag_or("tie_word_embeddings", false),
        ..fixed
    }
}

/// Writes the `config.json` of Llama or a descendant, with keys of its own.
pub(super) fn write(model: &ModelConfig, json: &LlamaJson, own: Value) -> Value {
    let mut config = json!({
        "max_position_embeddings": model.context_length, "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers, "num_attention_heads": model.n_heads,
        "num_key_value_heads": model.n_kv_heads, "head_dim": model.head_dim, "intermediate_size": model.d_ff,
        "hidden_act": json.activations[0].0, "rms_norm_eps": model.norm_eps, "rope_theta": model.rope_theta,
        "rope_scaling": rope_scaling(model), "attention_dropout": 0.0,
    });
    crate::hf::extend(&mut config, own);
    config
}
