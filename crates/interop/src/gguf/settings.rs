//! Converts a model's settings between GGUF metadata and `[model]`: the keys that all architectures have. A family adds
//! its own.
//!
//! Sources: llama.cpp, `llama-arch.cpp` for the keys, `src/models/` for what each architecture reads and needs.

use std::collections::BTreeMap;
use std::path::Path;

use super::metadata::{ArchitectureKeys, Metadata};
use super::read::{Gguf, StoredTensor};
use super::rope_freqs;
use super::value::{Value, shortest};
use crate::error::cannot_read;
use crate::families::LlamaCpp;
use crate::{Family, InteropError};
use tinderbox_model::config::{ModelConfig, NormKind, PositionKind, RopeScaling};

const ARCHITECTURE: &str = "general.architecture";
/// Whether a file holds a model or adapters.
pub(super) const TYPE: &str = "general.type";
pub(super) const ADAPTER: &str = "adapter";
/// A key that only Tinderbox reads.
const OWN_SCALING: &str = "tinderbox.rope_scaling";
/// Marks a file as written here, and so as one that a later export may replace.
const EXPORTED: &str = "tinderbox.exported";
/// Whether `output.weight` is the token embedding, in architectures that must have one.
const TIED: &str = "tinderbox.tie_embeddings";
const DOCUMENT_SEPARATOR: &str = "tinderbox.document_separator";
/// The version of the quantised block formats.
const QUANTIZATION_VERSION: u32 = 2;

fn architectures(is_listed: impl Fn(&LlamaCpp) -> bool) -> Vec<&'static str> {
    let known = Family::ALL.into_iter().filter_map(|family| family.gguf.as_ref());
    let mut names: Vec<&str> = known.filter(|gguf| is_listed(gguf)).map(|gguf| gguf.architecture).collect();
    names.dedup();
    names
}

/// The family and the config of the model in a file.
pub(super) fn read(
    metadata: &Metadata,
    tensors: &BTreeMap<String, StoredTensor>,
) -> Result<(&'static Family, ModelConfig), InteropError> {
    let name = metadata.required(ARCHITECTURE, metadata.string(ARCHITECTURE)?)?;
    let known = Family::ALL.into_iter().filter_map(|family| Some((family, family.gguf.as_ref()?)));
    let Some((family, gguf)) = known.clone().find(|(_, gguf)| gguf.architecture == name) else {
        let supported = architectures(|_| true).join(", ");
        return Err(metadata.unsupported(ARCHITECTURE, &format!("{name:?}"), &supported));
    };
    let keys = ArchitectureKeys { metadata, architecture: name };
    refuse_more(&keys, gguf)?;
    let (d_model, n_heads) = (keys.count("embedding_length")?, keys.count("attention.head_count")?);
    let head_dim = keys.optional_count("attention.key_length")?.or(d_model.checked_div(n_heads));
    let head_dim = keys.required("attention.key_length", head_dim)?;
    if let Some(value_length) = keys.optional_count("attention.value_length")?.filter(|n| *n != head_dim) {
        let supported = format!("{head_dim}, that of keys");
        return Err(keys.unsupported("attention.value_length", &value_length.to_string(), &supported));
    }
    let has = |name: &str| tensors.contains_key(name);
    let n_rows = tensors.get("token_embd.weight").and_then(|tensor| tensor.numbers.shape().first().copied());
    let fixed = family.fixed();
    let norm_eps = norm_eps_key(&fixed);
    let rope_theta = keys.float("rope.freq_base")?.unwrap_or(fixed.rope_theta);
    let mut config = ModelConfig {
        context_length: keys.count("context_length")?,
        d_model,
        n_layers: keys.count("block_count")?,
        n_heads,
        n_kv_heads: keys.optional_count("attention.head_count_kv")?.unwrap_or(n_heads),
        head_dim,
        d_ff: keys.count("feed_forward_length")?,
        rope_theta,
        rope_scaling: rope_scaling(&keys, tensors, rope_theta)?,
        rotary_fraction: rotary_fraction(&keys, head_dim)?,
        norm_eps: keys.required(norm_eps, keys.float(norm_eps)?)?,
        bias: family.has_all_biases || has("blk.0.attn_output.bias"),
        qkv_bias: family.has_all_biases || has("blk.0.attn_q.bias"),
        tie_embeddings: !has("output.weight") || metadata.bool(TIED)? == Some(true),
        vocab_size: Some(metadata.required("token_embd.weight", n_rows)?),
        ..fixed
    };
    (gguf.read)(&keys, &mut config)?;
    match config.problems() {
        problems if problems.is_empty() => Ok((family, config)),
        problems => Err(InteropError::Unsupported { path: metadata.path().to_owned(), problems }),
    }
}

