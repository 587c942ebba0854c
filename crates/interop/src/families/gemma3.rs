//! Gemma 3, text-only models: norms before and after each layer, GEGLU, windows in all but every sixth layer, where
//! `RoPE` has longer wavelengths.
//!
//! Source: Gemma Team 2025, "Gemma 3 Technical Report".

use serde_json::{Value, json};

use super::{Family, LlamaCpp, OwnKeys, Transformers, llama, no_dropout, plain, windows};
use crate::InteropError;
use crate::gguf::{self, ArchitectureKeys};
use crate::hf::{ConfigJson, Key, read_rope_by_type};
use crate::layout::TensorNames;
use tinderbox_model::Role;
use tinderbox_model::config::{MlpKind, ModelConfig, NormKind, PositionKind};

pub(super) const FAMILY: Family = Family {
    name: "gemma3_text",
    closest_config: |config| ModelConfig {
        position: PositionKind::Rope,
        norm: NormKind::RmsNorm,
        mlp: MlpKind::Geglu,
        bias: false,
        qkv_bias: false,
        qk_norm: true,
        post_norm: true,
        attention_scale: config.attention_scale,
        attention_window: windows::of_one_size(config),
        rope_local_theta: Some(config.rope_local_theta.unwrap_or(LOCAL_THETA)),
        embedding_scale: embedding_scale(config),
        logit_softcap: config.logit_softcap,
        ..plain(config)
    },
    has_all_biases: false,
    heads_divide_width: true,
    hf: Transformers {
        class: "Gemma3ForCausalLM",
        keys,
        tensors: TensorNames {
            own: &[(Role::MlpNorm, "model.layers.{}.pre_feedforward_layernorm")],
            norms_less_one: true,
            ..llama::FAMILY.hf.tensors
        },
    },
    gguf: Some(GGUF),
};

pub(super) const GGUF: LlamaCpp = LlamaCpp {
    architecture: "gemma3",
    read,
    write,
    tensors: gguf::TENSORS,
    has_windows: true,
    has_rope_freqs: false,
    ..llama::GGUF
};

/// The base of the wavelengths in layers with windows, which llama.cpp takes for granted.
const LOCAL_THETA: f64 = 10_000.0;
/// One of this many layers sees the whole context: the last.
const PERIOD: usize = 6;
/// The number of layers of the model whose scores llama.cpp scales by the width and not by the heads.
const LAYERS_OF_27B: usize = 62;

/// Token embeddings are multiplied by the root of their width.
pub(super) fn embedding_scale(config: &ModelConfig) -> f64 {
    (config.d_model as f64).sqrt()
}

/// The keys of sizes of Gemma 2 and 3, which differ in the default of the context length.
pub(super) fn sizes(context_length: fn(&ModelConfig) -> usize) -> Vec<Key> {
    vec![
        Key::Size("hidden_size", |model| &mut model.d_model),
        Key::Read(|_, model| model.embedding_scale = embedding_scale(model)),
        Key::Size("num_attention_heads", |model| &mut model.n_heads),
        Key::SizeOr("max_position_embeddings", |model| &mut model.context_length, context_length),
        Key::SizeOr("head_dim", |model| &mut model.head_dim, |_| 256),
        Key::Activation("hidden_activation", &[("gelu_pytorch_tanh", MlpKind::Geglu)]),
        Key::Size("num_hidden_layers", |model| &mut model.n_layers),
        Key::SizeOr("num_key_value_heads", |model| &mut model.n_kv_heads, |_| 4),
        Key::Size("intermediate_size", |model| &mut model.d_ff),
        Key::NumberOr("rms_norm_eps", |model| &mut model.norm_eps, 1e-6),
        Key::FlagOr("tie_word_embeddings", |model| &mut model.tie_embeddings, true),
        Key::Only("attention_bias", false),
        Key::Expected("use_bidirectional_attention", false),
        Key::Read(read_scale),
        Key::Written("query_pre_attn_scalar", |model| whole_if_it_is(model.attention_scale().powi(-2))),
        Key::Written("layer_types", windows::types),
        Key::Written("sliding_window", windows::or_context),
        Key::Written("attention_dropout", no_dropout),
    ]
}

