//! Converts a model's settings between GGUF metadata and `[model]`.
//!
//! Sources: llama.cpp, `llama-arch.cpp` for the keys, `src/models/` for what each architecture reads and needs.

use std::collections::BTreeMap;

use super::keys::Metadata;
use super::read::StoredTensor;
use super::rope_freqs;
use super::value::Value;
use crate::{Family, InteropError};
use tinderbox_train::config::{MlpKind, ModelConfig, NormKind, PositionKind, RopeScaling};

const ARCHITECTURE: &str = "general.architecture";
/// A key that only Tinderbox reads.
const OWN_SCALING: &str = "tinderbox.rope_scaling";
/// The version of the quantised block formats.
const QUANTIZATION_VERSION: u32 = 2;

/// llama.cpp's name for a family; `None` if it does not support it.
fn architecture(family: Family) -> Option<&'static str> {
    match family {
        Family::Gpt2 => Some("gpt2"),
        Family::Llama | Family::Mistral => Some("llama"),
        Family::Qwen2 => Some("qwen2"),
        Family::Qwen3 => Some("qwen3"),
        Family::Arcee => Some("arcee"),
        Family::GptNeox => Some("gptneox"),
        Family::GptNeo => None,
    }
}

/// The family and the config of the model in a file.
///
/// # Errors
/// If settings are missing or not supported here.
pub(super) fn read(
    metadata: &Metadata,
    tensors: &BTreeMap<String, StoredTensor>,
) -> Result<(Family, ModelConfig), InteropError> {
    let name = metadata.required(ARCHITECTURE, metadata.string(ARCHITECTURE)?)?;
    let known = Family::ALL.into_iter().filter_map(|family| Some((architecture(family)?, family)));
    let family = known.clone().find(|(architecture, _)| *architecture == name).map(|(_, family)| family);
    let family = family.ok_or_else(|| {
        let mut names: Vec<&str> = known.map(|(architecture, _)| architecture).collect();
        names.dedup();
        metadata.unsupported(ARCHITECTURE, &format!("{name:?}"), &names.join(", "))
    })?;
    let keys = Keys { metadata, architecture: name };
    keys.refuse_more()?;
    let (d_model, n_heads) = (keys.count("embedding_length")?, keys.count("attention.head_count")?);
    let head_dim = keys.optional_count("attention.key_length")?.or(d_model.checked_div(n_heads));
    let head_dim = metadata.required(&keys.key("attention.key_length"), head_dim)?;
    if let Some(value_length) = keys.optional_count("attention.value_length")?.filter(|n| *n != head_dim) {
        let supported = format!("{head_dim}, that of keys");
        return Err(metadata.unsupported(&keys.key("attention.value_length"), &value_length.to_string(), &supported));
    }
    let is_gpt = family.is_gpt();
    let has = |name: &str| tensors.contains_key(name);
    let rows = |name: &str| tensors.get(name).and_then(|tensor| tensor.shape.first().copied());
    let position = if family == Family::Gpt2 { PositionKind::Learned } else { PositionKind::Rope };
    let norm_eps = if is_gpt { "attention.layer_norm_epsilon" } else { "attention.layer_norm_rms_epsilon" };
    let rope_theta = keys.float("rope.freq_base")?.unwrap_or(ModelConfig::default().rope_theta);
    let config = ModelConfig {
        context_length: keys.count("context_length")?,
        d_model,
        n_layers: keys.count("block_count")?,
        n_heads,
        n_kv_heads: keys.optional_count("attention.head_count_kv")?.unwrap_or(n_heads),
        head_dim,
        d_ff: keys.count("feed_forward_length")?,
        position,
        rope_theta,
        rope_scaling: keys.rope_scaling(tensors.get(rope_freqs::TENSOR), rope_theta)?,
        rotary_fraction: keys.rotary_fraction(head_dim)?,
        norm: if is_gpt { NormKind::LayerNorm } else { NormKind::RmsNorm },
        norm_eps: metadata.required(&keys.key(norm_eps), keys.float(norm_eps)?)?,
        mlp: keys.mlp(family)?,
        bias: is_gpt || has("blk.0.attn_output.bias"),
        qkv_bias: is_gpt || has("blk.0.attn_q.bias"),
        qk_norm: family == Family::Qwen3,
        parallel_residual: metadata.bool(&keys.key("use_parallel_residual"))?.unwrap_or(family == Family::GptNeox),
        attention_window: Vec::new(),
        attention_scale: None,
        tie_embeddings: !has("output.weight"),
        zero_init_projections: false,
        norm_weights: true,
        value_residual: false,
        embedding_skip: false,
        vocab_size: Some(metadata.required("token_embd.weight", rows("token_embd.weight"))?),
        logit_softcap: None,
        dropout: 0.0,
    };
    match config.problems() {
        problems if problems.is_empty() => Ok((family, config)),
        problems => Err(InteropError::Unsupported { path: metadata.path().to_owned(), problems }),
    }
}