/// The metadata of a file with this model and name, without the tokenizer's.
pub(super) fn write(
    family: &Family,
    config: &ModelConfig,
    name: &str,
    n_rows: usize,
    file_type: u32,
) -> Result<Vec<(String, Value)>, InteropError> {
    let no_gguf = |reason| InteropError::NoGguf { reason };
    let gguf = family.gguf.as_ref().ok_or_else(|| unknown(family))?;
    if !gguf.has_windows && config.attention_window.iter().any(|window| *window > 0) {
        let reason = "its layers have attention windows, which llama.cpp does not know in this family";
        return Err(no_gguf(reason.to_owned()));
    }
    let mut values = general(gguf, "model", name, file_type);
    if gguf.has_tied_output && config.tie_embeddings {
        values.push((TIED.to_owned(), Value::bool(true)));
    }
    let mut add = |key: &str, value: Value| values.push((format!("{}.{key}", gguf.architecture), value));
    add("vocab_size", Value::count(n_rows));
    add("context_length", Value::count(config.context_length));
    add("embedding_length", Value::count(config.d_model));
    add("block_count", Value::count(config.n_layers));
    add("feed_forward_length", Value::count(config.d_ff));
    add("attention.head_count", Value::count(config.n_heads));
    add("attention.head_count_kv", Value::count(config.n_kv_heads));
    add(norm_eps_key(config), Value::f32(config.norm_eps));
    for (key, value) in (gguf.write)(config).map_err(no_gguf)? {
        add(key, value);
    }
    if config.position == PositionKind::Rope {
        add("rope.dimension_count", Value::count(config.rotary_dim()));
        add("rope.freq_base", Value::f32(config.rope_theta));
    }
    match config.rope_scaling.as_ref().filter(|_| config.position == PositionKind::Rope) {
        None => {}
        Some(&RopeScaling::Linear { factor }) => {
            add("rope.scaling.type", Value::string("linear"));
            add("rope.scaling.factor", Value::f32(factor));
        }
        Some(scaling @ &RopeScaling::Yarn { factor, original_context_length, beta_fast, beta_slow, .. }) => {
            add("rope.scaling.type", Value::string("yarn"));
            add("rope.scaling.factor", Value::f32(factor));
            add("rope.scaling.original_context_length", Value::count(original_context_length));
            add("rope.scaling.yarn_beta_fast", Value::f32(beta_fast));
            add("rope.scaling.yarn_beta_slow", Value::f32(beta_slow));
            // llama.cpp multiplies the default by it.
            let share = scaling.attention_factor(config.context_length) / RopeScaling::default_attention_factor(factor);
            add("rope.scaling.attn_factor", Value::f32(share));
        }
        // The factors are tensors.
        Some(scaling @ &RopeScaling::Longrope { original_context_length, .. }) => {
            add("rope.scaling.original_context_length", Value::count(original_context_length));
            add("rope.scaling.attn_factor", Value::f32(scaling.attention_factor(config.context_length)));
        }
        Some(RopeScaling::Llama3 { .. }) if !gguf.has_rope_freqs => {
            let known = architectures(|gguf| gguf.has_rope_freqs).join(" and ");
            return Err(no_gguf(format!(
                "model.rope_scaling has the kind \"llama3\", which llama.cpp knows in {known} only, and the model is \
                 of the family {family}"
            )));
        }
        // llama.cpp reads the tensor of factors; these keys are for reading the file back.
        Some(&RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length }) => {
            let mut add = |key: &str, value: Value| values.push((format!("{OWN_SCALING}.{key}"), value));
            add("factor", Value::f32(factor));
            add("low_freq_factor", Value::f32(low_freq_factor));
            add("high_freq_factor", Value::f32(high_freq_factor));
            add("original_context_length", Value::count(original_context_length));
        }
    }
    Ok(values)
}

/// The metadata of a file with adapters of a model of `family`, under this name, whose product is multiplied by `alpha`
/// divided by their rank.
pub(super) fn write_adapter(
    family: &Family,
    name: &str,
    alpha: f64,
    file_type: u32,
) -> Result<Vec<(String, Value)>, InteropError> {
    let gguf = family.gguf.as_ref().ok_or_else(|| unknown(family))?;
    let mut values = general(gguf, ADAPTER, name, file_type);
    values.push(("adapter.type".to_owned(), Value::string("lora")));
    values.push(("adapter.lora.alpha".to_owned(), Value::f32(alpha)));
    Ok(values)
}

