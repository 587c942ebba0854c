//! `StarCoder` 2: rotary positions, layer norm, GELU, biases everywhere, grouped keys and values, sliding windows.
//!
//! Source: Lozhkov et al. 2024, "`StarCoder` 2 and The Stack v2: The Next Generation".

use super::{Family, LlamaCpp, Transformers, gpt2, llama, no_dropout, windows};
use crate::gguf;
use crate::hf::Key;
use crate::layout::TensorNames;
use tinderbox_model::Role;
use tinderbox_model::config::{MlpKind, ModelConfig, PositionKind};

pub(super) const FAMILY: Family = Family {
    name: "starcoder2",
    closest_config: |config| ModelConfig {
        position: PositionKind::Rope,
        n_kv_heads: config.n_kv_heads,
        attention_window: windows::in_all_layers(config),
        ..gpt2::closest_config(config)
    },
    heads_divide_width: true,
    hf: Transformers {
        class: "Starcoder2ForCausalLM",
        keys: || {
            let first = [
                Key::Only("use_bias", true),
                Key::Size("hidden_size", |model| &mut model.d_model),
                Key::Size("num_attention_heads", |model| &mut model.n_heads),
                llama::EQUAL_HEADS,
                Key::SizeOr("num_key_value_heads", |model| &mut model.n_kv_heads, |_| 2),
                Key::SizeOr("max_position_embeddings", |model| &mut model.context_length, |_| 4096),
            ];
            let last = [
                Key::Rope("rope_theta", None),
                Key::Size("num_hidden_layers", |model| &mut model.n_layers),
                Key::SizeOr("intermediate_size", |model| &mut model.d_ff, |_| 12_288),
                Key::NumberOr("norm_epsilon", |model| &mut model.norm_eps, 1e-5),
                Key::Activation("hidden_act", &ACTIVATIONS),
                Key::FlagOr("tie_word_embeddings", |model| &mut model.tie_embeddings, true),
                Key::Written("attention_dropout", no_dropout),
                Key::Written("residual_dropout", no_dropout),
                Key::Written("embedding_dropout", no_dropout),
            ];
            [&first[..], windows::IN_ALL_LAYERS_IF_NAMED, &last].concat()
        },
        tensors: TensorNames {
            own: &[(Role::Up, "model.layers.{}.mlp.c_fc"), (Role::Down, "model.layers.{}.mlp.c_proj")],
            ..llama::FAMILY.hf.tensors
        },
    },
    gguf: Some(LlamaCpp { architecture: "starcoder2", tensors: gguf::TENSORS, ..gpt2::GGUF }),
    ..gpt2::FAMILY
};

const ACTIVATIONS: [(&str, MlpKind); 4] = [
    ("gelu_pytorch_tanh", MlpKind::GeluTanh),
    ("gelu_new", MlpKind::GeluTanh),
    ("gelu_fast", MlpKind::GeluTanh),
    ("gelu", MlpKind::Gelu),
];
