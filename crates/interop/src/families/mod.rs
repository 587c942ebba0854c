//! The model families of other projects, one file each: the options of `[model]` that a family fixes, its
//! `config.json`, the names of its tensors, and its keys in GGUF files. This file has what is common to all; it knows the
//! keys of `[model]`, but no files.

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

use crate::InteropError;
use crate::gguf::{ArchitectureKeys, Value};
use crate::hf::Key;
use crate::layout::TensorNames;
use tinderbox_train::config::{ModelConfig, PositionKind, RopeScaling};

/// A model family.
pub struct Family {
    /// The `model_type` of transformers.
    name: &'static str,
    /// The config of the family that is nearest to a config: keys that the family fixes are set, all others are as
    /// given.
    nearest: fn(&ModelConfig) -> ModelConfig,
    /// Whether its files have all biases. Those that a run lacks are written as zeros.
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

/// A family in llama.cpp.
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
type OwnKeys = Vec<(&'static str, Value)>;

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
    /// The keys that rule out the nearest family, each as `model.KEY = VALUE: WHY`.
    pub fn of(config: &ModelConfig) -> Result<&'static Self, Vec<String>> {
        let all = Self::ALL.map(|family| (family, family.obstacles(config)));
        let nearest = all.into_iter().min_by_key(|(_, obstacles)| obstacles.len()).expect("there are families");
        if nearest.1.is_empty() { Ok(nearest.0) } else { Err(nearest.1) }
    }

    /// A config with the keys that the family fixes; all others have their defaults.
    pub(crate) fn fixed(&self) -> ModelConfig {
        (self.nearest)(&ModelConfig::default())
    }

    /// `config`, with all biases that the family's files have.
    pub(crate) fn with_biases(&self, config: &ModelConfig) -> ModelConfig {
        if !self.has_all_biases {
            return config.clone();
        }
        let with_all = (self.nearest)(&ModelConfig { bias: true, qkv_bias: true, ..config.clone() });
        ModelConfig { bias: with_all.bias, qkv_bias: with_all.qkv_bias, ..config.clone() }
    }

    /// The keys of `config` that rule out this family, each as `model.KEY = VALUE: WHY`.
    pub fn obstacles(&self, config: &ModelConfig) -> Vec<String> {
        // Without `..`: a new key does not compile until it is decided which families support it.
        let ModelConfig {
            context_length: _,
            d_model,
            n_layers: _,
            n_heads,
            n_kv_heads,
            head_dim,
            d_ff: _,
            position,
            rope_theta: _,
            rotary_fraction,
            norm,
            norm_eps,
            mlp,
            bias,
            qkv_bias,
            qk_norm,
            qk_norm_across_heads,
            parallel_residual,
            attention_window,
            attention_scale: _, // checked by its method
            attention_softcap,
            tie_embeddings: _,
            zero_init_projections: _, // affects initialization only
            norm_weights,
            value_residual,
            embedding_skip,
            vocab_size: _,
            logit_softcap,
            dropout: _,
            embedding_scale,
            residual_scale,
            logit_scale,
            rope_layers,
            rope_scaling,
            post_norm,
            pre_norm,
            rope_local_theta,
        } = config;
        let nearest = (self.nearest)(config);
        let mut obstacles = Obstacles { family: self, lines: Vec::new() };
        obstacles.must_be("position", position, &nearest.position);
        obstacles.must_be("norm", norm, &nearest.norm);
        obstacles.must_be("norm_eps", norm_eps, &nearest.norm_eps);
        obstacles.must_be("mlp", mlp, &nearest.mlp);
        obstacles.must_be("qk_norm", qk_norm, &nearest.qk_norm);
        if *qk_norm && nearest.qk_norm {
            obstacles.must_be("qk_norm_across_heads", qk_norm_across_heads, &nearest.qk_norm_across_heads);
        }
        obstacles.must_be("parallel_residual", parallel_residual, &nearest.parallel_residual);
        obstacles.must_be("post_norm", post_norm, &nearest.post_norm);
        obstacles.must_be("pre_norm", pre_norm, &nearest.pre_norm);
        if *position == PositionKind::Rope {
            obstacles.must_be("rotary_fraction", rotary_fraction, &nearest.rotary_fraction);
            if rope_layers.contains(&false) && nearest.rope_layers != *rope_layers {
                obstacles.add("rope_layers", rope_layers, "rotates in all layers");
            }
            if *rope_scaling != nearest.rope_scaling {
                obstacles.add("rope_scaling", rope_scaling, "has no factor for each wavelength");
            }
            if *rope_local_theta != nearest.rope_local_theta {
                let why = match nearest.rope_local_theta {
                    Some(_) => "has wavelengths of their own in layers with windows",
                    None => "has the same wavelengths in all layers",
                };
                obstacles.add("rope_local_theta", rope_local_theta, why);
            }
        }
        obstacles.must_be("bias", bias, &nearest.bias);
        obstacles.must_be("qkv_bias", qkv_bias, &nearest.qkv_bias);
        obstacles.must_be("n_kv_heads", n_kv_heads, &nearest.n_kv_heads);
        obstacles.must_be("head_dim", head_dim, &nearest.head_dim);
        if self.heads_divide_width && !d_model.is_multiple_of(*n_heads) {
            obstacles.add("n_heads", n_heads, &format!("has heads that divide model.d_model = {d_model}"));
        }
        let scale = ModelConfig { head_dim: *head_dim, ..nearest.clone() }.attention_scale();
        obstacles.must_be("attention_scale", &config.attention_scale(), &scale);
        obstacles.must_be("embedding_scale", embedding_scale, &nearest.embedding_scale);
        obstacles.must_be("residual_scale", residual_scale, &nearest.residual_scale);
        obstacles.must_be("logit_scale", logit_scale, &nearest.logit_scale);
        obstacles.must_be("norm_weights", norm_weights, &nearest.norm_weights);
        obstacles.must_be("value_residual", value_residual, &nearest.value_residual);
        obstacles.must_be("embedding_skip", embedding_skip, &nearest.embedding_skip);
        if *attention_softcap != nearest.attention_softcap {
            obstacles.add("attention_softcap", attention_softcap, "has no cap on its scores");
        }
        if *logit_softcap != nearest.logit_softcap {
            obstacles.add("logit_softcap", logit_softcap, "has no cap on its logits");
        }
        if *attention_window != nearest.attention_window {
            let has_windows = nearest.attention_window.iter().any(|window| *window > 0);
            let why = if has_windows { "has windows of one size" } else { "has no such windows" };
            obstacles.add("attention_window", attention_window, why);
        }
        obstacles.lines
    }
}

