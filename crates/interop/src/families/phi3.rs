//! Phi-3 and Phi-4: like Llama, without biases, with one projection to queries, keys and values, one to both inputs of the
//! MLP, and sliding windows.
//!
//! Source: Abdin et al. 2024, "Phi-3 Technical Report: A Highly Capable Language Model Locally on Your Phone".

use super::llama::{self, LlamaJson};
use super::{Family, LlamaCpp, Transformers, no_dropout, windows};
use crate::gguf;
use crate::hf::Key;
use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;
use tinderbox_model::config::{ModelConfig, RopeScaling};

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
            let own = [
                Key::Written("original_max_position_embeddings", |model| match model.rope_scaling {
                    Some(
                        RopeScaling::Longrope { original_context_length: original, .. }
                        | RopeScaling::Llama3 { original_context_length: original, .. }
                        | RopeScaling::Yarn { original_context_length: original, .. },
                    ) => original.into(),
                    Some(RopeScaling::Linear { .. }) | None => 4096.into(), // the default, which nothing reads
                }),
                Key::Written("embd_pdrop", no_dropout),
                Key::Written("resid_pdrop", no_dropout),
                // The default is no token of a small vocabulary.
                Key::Written("pad_token_id", |_| serde_json::Value::Null),
            ];
            [llama::keys(&CONFIG_JSON), own.to_vec()].concat()
        },
        tensors: TensorNames {
            qkv: QkvNames::Fused("model.layers.{}.self_attn.qkv_proj"),
            own: &[(Role::Gate, "model.layers.{}.mlp.gate_up_proj"), (Role::Up, "model.layers.{}.mlp.gate_up_proj")],
            ..llama::FAMILY.hf.tensors
        },
    },
    gguf: Some(LlamaCpp {
        architecture: "phi3",
        write: |_| Ok(Vec::new()),
        tensors: TensorNames { qkv: gguf::FUSED_QKV, own: &[(Role::Gate, "blk.{}.ffn_up")], ..gguf::TENSORS },
        has_rope_freqs: false,
        ..llama::GGUF
    }),
    ..llama::FAMILY
};

const CONFIG_JSON: LlamaJson = LlamaJson {
    head_dim: &[llama::EQUAL_HEADS],
    norm_eps: 1e-5,
    windows: windows::IN_ALL_LAYERS_IF_NAMED,
    bias: &[Key::Expected("attention_bias", false)],
    rope: Key::Rope("rope_theta", Some(("partial_rotary_factor", 1.0))),
    ..llama::CONFIG_JSON
};
