//! The model families of other projects, one file each: the options of `[model]` that a family fixes, its
//! `config.json`, the names of its tensors, and its keys in GGUF files. This file has what is common to all families; it
//! knows the keys of `[model]`, but no files.

mod arcee;
mod gemma2;
mod gemma3;
mod gpt2;
mod gpt_neo;
mod gpt_neox;
mod granite;
mod llama;
mod mistral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod smollm3;
mod starcoder2;
mod windows;

use std::fmt;

use serde::{Serialize, Serializer};
use toml::{Table, Value};

use crate::InteropError;
use crate::gguf::{self, ArchitectureKeys};
use crate::hf::Key;
use crate::layout::TensorNames;
use tinderbox_model::config::{ModelConfig, RopeScaling};
use tinderbox_model::section::Section;
use tinderbox_train::run::TrainState;

/// A model family.
pub struct Family {
    /// The `model_type` of transformers.
    name: &'static str,
    /// The config of the family that is closest to a config: keys that the family fixes are set, all others are as
    /// given.
    closest_config: fn(&ModelConfig) -> ModelConfig,
    /// Whether its files have all biases. Biases that a run lacks are exported as zeros.
    pub(crate) has_all_biases: bool,
    /// Whether the number of heads must divide `d_model`, even with a `head_dim` of its own.
    heads_divide_width: bool,
    pub(crate) hf: Transformers,
    /// `None` if llama.cpp does not support the family.
    pub(crate) gguf: Option<LlamaCpp>,
}

/// A family in the transformers library.
pub(crate) struct Transformers {
    /// The class of its models.
    pub(crate) class: &'static str,
    /// Its keys of a `config.json`, in the order of reading, with the defaults of transformers.
    pub(crate) keys: fn() -> Vec<Key>,
    pub(crate) tensors: TensorNames,
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct LlamaCpp {
    /// llama.cpp's name for it.
    pub(crate) architecture: &'static str,
    /// Reads the keys that not every architecture has.
    pub(crate) read: fn(&ArchitectureKeys<'_>, &mut ModelConfig) -> Result<(), InteropError>,
    /// The keys that not every architecture has, or the reason why llama.cpp does not support such a model.
    pub(crate) write: fn(&ModelConfig) -> Result<OwnKeys, String>,
    pub(crate) tensors: TensorNames,
    /// Whether llama.cpp reads `rope_freqs.weight`, Llama 3's scaling.
    pub(crate) has_rope_freqs: bool,
    /// Whether it has scales on scores and logits, which `read` reads.
    pub(crate) has_scales: bool,
    /// Whether its layers may have windows, which `read` reads and `write` writes.
    pub(crate) has_windows: bool,
    /// Whether llama.cpp needs an output layer even if it is tied to the token embedding.
    pub(crate) has_tied_output: bool,
}

/// Keys of one architecture in a GGUF file, without its name as prefix.
type OwnKeys = Vec<(&'static str, gguf::Value)>;

impl Family {
    /// All families, in the order of messages. A config that belongs to several is of the first.
    pub const ALL: [&'static Self; 15] = [
        &gpt2::FAMILY,
        &llama::FAMILY,
        &mistral::FAMILY,
        &qwen2::FAMILY,
        &qwen3::FAMILY,
        &arcee::FAMILY,
        &gpt_neox::FAMILY,
        &gpt_neo::FAMILY,
        &starcoder2::FAMILY,
        &phi3::FAMILY,
        &smollm3::FAMILY,
        &granite::FAMILY,
        &gemma2::FAMILY,
        &gemma3::FAMILY,
        &olmo2::FAMILY,
    ];

    /// Its name, the `model_type` of transformers.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether llama.cpp supports it, so that its models can be GGUF files.
    pub fn is_in_llama_cpp(&self) -> bool {
        self.gguf.is_some()
    }

    /// The family of a `model_type`.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        Self::ALL.into_iter().find(|family| family.name == name)
    }

    /// The names of all families, for messages.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The family that `config` belongs to.
    ///
    /// # Errors
    /// The unsupported keys of the closest family, each as `model.KEY = VALUE: WHY`.
    pub fn for_config(config: &ModelConfig) -> Result<&'static Self, Vec<String>> {
        let all = Self::ALL.map(|family| (family, family.unsupported_keys(config)));
        let (family, unsupported) = all.into_iter().min_by_key(|(_, keys)| keys.len()).expect("`ALL` is not empty");
        if unsupported.is_empty() { Ok(family) } else { Err(unsupported) }
    }

    /// The family of a run's model: the one that it came from, if its config still belongs to that.
    pub fn of_run(config: &ModelConfig, state: &TrainState) -> Result<&'static Self, InteropError> {
        let own = state.family.as_deref().and_then(Self::from_name);
        match own.filter(|family| family.unsupported_keys(config).is_empty()) {
            Some(family) => Ok(family),
            None => Self::for_config(config).map_err(|unsupported_keys| InteropError::NotPortable { unsupported_keys }),
        }
    }

    /// A config with the keys that the family fixes; all others have their defaults.
    pub(crate) fn fixed(&self) -> ModelConfig {
        (self.closest_config)(&ModelConfig::default())
    }

    /// `config`, with all biases that the family's files have.
    pub(crate) fn with_biases(&self, config: &ModelConfig) -> ModelConfig {
        if !self.has_all_biases {
            return config.clone();
        }
        let with_all = (self.closest_config)(&ModelConfig { bias: true, qkv_bias: true, ..config.clone() });
        ModelConfig { bias: with_all.bias, qkv_bias: with_all.qkv_bias, ..config.clone() }
    }

