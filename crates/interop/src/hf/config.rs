//! Converts the `config.json` of a transformers model to our `[model]`. Unsupported keys that change the numbers are
//! problems; defaults are those of the transformers library.

use serde_json::{Map, Value};

use super::keys::Keys;
use super::rope::Rope;
use crate::Family;
use tinderbox_train::config::{MlpKind, ModelConfig, NormKind, PositionKind};

/// The names of activations, the default first.
const GPT2_ACTIVATIONS: [(&str, MlpKind); 4] = [
    ("gelu_new", MlpKind::GeluTanh),
    ("gelu_pytorch_tanh", MlpKind::GeluTanh),
    ("gelu_fast", MlpKind::GeluTanh),
    ("gelu", MlpKind::Gelu),
];
const NEOX_ACTIVATIONS: [(&str, MlpKind); 4] = [
    ("gelu", MlpKind::Gelu),
    ("gelu_new", MlpKind::GeluTanh),
    ("gelu_pytorch_tanh", MlpKind::GeluTanh),
    ("gelu_fast", MlpKind::GeluTanh),
];
const LLAMA_ACTIVATIONS: [(&str, MlpKind); 2] = [("silu", MlpKind::Swiglu), ("swish", MlpKind::Swiglu)];
const ARCEE_ACTIVATIONS: [(&str, MlpKind); 1] = [("relu2", MlpKind::ReluSquared)];

/// The most layers that are listed one by one.
const MOST_LAYERS: usize = 1 << 16;

/// The family and the model of a config, with `vocab_size` set.
///
/// # Errors
/// The keys that are not supported here, each as `KEY = VALUE: WHAT IS SUPPORTED`.
pub(super) fn read(map: &Map<String, Value>) -> Result<(Family, ModelConfig), Vec<String>> {
    let mut keys = Keys::new(map);
    let name = keys.get("model_type").and_then(Value::as_str);
    let Some(family) = name.and_then(Family::from_name) else {
        let families: Vec<&str> = Family::ALL.into_iter().map(Family::name).collect();
        let supported = format!("{} are supported", families.join(", "));
        match keys.get("model_type") {
            Some(value) => keys.problem("model_type", value, &supported),
            None => keys.problems.push(format!("model_type is missing: {supported}")),
        }
        return Err(keys.problems);
    };
    keys.none("quantization_config", "weights in f32, f16 or bf16 are supported");
    keys.only("is_encoder_decoder", false);
    keys.only("add_cross_attention", false);
    let model = match family {
        Family::Gpt2 => gpt2(&mut keys),
        Family::GptNeo => gpt_neo(&mut keys),
        Family::GptNeox => gpt_neox(&mut keys),
        Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 | Family::Arcee => llama(family, &mut keys),
    };
    if keys.problems.is_empty() {
        keys.problems.extend(model.problems());
    }
    if keys.problems.is_empty() { Ok((family, model)) } else { Err(keys.problems) }
}

fn gpt2(keys: &mut Keys<'_>) -> ModelConfig {
    keys.only("scale_attn_weights", true);
    keys.only("scale_attn_by_inverse_layer_idx", false);
    let (d_model, n_heads) = (keys.size("n_embd"), keys.size("n_head"));
    ModelConfig {
        context_length: keys.size("n_positions"),
        d_model,
        n_layers: keys.size("n_layer"),
        n_heads,
        n_kv_heads: n_heads,
        head_dim: head_dim(keys, ("n_embd", d_model), ("n_head", n_heads)),
        d_ff: keys.size_or("n_inner", d_model.saturating_mul(4)),
        norm_eps: keys.number_or("layer_norm_epsilon", 1e-5),
        mlp: keys.one_of("activation_function", &GPT2_ACTIVATIONS),
        bias: true,
        qkv_bias: true,
        tie_embeddings: keys.flag_or("tie_word_embeddings", true),
        vocab_size: Some(keys.size("vocab_size")),
        ..ModelConfig::default()
    }
}

fn gpt_neo(keys: &mut Keys<'_>) -> ModelConfig {
    let (d_model, n_heads) = (keys.size("hidden_size"), keys.size("num_heads"));
    let n_layers = keys.size("num_layers");
    ModelConfig {
        context_length: keys.size("max_position_embeddings"),
        d_model,
        n_layers,
        n_heads,
        n_kv_heads: n_heads,
        head_dim: head_dim(keys, ("hidden_size", d_model), ("num_heads", n_heads)),
        d_ff: keys.size_or("intermediate_size", d_model.saturating_mul(4)),
        norm_eps: keys.number_or("layer_norm_epsilon", 1e-5),
        mlp: keys.one_of("activation_function", &GPT2_ACTIVATIONS),
        bias: true,
        qkv_bias: false,
        attention_window: gpt_neo_windows(keys, n_layers),
        attention_scale: Some(1.0),
        tie_embeddings: keys.flag_or("tie_word_embeddings", true),
        vocab_size: Some(keys.size("vocab_size")),
        ..ModelConfig::default()
    }
}