/// `config` without the options that most families do not have.
fn plain(config: &ModelConfig) -> ModelConfig {
    ModelConfig {
        rotary_fraction: 1.0,
        qk_norm: false,
        qk_norm_across_heads: false,
        parallel_residual: false,
        attention_window: vec![0; config.attention_window.len()],
        attention_scale: None,
        attention_softcap: None,
        norm_weights: true,
        value_residual: false,
        embedding_skip: false,
        logit_softcap: None,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        rope_layers: Vec::new(),
        rope_scaling: config.rope_scaling.clone().filter(|scaling| !matches!(scaling, RopeScaling::Longrope { .. })),
        post_norm: false,
        pre_norm: true,
        rope_local_theta: None,
        ..config.clone()
    }
}

/// The shortest list that gives `all` when it is repeated.
fn shortest_period<T: PartialEq>(all: &[T]) -> &[T] {
    let repeats = |n: &usize| all.iter().enumerate().all(|(i, it)| *it == all[i % n]);
    &all[..(1..all.len()).find(repeats).unwrap_or(all.len())]
}

/// The value of a key of dropout: the weights are those of a trained model.
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

/// The keys that rule out a family.
struct Obstacles<'a> {
    family: &'a Family,
    lines: Vec<String>,
}

impl Obstacles<'_> {
    fn must_be<T: PartialEq + Serialize>(&mut self, key: &str, value: &T, expected: &T) {
        if value != expected {
            self.add(key, value, &format!("has {}", shown(expected)));
        }
    }

    fn add(&mut self, key: &str, value: &impl Serialize, why: &str) {
        self.lines.push(format!("model.{key} = {}: {} {why}", shown(value), self.family));
    }
}

/// A value as written in a config, where there is no word for a key that is left out.
fn shown(value: &impl Serialize) -> String {
    toml::Value::try_from(value).map_or_else(|_| "none".to_owned(), |value| value.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tinderbox_train::config::MlpKind;

    /// Small configs of every family, with and without everything optional.
    pub(crate) fn configs() -> Vec<(&'static Family, ModelConfig)> {
        let mut configs = Vec::new();
        for family in Family::ALL {
            for options in 0..16 {
                let [tie_embeddings, bias, qkv_bias, parallel_residual] = [1, 2, 4, 8].map(|bit| options & bit > 0);
                let config = (family.nearest)(&ModelConfig {
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
                assert_eq!(family.obstacles(&config), [""; 0], "{family}");
                if !configs.contains(&(family, config.clone())) {
                    configs.push((family, config));
                }
            }
        }
        configs
    }

    #[test]
    fn a_config_belongs_to_its_family() {
        for (family, config) in configs() {
            // Mistral's configs are Llama's, too.
            let expected = if family.name == "mistral" { &llama::FAMILY } else { family };
            assert_eq!(Family::of(&config), Ok(expected), "{config:?}");
        }
    }

    #[test]
    fn obstacles_name_the_key_and_the_value() {
        let mixture = ModelConfig {
            position: PositionKind::Rope,
            mlp: MlpKind::ReluSquared,
            qk_norm: true,
            ..ModelConfig::default()
        };
        insta::assert_snapshot!(Family::of(&mixture).expect_err("no family has all of these").join("\n"), @r#"
        model.norm = "layer_norm": qwen3 has "rms_norm"
        model.mlp = "relu_squared": qwen3 has "swiglu"
        "#);
        let windows =
            ModelConfig { attention_window: vec![0, 4, 8], attention_scale: Some(1.0), ..ModelConfig::default() };
        insta::assert_snapshot!(Family::of(&windows).expect_err("windows of two sizes").join("\n"), @"model.attention_window = [0, 4, 8]: gpt_neo has windows of one size");
    }
}