/// The metadata of a file with this model, under this name, without that of the tokenizer.
///
/// # Errors
/// If llama.cpp does not support such a model.
pub(super) fn write(
    family: Family,
    config: &ModelConfig,
    name: &str,
    n_rows: usize,
    file_type: u32,
) -> Result<Vec<(String, Value)>, InteropError> {
    let no_gguf = |reason: &str| InteropError::NoGguf { reason: reason.to_owned() };
    let architecture = architecture(family).ok_or_else(|| no_gguf("llama.cpp does not know the family gpt_neo"))?;
    let mut values = vec![
        (ARCHITECTURE.to_owned(), Value::string(architecture)),
        ("general.type".to_owned(), Value::string("model")),
        ("general.name".to_owned(), Value::string(name)),
        ("general.file_type".to_owned(), Value::u32(file_type)),
        ("general.quantization_version".to_owned(), Value::u32(QUANTIZATION_VERSION)),
    ];
    let mut add = |key: &str, value: Value| values.push((format!("{architecture}.{key}"), value));
    let count = |n: usize| Value::u32(u32::try_from(n).expect("counts of a model are below 2^32"));
    #[allow(clippy::cast_possible_truncation, reason = "to single precision, as llama.cpp needs it")]
    let float = |x: f64| Value::f32(x as f32);
    add("vocab_size", count(n_rows));
    add("context_length", count(config.context_length));
    add("embedding_length", count(config.d_model));
    add("block_count", count(config.n_layers));
    add("feed_forward_length", count(config.d_ff));
    add("attention.head_count", count(config.n_heads));
    add("attention.head_count_kv", count(config.n_kv_heads));
    if family.is_gpt() {
        add("attention.layer_norm_epsilon", float(config.norm_eps));
        add("hidden_activation", Value::string(if config.mlp == MlpKind::Gelu { "gelu" } else { "gelu_new" }));
    } else {
        add("attention.layer_norm_rms_epsilon", float(config.norm_eps));
        add("attention.key_length", count(config.head_dim));
        add("attention.value_length", count(config.head_dim));
    }
    if family == Family::GptNeox {
        add("use_parallel_residual", Value::bool(config.parallel_residual));
    }
    if family == Family::Arcee && config.bias {
        return Err(no_gguf("model.bias = true: llama.cpp knows no biases in the family arcee"));
    }
    if config.position == PositionKind::Rope {
        add("rope.dimension_count", count(config.rotary_dim()));
        add("rope.freq_base", float(config.rope_theta));
    }
    match config.rope_scaling.filter(|_| config.position == PositionKind::Rope) {
        None => {}
        Some(RopeScaling::Linear { factor }) => {
            add("rope.scaling.type", Value::string("linear"));
            add("rope.scaling.factor", float(factor));
        }
        Some(RopeScaling::Llama3 { .. }) if !matches!(family, Family::Llama | Family::Mistral | Family::Arcee) => {
            let reason = "model.rope_scaling has the kind \"llama3\", which llama.cpp knows in llama and arcee only, \
                          and the model is of the family ";
            return Err(no_gguf(&format!("{reason}{family}")));
        }
        // llama.cpp reads the tensor of factors; these keys are for reading the file back.
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length }) => {
            let mut add = |key: &str, value: Value| values.push((format!("{OWN_SCALING}.{key}"), value));
            add("factor", float(factor));
            add("low_freq_factor", float(low_freq_factor));
            add("high_freq_factor", float(high_freq_factor));
            add("original_context_length", count(original_context_length));
        }
    }
    Ok(values)
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