/// The windows of GPT-Neo's layers, as the shortest list that is repeated over them.
fn gpt_neo_windows(keys: &mut Keys<'_>, n_layers: usize) -> Vec<usize> {
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

fn gpt_neox(keys: &mut Keys<'_>) -> ModelConfig {
    keys.only("attention_bias", true);
    let (d_model, n_heads) = (keys.size("hidden_size"), keys.size("num_attention_heads"));
    let rope = Rope::read(keys, "rotary_emb_base", Some(("rotary_pct", 0.25)));
    ModelConfig {
        context_length: keys.size("max_position_embeddings"),
        d_model,
        n_layers: keys.size("num_hidden_layers"),
        n_heads,
        n_kv_heads: n_heads,
        head_dim: head_dim(keys, ("hidden_size", d_model), ("num_attention_heads", n_heads)),
        d_ff: keys.size("intermediate_size"),
        position: PositionKind::Rope,
        rope_theta: rope.theta,
        rope_scaling: rope.scaling,
        rotary_fraction: rope.fraction,
        norm_eps: keys.number_or("layer_norm_eps", 1e-5),
        mlp: keys.one_of("hidden_act", &NEOX_ACTIVATIONS),
        bias: true,
        qkv_bias: true,
        parallel_residual: keys.flag_or("use_parallel_residual", true),
        tie_embeddings: keys.flag_or("tie_word_embeddings", false),
        vocab_size: Some(keys.size("vocab_size")),
        ..ModelConfig::default()
    }
}

/// Reads the config of Llama and its descendants.
fn llama(family: Family, keys: &mut Keys<'_>) -> ModelConfig {
    let (d_model, n_heads) = (keys.size("hidden_size"), keys.size("num_attention_heads"));
    let context_length = keys.size("max_position_embeddings");
    let head_dim = match (keys.get("head_dim"), family) {
        (Some(_), _) => keys.size("head_dim"),
        (None, Family::Qwen3) => 128,
        (None, _) => head_dim(keys, ("hidden_size", d_model), ("num_attention_heads", n_heads)),
    };
    windows(family, keys, context_length);
    let bias = match family {
        Family::Llama | Family::Arcee => {
            let bias = keys.flag_or("attention_bias", false);
            keys.as_other("mlp_bias", bias, "attention_bias");
            bias
        }
        _ => {
            keys.only("attention_bias", false);
            keys.only("mlp_bias", false);
            false
        }
    };
    let mlp = match family {
        Family::Arcee => keys.one_of("hidden_act", &ARCEE_ACTIVATIONS),
        _ => keys.one_of("hidden_act", &LLAMA_ACTIVATIONS),
    };
    let default_kv_heads = if matches!(family, Family::Mistral) { 8 } else { n_heads };
    let default_eps = if family == Family::Arcee { 1e-5 } else { 1e-6 };
    let rope = Rope::read(keys, "rope_theta", None);
    ModelConfig {
        context_length,
        d_model,
        n_layers: keys.size("num_hidden_layers"),
        n_heads,
        n_kv_heads: keys.size_or("num_key_value_heads", default_kv_heads),
        head_dim,
        d_ff: keys.size("intermediate_size"),
        position: PositionKind::Rope,
        rope_theta: rope.theta,
        rope_scaling: rope.scaling,
        norm: NormKind::RmsNorm,
        norm_eps: keys.number_or("rms_norm_eps", default_eps),
        mlp,
        bias,
        qkv_bias: bias || family == Family::Qwen2,
        qk_norm: family == Family::Qwen3,
        tie_embeddings: keys.flag_or("tie_word_embeddings", false),
        vocab_size: Some(keys.size("vocab_size")),
        ..ModelConfig::default()
    }
}

/// Reports windows that restrict attention.
fn windows(family: Family, keys: &mut Keys<'_>, context_length: usize) {
    if family == Family::Mistral {
        let window = if keys.has("sliding_window") { keys.get("sliding_window").cloned() } else { Some(4096.into()) };
        let window = window.filter(|window| window.as_u64().is_none_or(|window| window < context_length as u64));
        if let Some(window) = window {
            let supported = format!("null is supported, or at least max_position_embeddings = {context_length}");
            keys.problem("sliding_window", &window, &supported);
        }
    } else {
        keys.only("use_sliding_window", false);
    }
    if let Some(types) = keys.get("layer_types") {
        let is_full = |layer: &Value| layer == "full_attention";
        if !types.as_array().is_some_and(|types| types.iter().all(is_full)) && family != Family::Mistral {
            keys.problem("layer_types", types, "\"full_attention\" is supported");
        }
    }
}

/// `width / heads`, which must be an integer.
fn head_dim(keys: &mut Keys<'_>, (width_key, width): (&str, usize), (heads_key, heads): (&str, usize)) -> usize {
    if !width.is_multiple_of(heads) {
        keys.problems.push(format!("{width_key} = {width}: it must be divisible by {heads_key} = {heads}"));
    }
    (width / heads).max(1)
}
