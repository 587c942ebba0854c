//! GPT-Neo: like GPT-2, with windows in every other layer and unscaled scores: `TinyStories`.
//!
//! Source: Black et al. 2021, "GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-Tensorflow".

use serde_json::{Value, json};

use super::{Family, Transformers, gpt2};
use crate::hf::ConfigJson;
use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;
use tinderbox_train::config::ModelConfig;

pub(super) const FAMILY: Family = Family {
    name: "gpt_neo",
    nearest: |config| {
        let size = config.attention_window.iter().copied().find(|window| *window > 0).unwrap_or(0);
        let windows = config.attention_window.iter().map(|window| if *window > 0 { size } else { 0 });
        ModelConfig {
            qkv_bias: false,
            attention_window: windows.collect(),
            attention_scale: Some(1.0),
            ..gpt2::nearest(config)
        }
    },
    hf: Transformers {
        class: "GPTNeoForCausalLM",
        read,
        write,
        tensors: TensorNames {
            qkv: QkvNames::Separate([
                "transformer.h.{}.attn.attention.q_proj",
                "transformer.h.{}.attn.attention.k_proj",
                "transformer.h.{}.attn.attention.v_proj",
            ]),
            others: &[
                (Role::TokenEmbedding, "transformer.wte"),
                (Role::PositionEmbedding, "transformer.wpe"),
                (Role::AttentionNorm, "transformer.h.{}.ln_1"),
                (Role::AttentionOutput, "transformer.h.{}.attn.attention.out_proj"),
                (Role::MlpNorm, "transformer.h.{}.ln_2"),
                (Role::Up, "transformer.h.{}.mlp.c_fc"),
                (Role::Down, "transformer.h.{}.mlp.c_proj"),
                (Role::FinalNorm, "transformer.ln_f"),
                (Role::Output, "lm_head"),
            ],
            is_conv: false,
        },
    },
    gguf: None,
    ..gpt2::FAMILY
};

/// The most layers that are listed one by one.
const MOST_LAYERS: usize = 1 << 16;

fn read(family: &Family, keys: &mut ConfigJson<'_>) -> ModelConfig {
    let (d_model, n_heads) = (keys.size("hidden_size"), keys.size("num_heads"));
    let n_layers = keys.size("num_layers");
    ModelConfig {
        context_length: keys.size("max_position_embeddings"),
        d_model,
        n_layers,
        n_heads,
        n_kv_heads: n_heads,
        head_dim: keys.head_dim(("hidden_size", d_model), ("num_heads", n_heads)),
        d_ff: keys.size_or("intermediate_size", d_model.saturating_mul(4)),
        norm_eps: keys.number_or("layer_norm_epsilon", 1e-5),
        mlp: keys.one_of("activation_function", &gpt2::ACTIVATIONS),
        bias: true,
        attention_window: windows(keys, n_layers),
        tie_embeddings: keys.flag_or("tie_word_embeddings", true),
        ..family.fixed()
    }
}

fn write(model: &ModelConfig) -> Value {
    let windows: Vec<usize> = (0..model.n_layers).map(|i| model.attention_window_of(i).unwrap_or(0)).collect();
    let layers: Vec<&str> = windows.iter().map(|window| if *window == 0 { "global" } else { "local" }).collect();
    json!({
        "max_position_embeddings": model.context_length, "hidden_size": model.d_model, "num_layers": model.n_layers,
        "num_heads": model.n_heads, "intermediate_size": model.d_ff, "activation_function": gpt2::activation(model),
        "layer_norm_epsilon": model.norm_eps, "attention_types": [[layers, 1]], "attention_layers": layers,
        "window_size": windows.iter().find(|window| **window > 0).unwrap_or(&256),
        "attention_dropout": 0.0, "embed_dropout": 0.0, "resid_dropout": 0.0,
    })
}

/// The windows of the layers, as the shortest list that is repeated over them.
fn windows(keys: &mut ConfigJson<'_>, n_layers: usize) -> Vec<usize> {
    const SUPPORTED: &str = "a list of \"global\" and \"local\", as many as num_layers, is supported";
    let window = keys.size_or("window_size", 256);
    let (key, layers) = match (keys.get("attention_types"), keys.get("attention_layers")) {
        // `[[["global", "local"], 12]]`: a list, and the number of times that it is repeated.
        (Some(types), _) => ("attention_types", repeated(types, n_layers)),
        (None, Some(Value::Array(layers))) => ("attention_layers", Some(layers.clone())),
        (None, Some(_)) => ("attention_layers", None),
        (None, None) => ("attention_types", Some((0..24).map(|i| ["global", "local"][i % 2].into()).collect())),
    };
    let window_of = |layer: &Value| match layer.as_str() {
        Some("global") => Some(0),
        Some("local") => Some(window),
        _ => None,
    };
    let windows = layers.and_then(|layers| layers.iter().map(window_of).collect::<Option<Vec<usize>>>());
    match windows.filter(|windows| windows.len() == n_layers) {
        None => {
            let value = keys.get(key).unwrap_or(&Value::Null);
            keys.problem(key, value, SUPPORTED);
            Vec::new()
        }
        Some(windows) if windows.iter().all(|window| *window == 0) => Vec::new(),
        Some(windows) => {
            let repeats = |period: &usize| (0..n_layers).all(|i| windows[i] == windows[i % period]);
            let period = (1..n_layers).find(repeats).unwrap_or(n_layers);
            windows[..period].to_vec()
        }
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
