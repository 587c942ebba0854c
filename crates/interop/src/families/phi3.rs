//! Phi-3 and Phi-4: like Llama, without biases, with one projection to queries, keys and values, one to both inputs of the
//! MLP, and sliding windows.
//!
//! Source: Abdin et al. 2024, "Phi-3 Technical Report: A Highly Capable Language Model Locally on Your Phone".

use super::{Family, LlamaCpp, Transformers, llama, no_dropout, windows};
use crate::gguf;
use crate::hf::Key;
use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;
use tinderbox_model::config::{MlpKind, ModelConfig, RopeScaling};

pub(super) const FAMILY: Family = Family {
    name: "phi3",
    closest_config: |config| ModelConfig {
        bias: false,
        qkv_bias: false,
        head_dim: config.d_model / config.n_heads,
        rotary_fraction: config.rotary_fraction,
        attention_window: windows::in_all_layers(config),
        rope_scaling: config.rope_scaling.clone(),
        ..llama::closest_config(config)
    },
    hf: Transformers {
        class: "Phi3ForCausalLM",
        keys: || {
            let first = [
                Key::Size("hidden_size", |model| &mut model.d_model),
                Key::Size("num_attention_heads", |model| &mut model.n_heads),
                llama::EQUAL_HEADS,
                Key::Size("max_position_embeddings", |model| &mut model.context_length),
            ];
            let last = [
                Key::Activation("hidden_act", &[("silu", MlpKind::Swiglu), ("swish", MlpKind::Swiglu)]),
                Key::Rope("rope_theta", Some(("partial_rotary_factor", 1.0))),
                Key::Written("original_max_position_embeddings", |model| match model.rope_scaling {
                    Some(RopeScaling::Longrope { original_context_length: original, .. }) => original.into(),
                    _ => 4096.into(), // the default, which nothing reads
                }),
                Key::Size("num_hidden_layers", |model| &mut model.n_layers),
                Key::SizeOr("num_key_value_heads", |model| &mut model.n_kv_heads, |model| model.n_heads),
                Key::Size("intermediate_size", |model| &mut model.d_ff),
                Key::NumberOr("rms_norm_eps", |model| &mut model.norm_eps, 1e-5),
                Key::FlagOr("tie_word_embeddings", |model| &mut model.tie_embeddings, false),
                Key::Expected("attention_bias", false),
                Key::Written("attention_dropout", no_dropout),
                Key::Written("embd_pdrop", no_dropout),
                Key::Written("resid_pdrop", no_dropout),
                // Whose default is no token of a small vocabulary.
                Key::Written("pad_token_id", |_| serde_json::Value::Null),
            ];
            [&first[..], windows::IN_ALL_LAYERS_IF_NAMED, &last].concat()
        },
        tensors: TensorNames {
            qkv: QkvNames::Fused("model.layers.{}.self_attn.qkv_proj"),
            others: &[
                (Role::TokenEmbedding, "model.embed_tokens"),
                (Role::AttentionNorm, "model.layers.{}.input_layernorm"),
                (Role::AttentionOutput, "model.layers.{}.self_attn.o_proj"),
                (Role::MlpNorm, "model.layers.{}.post_attention_layernorm"),
                (Role::Gate, "model.layers.{}.mlp.gate_up_proj"),
                (Role::Up, "model.layers.{}.mlp.gate_up_proj"),
                (Role::Down, "model.layers.{}.mlp.down_proj"),
                (Role::FinalNorm, "model.norm"),
                (Role::Output, "lm_head"),
            ],
            is_conv: false,
            norms_less_one: false,
        },
    },
    gguf: Some(LlamaCpp {
        architecture: "phi3",
        read: |_, _| Ok(()),
        write: |_| Ok(Vec::new()),
        tensors: TensorNames {
            qkv: gguf::FUSED_QKV,
            others: &[
                (Role::TokenEmbedding, "token_embd"),
                (Role::AttentionNorm, "blk.{}.attn_norm"),
                (Role::AttentionOutput, "blk.{}.attn_output"),
                (Role::MlpNorm, "blk.{}.ffn_norm"),
                (Role::Gate, "blk.{}.ffn_up"),
                (Role::Up, "blk.{}.ffn_up"),
                (Role::Down, "blk.{}.ffn_down"),
                (Role::FinalNorm, "output_norm"),
                (Role::Output, "output"),
            ],
            is_conv: false,
            norms_less_one: false,
        },
        has_scales: false,
        has_windows: false,
        has_rope_freqs: false,
        has_tied_output: false,
    }),
    ..llama::FAMILY
};
