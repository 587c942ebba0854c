//! GPT-Neo: like GPT-2, with windows in every other layer and unscaled scores: `TinyStories`.
//!
//! Source: Black et al. 2021, "GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-Tensorflow".

use serde_json::{Value, json};

use super::{Family, Transformers, gpt2, no_dropout, windows};
use crate::hf::{ConfigJson, Key};
use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;
use tinderbox_model::config::ModelConfig;

pub(super) const FAMILY: Family = Family {
    name: "gpt_neo",
    closest_config: |config| ModelConfig {
        qkv_bias: false,
        attention_window: windows::of_one_size(config),
        attention_scale: Some(1.0),
        ..gpt2::closest_config(config)
    },
    hf: Transformers {
        class: "GPTNeoForCausalLM",
        keys: || {
            vec![
                Key::Size("hidden_size", |model| &mut model.d_model),
                Key::Size("num_heads", |model| &mut model.n_heads),
                Key::Size("num_layers", |model| &mut model.n_layers),
                Key::Size("max_position_embeddings", |model| &mut model.context_length),
                Key::PlainHeads("hidden_size", "num_heads"),
                Key::SizeOr("intermediate_size", |model| &mut model.d_ff, gpt2::four_widths),
                Key::NumberOr("layer_norm_epsilon", |model| &mut model.norm_eps, 1e-5),
                Key::Activation("activation_function", &gpt2::ACTIVATIONS),
                Key::Read(|keys, model| model.attention_window = read_windows(keys, model.n_layers)),
                Key::Written("attention_types", |model| json!([[layers(model), 1]])),
                Key::Written("attention_layers", |model| json!(layers(model))),
                Key::Written("window_size", |model| {
                    json!(windows::all(model).find(|window| *window > 0).unwrap_or(256))
                }),
                Key::FlagOr("tie_word_embeddings", |model| &mut model.tie_embeddings, true),
                Key::Written("attention_dropout", no_dropout),
                Key::Written("embed_dropout", no_dropout),
                Key::Written("resid_dropout", no_dropout),
            ]
        },
        tensors: TensorNames {
            qkv: QkvNames::Separate([
                "transformer.h.{}.attn.attention.q_proj",
                "transformer.h.{}.attn.attention.k_proj",
                "transformer.h.{}.attn.attention.v_proj",
            ]),
            own: &[(Role::AttentionOutput, "transformer.h.{}.attn.attention.out_proj")],
            is_conv: false,
            ..gpt2::FAMILY.hf.tensors
        },
    },
    gguf: None,
    ..gpt2::FAMILY
};

/// The most layers that are listed one by one.
const MOST_LAYERS: usize = 1 << 16;

fn layers(model: &ModelConfig) -> Vec<&'static str> {
    windows::all(model).map(|window| if window == 0 { "global" } else { "local" }).collect()
}

/// The windows of the layers, as the shortest list that is repeated over them.
fn read_windows(keys: &mut ConfigJson<'_>, n_layers: usize) -> Vec<usize> {
    const SUPPORTED: &str = "a list of \"global\" and \"local\", as many as num_layers, is supported";
    let window = keys.size_or("window_size", 256);
    let types = keys.get("attention_types");
    let layers = keys.get("attention_layers");
    let window_of = |layer: &Value| match layer.as_str() {
        Some("global") => Some(0),
        Some("local") => Some(window),
        _ => None,
    };
    let read = |layers: Option<Vec<Value>>| -> Option<Vec<usize>> {
        let windows: Vec<usize> = layers?.iter().map(window_of).collect::<Option<_>>()?;
        (windows.len() == n_layers).then_some(windows)
    };
    // `[[["global", "local"], 12]]`: a list, and the number of times that it is repeated.
    let of_types = types.map(|types| read(repeated(types, n_layers)));
    let of_layers = layers.map(|layers| read(layers.as_array().cloned()));
    if let (Some(Some(of_types)), Some(of_layers), Some(value)) = (&of_types, &of_layers, layers)
        && Some(of_types) != of_layers.as_ref()
    {
        keys.problem("attention_layers", value, "attention_types says otherwise, and both must be the same");
    }
    let key = if types.is_none() && layers.is_some() { "attention_layers" } else { "attention_types" };
    let default = || read(Some((0..24).map(|i| ["global", "local"][i % 2].into()).collect()));
    match of_types.or(of_layers).unwrap_or_else(default) {
        None => {
            let value = keys.get(key).unwrap_or(&Value::Null);
            keys.problem(key, value, SUPPORTED);
            Vec::new()
        }
        Some(windows) => windows::repeated(&windows),
    }
}

/// The layers of `attention_types`; `None` if malformed, or not of length `n_layers`.
fn repeated(types: &Value, n_layers: usize) -> Option<Vec<Value>> {
    let mut layers = Vec::new();
    for group in types.as_array()? {
        let [Value::Array(names), times] = &group.as_array()?[..] else { return None };
        let times = usize::try_from(times.as_u64()?).ok()?;
        if names.len().checked_mul(times).is_none_or(|n| n > n_layers.min(MOST_LAYERS)) {
            return None;
        }
        layers.extend(std::iter::repeat_n(names, times).flatten().cloned());
    }
    Some(layers)
}
