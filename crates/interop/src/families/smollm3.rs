//! `SmolLM3`: like Llama, without rotary positions in every fourth layer.
//!
//! Source: Bakouch et al. 2025, "`SmolLM3`: smol, multilingual, long-context reasoner".

use serde_json::{Value, json};

use super::llama::{self, LlamaJson};
use super::{Family, LlamaCpp, Transformers};
use crate::hf::{ConfigJson, Key};
use tinderbox_model::config::ModelConfig;

pub(super) const FAMILY: Family = Family {
    name: "smollm3",
    closest_config: |config| ModelConfig {
        qkv_bias: config.bias,
        head_dim: config.d_model / config.n_heads,
        rope_layers: config.rope_layers.clone(),
        ..llama::closest_config(config)
    },
    hf: Transformers {
        class: "SmolLM3ForCausalLM",
        keys: || {
            let layers = [
                Key::Read(read_layers),
                Key::Written("no_rope_layers", |model| json!(rotations(model).map(u8::from).collect::<Vec<_>>())),
                Key::Written("use_sliding_window", |_| false.into()),
                Key::Written("sliding_window", |_| Value::Null),
                // The default is no token of a small vocabulary.
                Key::Written("pad_token_id", |_| Value::Null),
            ];
            [llama::keys(&CONFIG_JSON), layers.to_vec()].concat()
        },
        ..llama::FAMILY.hf
    },
    gguf: Some(LlamaCpp {
        architecture: "smollm3",
        read: |_, config| {
            config.rope_layers = LLAMA_CPP.to_vec();
            Ok(())
        },
        write: |config| {
            let is_known =
                (0..config.n_layers).all(|layer| config.rotates(layer) == LLAMA_CPP[layer % LLAMA_CPP.len()]);
            match is_known {
                true => Ok(Vec::new()),
                false => Err("in llama.cpp every fourth layer of this family has no rotary positions".to_owned()),
            }
        },
        has_rope_freqs: false,
        ..llama::GGUF
    }),
    ..llama::FAMILY
};

/// The layers that llama.cpp rotates, whatever the file says.
const LLAMA_CPP: [bool; 4] = [true, true, true, false];

const CONFIG_JSON: LlamaJson = LlamaJson { head_dim: &[llama::EQUAL_HEADS], n_kv_heads: |_| 4, ..llama::CONFIG_JSON };

fn rotations(model: &ModelConfig) -> impl Iterator<Item = bool> {
    (0..model.n_layers).map(|layer| model.rotates(layer))
}

/// Reads `no_rope_layers`, which has a 1 for each layer with `RoPE`, or `no_rope_layer_interval`.
fn read_layers(keys: &mut ConfigJson<'_>, model: &mut ModelConfig) {
    let n_layers = model.n_layers;
    let named = keys.get("no_rope_layers");
    let layers: Vec<bool> = match named {
        None => {
            let interval = keys.size_or("no_rope_layer_interval", 4);
            (1..=n_layers).map(|layer| !layer.is_multiple_of(interval)).collect()
        }
        Some(named) => {
            let rotates = |layer: &Value| layer.as_u64().filter(|layer| *layer < 2).map(|layer| layer == 1);
            let layers = named.as_array().and_then(|layers| layers.iter().map(rotates).collect::<Option<Vec<_>>>());
            layers.filter(|layers| layers.len() == n_layers).unwrap_or_else(|| {
                keys.problem("no_rope_layers", named, "a list of 0 and 1, as many as num_hidden_layers, is supported");
                Vec::new()
            })
        }
    };
    model.rope_layers = super::shortest_period(&layers).to_vec();
    if !model.rope_layers.contains(&false) {
        model.rope_layers.clear();
    }
}