/// The alpha of a file with adapters of a model of `family`.
pub(super) fn read_adapter(metadata: &Metadata, family: &Family) -> Result<f64, InteropError> {
    /// The last two are texts about the adapters.
    const KNOWN: [&str; 4] = ["type", "lora.alpha", "lora.task_name", "lora.prompt_prefix"];
    let only = |key: &str, expected: Option<&str>, supported: &str| match metadata.string(key)? {
        found if found == expected => Ok(()),
        found => Err(metadata.unsupported(key, &format!("{:?}", found.unwrap_or_default()), supported)),
    };
    only(TYPE, Some(ADAPTER), "\"adapter\", files of adapters")?;
    only("adapter.type", Some("lora"), "\"lora\"")?;
    let architecture = family.gguf.as_ref().ok_or_else(|| unknown(family))?.architecture;
    only(ARCHITECTURE, Some(architecture), &format!("adapters of the base's family, {family}"))?;
    let is_unknown = |key: &&str| key.strip_prefix("adapter.").is_some_and(|rest| !KNOWN.contains(&rest));
    match metadata.keys().find(is_unknown) {
        Some(key) => Err(metadata.unsupported(key, "...", "adapters without it")),
        None => Ok(metadata.float("adapter.lora.alpha")?.unwrap_or_default()),
    }
}

/// The metadata of every file.
fn general(gguf: &LlamaCpp, kind: &str, name: &str, file_type: u32) -> Vec<(String, Value)> {
    let entries = [
        (ARCHITECTURE, Value::string(gguf.architecture)),
        (TYPE, Value::string(kind)),
        ("general.name", Value::string(name)),
        ("general.file_type", Value::u32(file_type)),
        ("general.quantization_version", Value::u32(QUANTIZATION_VERSION)),
        (EXPORTED, Value::bool(true)),
    ];
    entries.map(|(key, value)| (key.to_owned(), value)).into()
}

/// The error of a family that llama.cpp does not know.
fn unknown(family: &Family) -> InteropError {
    InteropError::NoGguf { reason: format!("llama.cpp does not know the family {family}") }
}

/// The entry for the separator of documents in the training text.
pub(super) fn write_document_separator(separator: &str) -> (String, Value) {
    (DOCUMENT_SEPARATOR.to_owned(), Value::string(separator))
}

pub(super) fn document_separator(metadata: &Metadata) -> Result<Option<String>, InteropError> {
    let separator = metadata.string(DOCUMENT_SEPARATOR)?.filter(|separator| !separator.is_empty());
    Ok(separator.map(str::to_owned))
}

/// Whether Tinderbox wrote the file at `path`.
pub(super) fn is_exported(path: &Path) -> bool {
    let is_file = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
    is_file && Gguf::read(path).is_ok_and(|file| file.metadata.bool(EXPORTED).is_ok_and(|it| it == Some(true)))
}

fn norm_eps_key(config: &ModelConfig) -> &'static str {
    match config.norm {
        NormKind::LayerNorm => "attention.layer_norm_epsilon",
        NormKind::RmsNorm => "attention.layer_norm_rms_epsilon",
    }
}

/// Llama 3's scaling, from the keys that [`write`] adds.
fn own_scaling(metadata: &Metadata) -> Result<Option<RopeScaling>, InteropError> {
    let float = |key: &str| metadata.float(&format!("{OWN_SCALING}.{key}"));
    let original = metadata.count(&format!("{OWN_SCALING}.original_context_length"))?;
    Ok(match (float("factor")?, float("low_freq_factor")?, float("high_freq_factor")?, original) {
        (Some(factor), Some(low_freq_factor), Some(high_freq_factor), Some(original_context_length)) => {
            Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length })
        }
        _ => None,
    })
}