/// The keys of an architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn optional_count(&self, name: &str) -> Result<Option<usize>, InteropError> {
        self.metadata.same_count(&self.key(name))
    }

    fn count(&self, name: &str) -> Result<usize, InteropError> {
        self.metadata.required(&self.key(name), self.optional_count(name)?)
    }

    fn float(&self, name: &str) -> Result<Option<f64>, InteropError> {
        self.metadata.float(&self.key(name))
    }

    /// Rejects unsupported settings that would change the model.
    fn refuse_more(&self) -> Result<(), InteropError> {
        for (name, supported) in [
            ("expert_count", "models without experts"),
            ("attention.sliding_window", "models whose positions see all before them"),
            ("attention.scale", "scores divided by the root of the width of a head"),
            ("logit_scale", "logits that are not scaled"),
        ] {
            let key = self.key(name);
            if let Some(value) = self.metadata.float(&key)?.filter(|value| *value != 0.0) {
                return Err(self.metadata.unsupported(&key, &value.to_string(), supported));
            }
        }
        Ok(())
    }

    fn mlp(&self, family: Family) -> Result<MlpKind, InteropError> {
        let key = self.key("hidden_activation");
        Ok(match family {
            Family::Arcee => MlpKind::ReluSquared,
            Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 => MlpKind::Swiglu,
            Family::Gpt2 | Family::GptNeox | Family::GptNeo => match self.metadata.string(&key)? {
                None if family == Family::Gpt2 => MlpKind::GeluTanh,
                None | Some("gelu") => MlpKind::Gelu,
                Some("gelu_new") => MlpKind::GeluTanh,
                Some(other) => return Err(self.metadata.unsupported(&key, &format!("{other:?}"), "gelu, gelu_new")),
            },
        })
    }

    /// The fraction of a head that rotates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as `ModelConfig::rotary_dim` does")]
    fn rotary_fraction(&self, head_dim: usize) -> Result<f64, InteropError> {
        let rotary_dim = self.optional_count("rope.dimension_count")?.unwrap_or(head_dim);
        let fraction = rotary_dim as f64 / head_dim as f64;
        // The fraction is rounded; truncating the number of dimensions must not lose one.
        let is_less = ((head_dim as f64 * fraction) as usize) < rotary_dim;
        Ok(if is_less { fraction.next_up() } else { fraction })
    }

    fn rope_scaling(&self, freqs: Option<&StoredTensor>, theta: f64) -> Result<Option<RopeScaling>, InteropError> {
        let metadata = self.metadata;
        let key = self.key("rope.scaling.type");
        let factor = self.float("rope.scaling.factor")?.or(self.float("rope.scale_linear")?);
        match (metadata.string(&key)?.unwrap_or("linear"), factor) {
            ("none", _) | ("linear", None | Some(0.0 | 1.0)) => {}
            ("linear", Some(factor)) => return Ok(Some(RopeScaling::Linear { factor })),
            (other, _) => {
                let supported = "\"none\" and \"linear\", and Llama 3's, which is a tensor";
                return Err(metadata.unsupported(&key, &format!("{other:?}"), supported));
            }
        }
        let Some(freqs) = freqs else { return Ok(None) };
        let factors = freqs.read().map_err(|source| InteropError::Read { path: metadata.path().to_owned(), source })?;
        let found = rope_freqs::scaling(&factors, theta, own_scaling(metadata)?);
        found.map(Some).ok_or_else(|| {
            let problem = format!("{}: its factors are not those of Llama 3's scaling", rope_freqs::TENSOR);
            InteropError::Unsupported { path: metadata.path().to_owned(), problems: vec![problem] }
        })
    }
}