fn keys() -> Vec<Key> {
    let own = [
        Key::Read(read_caps),
        Key::Written("final_logit_softcapping", |model| json!(model.logit_softcap)),
        Key::Read(read_windows),
        Key::Read(|keys, model| {
            let local = read_rope_by_type(keys, [1_000_000.0, LOCAL_THETA], model);
            model.rope_local_theta = Some(local);
        }),
        Key::Written("rope_theta", |model| model.rope_theta.into()),
        Key::Written("rope_local_base_freq", |model| model.rope_local_theta.unwrap_or(LOCAL_THETA).into()),
        Key::ROPE_SCALING,
    ];
    [sizes(|_| 131_072), own.to_vec()].concat()
}

/// A number without its fraction, if that is rounding.
fn whole_if_it_is(number: f64) -> Value {
    let whole = number.round();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is near")]
    if (number - whole).abs() < 1e-9 * whole { (whole as u64).into() } else { number.into() }
}

fn read_caps(keys: &mut ConfigJson<'_>, model: &mut ModelConfig) {
    model.logit_softcap = keys.optional_number("final_logit_softcapping");
    keys.none("attn_logit_softcapping", "scores without a cap are supported");
}

fn read_scale(keys: &mut ConfigJson<'_>, model: &mut ModelConfig) {
    let scale = keys.number_or("query_pre_attn_scalar", 256.0).sqrt().recip();
    let is_plain = (scale - ModelConfig { attention_scale: None, ..model.clone() }.attention_scale()).abs() < 1e-12;
    model.attention_scale = (!is_plain).then_some(scale);
}

/// Reads the windows, of all layers but those that `layer_types` or `sliding_window_pattern` names.
fn read_windows(keys: &mut ConfigJson<'_>, model: &mut ModelConfig) {
    let period = keys.size_or("sliding_window_pattern", PERIOD);
    windows::read_in_all_but(keys, model, 4096, |layer| (layer + 1).is_multiple_of(period));
}

fn read(keys: &ArchitectureKeys<'_>, config: &mut ModelConfig) -> Result<(), InteropError> {
    let window = keys.optional_count("attention.sliding_window")?.unwrap_or(0);
    let windows = windows::layers(config.n_layers).map(|layer| if is_global(layer) { 0 } else { window });
    let windows: Vec<usize> = windows.collect();
    config.attention_window = windows::repeated(&windows);
    config.rope_local_theta = Some(keys.float("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA));
    config.embedding_scale = embedding_scale(config);
    config.logit_softcap = keys.float("final_logit_softcapping")?.filter(|cap| *cap > 0.0);
    config.attention_scale = scale_of_27b(config, LAYERS_OF_27B);
    Ok(())
}

fn write(config: &ModelConfig) -> Result<OwnKeys, String> {
    let window = windows::in_all_but(config, is_global)
        .ok_or("in llama.cpp every sixth layer of this family has no window, and all others have one")?;
    let local = config.rope_local_theta.unwrap_or(LOCAL_THETA);
    if window > 0 && (local - LOCAL_THETA).abs() > 0.0 {
        return Err(format!("model.rope_local_theta = {local}: llama.cpp has {LOCAL_THETA} in this family"));
    }
    check_scale(config, scale_of_27b(config, LAYERS_OF_27B))?;
    let mut keys = (llama::GGUF.write)(config)?;
    keys.push(("attention.sliding_window", gguf::Value::count(window)));
    keys.extend(config.logit_softcap.map(|cap| ("final_logit_softcapping", gguf::Value::f32(cap))));
    Ok(keys)
}

/// Whether a layer sees the whole context in llama.cpp.
fn is_global(layer: usize) -> bool {
    (layer + 1).is_multiple_of(PERIOD)
}

/// The scale of scores in the largest model, which llama.cpp knows by its layers; `None` in all others.
pub(super) fn scale_of_27b(config: &ModelConfig, its_layers: usize) -> Option<f64> {
    let width = config.d_model as f64 / config.n_heads as f64;
    (config.n_layers == its_layers).then(|| width.sqrt().recip())
}

pub(super) fn check_scale(config: &ModelConfig, in_llama_cpp: Option<f64>) -> Result<(), String> {
    let scale = config.attention_scale();
    let expected = ModelConfig { attention_scale: in_llama_cpp, ..config.clone() }.attention_scale();
    match (scale / expected - 1.0).abs() > 1e-6 {
        true => Err(format!("model.attention_scale = {scale}: llama.cpp has {expected} for a model of this size")),
        false => Ok(()),
    }
}