/// Rejects unsupported settings that would change the model.
fn refuse_more(keys: &ArchitectureKeys<'_>, gguf: &LlamaCpp) -> Result<(), InteropError> {
    let refuse = |key: &str, supported: &str, is_neutral: &dyn Fn(f64) -> bool| match keys.float(key)? {
        Some(value) if !is_neutral(value) => Err(keys.unsupported(key, &value.to_string(), supported)),
        _ => Ok(()),
    };
    refuse("expert_count", "models without experts", &|n| n == 0.0)?;
    let context_length = keys.count("context_length")? as f64;
    // A window that is as long as the context restricts nothing.
    let is_wide = |window: f64| window == 0.0 || window >= context_length;
    if !gguf.has_windows {
        refuse("attention.sliding_window", "models whose positions see all before them", &is_wide)?;
    }
    if !gguf.has_scales {
        let supported = "scores divided by the root of the width of a head";
        refuse("attention.scale", supported, &|scale| scale == 0.0)?;
        for (key, supported) in [
            ("logit_scale", "logits that are not scaled"),
            ("embedding_scale", "embeddings that are not scaled"),
            ("residual_scale", "layers whose outputs are not scaled"),
        ] {
            refuse(key, supported, &|scale| [0.0, 1.0].contains(&scale))?;
        }
    }
    Ok(())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as `ModelConfig::rotary_dim` does")]
fn rotary_fraction(keys: &ArchitectureKeys<'_>, head_dim: usize) -> Result<f64, InteropError> {
    let rotary_dim = keys.optional_count("rope.dimension_count")?.unwrap_or(head_dim);
    let fraction = rotary_dim as f64 / head_dim as f64;
    // The fraction is rounded; truncating the number of dimensions must not lose one.
    let is_less = ((head_dim as f64 * fraction) as usize) < rotary_dim;
    Ok(if is_less { fraction.next_up() } else { fraction })
}

/// `LongRoPE`, whose lists are tensors; `None` without them.
fn longrope(
    keys: &ArchitectureKeys<'_>,
    tensors: &BTreeMap<String, StoredTensor>,
) -> Result<Option<RopeScaling>, InteropError> {
    let path = keys.metadata.path();
    let (short, long) = match rope_freqs::LONGROPE.map(|name| tensors.get(name)) {
        [Some(short), Some(long)] => (short, long),
        [None, None] => return Ok(None),
        _ => {
            let [short, long] = rope_freqs::LONGROPE;
            let problem = format!("it has only one of {short} and {long}");
            return Err(InteropError::Unsupported { path: path.to_owned(), problems: vec![problem] });
        }
    };
    let factors = |tensor: &StoredTensor| {
        let factors = tensor.numbers.read().map_err(cannot_read(path))?.values;
        Ok::<_, InteropError>(factors.into_iter().map(shortest).collect())
    };
    let original_context_length = keys.count("rope.scaling.original_context_length")?;
    let factor = keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let default = RopeScaling::longrope_attention_factor(keys.count("context_length")?, original_context_length);
    Ok(Some(RopeScaling::Longrope {
        short_factors: factors(short)?,
        long_factors: factors(long)?,
        original_context_length,
        attention_factor: Some(factor).filter(|factor| (factor / default - 1.0).abs() > f64::from(f32::EPSILON)),
    }))
}

/// `YaRN`, which llama.cpp computes as transformers does, with one factor more for queries and keys.
fn yarn(keys: &ArchitectureKeys<'_>, factor: f64) -> Result<RopeScaling, InteropError> {
    let share = keys.float("rope.scaling.attn_factor")?.filter(|share| (share - 1.0).abs() > f64::from(f32::EPSILON));
    Ok(RopeScaling::Yarn {
        factor,
        original_context_length: keys.count("rope.scaling.original_context_length")?,
        beta_fast: keys.float("rope.scaling.yarn_beta_fast")?.unwrap_or(RopeScaling::beta_fast()),
        beta_slow: keys.float("rope.scaling.yarn_beta_slow")?.unwrap_or(RopeScaling::beta_slow()),
        attention_factor: share.map(|share| {
            #[allow(clippy::cast_possible_truncation, reason = "the share is one of single precision")]
            shortest((share * RopeScaling::default_attention_factor(factor)) as f32)
        }),
    })
}

fn rope_scaling(
    keys: &ArchitectureKeys<'_>,
    tensors: &BTreeMap<String, StoredTensor>,
    theta: f64,
) -> Result<Option<RopeScaling>, InteropError> {
    if let Some(longrope) = longrope(keys, tensors)? {
        return Ok(Some(longrope));
    }
    let factor = keys.float("rope.scaling.factor")?.or(keys.float("rope.scale_linear")?);
    match (keys.string("rope.scaling.type")?.unwrap_or("linear"), factor) {
        ("none", _) | ("linear", None | Some(0.0 | 1.0)) => {}
        ("linear", Some(factor)) => return Ok(Some(RopeScaling::Linear { factor })),
        ("yarn", factor) => return yarn(keys, keys.required("rope.scaling.factor", factor)?).map(Some),
        (other, _) => {
            let supported = "\"none\", \"linear\" and \"yarn\", and Llama 3's, which is a tensor";
            return Err(keys.unsupported("rope.scaling.type", &format!("{other:?}"), supported));
        }
    }
    let Some(freqs) = tensors.get(rope_freqs::TENSOR) else { return Ok(None) };
    let path = keys.metadata.path();
    let factors = freqs.numbers.read().map_err(cannot_read(path))?.values;
    let found = rope_freqs::scaling(&factors, theta, own_scaling(keys.metadata)?);
    found.map(Some).ok_or_else(|| {
        let problem = format!("{}: its factors are not those of Llama 3's scaling", rope_freqs::TENSOR);
        InteropError::Unsupported { path: path.to_owned(), problems: vec![problem] }
    })
}