    /// The keys of `config` that the family does not support, each as `model.KEY = VALUE: WHY`.
    pub fn unsupported_keys(&self, config: &ModelConfig) -> Vec<String> {
        let closest = (self.closest_config)(config);
        let [ours, theirs] = [config, &closest].map(|one| effective(one, config));
        let line = |key: &str, value: Option<&Value>, why: &str| {
            format!("model.{key} = {}: {} {why}", shown(value), self.name)
        };
        let mut lines = Vec::new();
        for (key, _) in ModelConfig::keys().into_iter().filter(|(key, _)| config.has_effect(key)) {
            let (value, expected) = (ours.get(key), theirs.get(key));
            if value != expected {
                lines.push(line(key, value, &reason(key, expected, &closest)));
            }
        }
        let ModelConfig { d_model, n_heads, .. } = *config;
        if self.heads_divide_width && !d_model.is_multiple_of(n_heads) {
            let why = format!("has heads that divide model.d_model = {d_model}");
            lines.push(line("n_heads", ours.get("n_heads"), &why));
        }
        lines
    }
}

/// The keys of `config` by name. The scale of scores is the one that holds for the heads of `actual`, given or not.
fn effective(config: &ModelConfig, actual: &ModelConfig) -> Table {
    let scale = ModelConfig { head_dim: actual.head_dim, ..config.clone() }.attention_scale();
    let config = ModelConfig { attention_scale: Some(scale), ..config.clone() };
    Table::try_from(config).expect("a config can be written as TOML")
}

/// Why a family whose closest config is this one does not support another value of a key.
fn reason(key: &str, expected: Option<&Value>, closest: &ModelConfig) -> String {
    let why = match key {
        "rope_layers" => "rotates in all layers",
        "rope_scaling" => "has no factor for each wavelength",
        "attention_window" if closest.attention_window.iter().any(|window| *window > 0) => "has windows of one size",
        "attention_window" => "has no such windows",
        _ => return format!("has {}", shown(expected)),
    };
    why.to_owned()
}

/// `config` in a family without options of its own: the keys that every family supports are kept. All others have their
/// defaults, so that no family supports a new key until its file says so.
fn plain(config: &ModelConfig) -> ModelConfig {
    let config = config.clone();
    ModelConfig {
        context_length: config.context_length,
        vocab_size: config.vocab_size,
        d_model: config.d_model,
        n_layers: config.n_layers,
        n_heads: config.n_heads,
        n_kv_heads: config.n_kv_heads,
        head_dim: config.head_dim,
        d_ff: config.d_ff,
        position: config.position,
        rope_theta: config.rope_theta,
        rope_scaling: config.rope_scaling.filter(|scaling| !matches!(scaling, RopeScaling::Longrope { .. })),
        attention_window: vec![0; config.attention_window.len()],
        norm: config.norm,
        norm_eps: config.norm_eps,
        mlp: config.mlp,
        bias: config.bias,
        qkv_bias: config.qkv_bias,
        tie_embeddings: config.tie_embeddings,
        zero_init_projections: config.zero_init_projections, // affects initialization only
        dropout: config.dropout,
        ..ModelConfig::default()
    }
}

/// The shortest list that gives `all` when it is repeated.
fn shortest_period<T: PartialEq>(all: &[T]) -> &[T] {
    let repeats = |n: &usize| all.iter().enumerate().all(|(i, it)| *it == all[i % n]);
    &all[..(1..all.len()).find(repeats).unwrap_or(all.len())]
}

/// The value of dropout keys: the model is trained.
fn no_dropout(_: &ModelConfig) -> serde_json::Value {
    0.0.into()
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Serialize for Family {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

/// A value as in a config. An absent key is shown as `none`.
fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "none".to_owned(), Value::to_string)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Small configs of every family, with and without everything optional.
    pub(crate) fn configs() -> Vec<(&'static Family, ModelConfig)> {
        let mut configs = Vec::new();
        for family in Family::ALL {
            for options in 0..16 {
                let [tie_embeddings, bias, qkv_bias, parallel_residual] = [1, 2, 4, 8].map(|bit| options & bit > 0);
                let config = (family.closest_config)(&ModelConfig {
                    context_length: 8,
                    d_model: 24,
                    n_layers: 2,
                    n_kv_heads: 2,
                    head_dim: 10,
                    d_ff: 40,
                    rotary_fraction: 0.8,
                    attention_window: vec![0, 3],
                    embedding_scale: 12.0,
                    residual_scale: 0.25,
                    logit_scale: 0.125,
                    rope_layers: vec![true, false],
                    tie_embeddings,
                    bias,
                    qkv_bias,
                    parallel_residual,
                    ..ModelConfig::default()
                });
                assert_eq!(family.unsupported_keys(&config), [""; 0], "{family}");
                if !configs.contains(&(family, config.clone())) {
                    configs.push((family, config));
                }
            }
        }
        configs
    }

    #[test]
    fn families_recognize_their_configs() {
        for (family, config) in configs() {
            // Mistral's configs are Llama's, too.
            let expected = if family.name == "mistral" { &llama::FAMILY } else { family };
            assert_eq!(Family::for_config(&config), Ok(expected), "{config:?}");
        }
    }

    #[test]
    fn windows_of_two_sizes_are_unsupported() {
        let windows =
            ModelConfig { attention_window: vec![0, 4, 8], attention_scale: Some(1.0), ..ModelConfig::default() };
        insta::assert_snapshot!(Family::for_config(&windows).expect_err("windows of two sizes").join("\n"), @"model.attention_window = [0, 4, 8]: gpt_neo has windows of one size");
    }
}
