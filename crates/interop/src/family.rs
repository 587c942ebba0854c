//! The model families that other projects support, and the one that a config of ours belongs to.
//!
//! `model_type` in a Hugging Face `config.json` names the family. This module knows the keys of `[model]`, but no
//! files.

use std::fmt;

use serde::Serialize;
use toml::Value;

use tinderbox_train::config::{MlpKind, ModelConfig, NormKind, PositionKind};

/// A model family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Learned positions, layer norm, GELU, biases everywhere.
    ///
    /// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    Gpt2,
    /// Rotary positions, RMS norm, SwiGLU.
    ///
    /// Source: Touvron et al. 2023, "`LLaMA`: Open and Efficient Foundation Language Models".
    Llama,
    /// Like Llama, without biases; its sliding windows are not supported here.
    ///
    /// Source: Jiang et al. 2023, "Mistral 7B".
    Mistral,
    /// Like Llama, with biases on queries, keys and values.
    ///
    /// Source: Yang et al. 2024, "Qwen2 Technical Report".
    Qwen2,
    /// Like Llama, with norms on queries and keys.
    ///
    /// Source: Yang et al. 2025, "Qwen3 Technical Report".
    Qwen3,
    /// Like Llama, with squared `ReLU` instead of SwiGLU.
    ///
    /// Source: Arcee AI 2025, "Announcing the Arcee Foundation Model family" (AFM-4.5B).
    Arcee,
    /// Rotary positions on a part of each head, layer norm, GELU, parallel attention and MLP: Pythia.
    ///
    /// Source: Black et al. 2022, "GPT-NeoX-20B: An Open-Source Autoregressive Language Model".
    GptNeox,
    /// Like GPT-2, with windows in every other layer and unscaled scores: `TinyStories`.
    ///
    /// Source: Black et al. 2021, "GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-Tensorflow".
    GptNeo,
}

impl Family {
    /// All families, in the order of messages.
    pub const ALL: [Self; 8] =
        [Self::Gpt2, Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3, Self::Arcee, Self::GptNeox, Self::GptNeo];

    /// The families that a config may belong to, in order of preference. All Mistral configs are Llama's too.
    const PREFERRED: [Self; 7] =
        [Self::Qwen3, Self::Llama, Self::Qwen2, Self::Arcee, Self::Gpt2, Self::GptNeox, Self::GptNeo];

    /// Its name, the `model_type` of transformers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Arcee => "arcee",
            Self::GptNeox => "gpt_neox",
            Self::GptNeo => "gpt_neo",
        }
    }

    /// The family of a `model_type`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// Whether the family is a GPT: layer norm, GELU, biases, as many key/value heads as heads.
    pub fn is_gpt(self) -> bool {
        matches!(self, Self::Gpt2 | Self::GptNeox | Self::GptNeo)
    }

    /// The family that `config` belongs to.
    ///
    /// # Errors
    /// The keys that rule out the nearest family, each as `model.KEY = VALUE: WHY`.
    pub fn of(config: &ModelConfig) -> Result<Self, Vec<String>> {
        let mut nearest: Option<Vec<String>> = None;
        for family in Self::PREFERRED {
            let obstacles = family.obstacles(config);
            if obstacles.is_empty() {
                return Ok(family);
            }
            if nearest.as_ref().is_none_or(|nearest| obstacles.len() < nearest.len()) {
                nearest = Some(obstacles);
            }
        }
        Err(nearest.unwrap_or_default())
    }

    /// The keys of `config` that rule out this family, each as `model.KEY = VALUE: WHY`.
    pub fn obstacles(self, config: &ModelConfig) -> Vec<String> {
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
            norm_eps: _,
            mlp,
            bias,
            qkv_bias,
            qk_norm,
            parallel_residual,
            attention_window,
            attention_scale: _, // checked by its method
            tie_embeddings: _,
            zero_init_projections: _, // affects initialization only
            norm_weights,
            value_residual,
            embedding_skip,
            vocab_size: _,
            logit_softcap,
            dropout: _,
            rope_scaling: _,
        } = config;
        let mut obstacles = Obstacles(self, Vec::new());
        let rope = !matches!(self, Self::Gpt2 | Self::GptNeo);
        let expected = if rope { PositionKind::Rope } else { PositionKind::Learned };
        obstacles.must_be("position", position, &expected);
        let expected = if self.is_gpt() { NormKind::LayerNorm } else { NormKind::RmsNorm };
        obstacles.must_be("norm", norm, &expected);
        match self {
            Self::Arcee => obstacles.must_be("mlp", mlp, &MlpKind::ReluSquared),
            Self::Gpt2 | Self::GptNeox | Self::GptNeo if *mlp == MlpKind::GeluTanh => {}
            Self::Gpt2 | Self::GptNeox | Self::GptNeo => obstacles.must_be("mlp", mlp, &MlpKind::Gelu),
            _ => obstacles.must_be("mlp", mlp, &MlpKind::Swiglu),
        }
        obstacles.must_be("qk_norm", qk_norm, &(self == Self::Qwen3));
        if self != Self::GptNeox {
            obstacles.must_be("parallel_residual", parallel_residual, &false);
            if *position == PositionKind::Rope {
                obstacles.must_be("rotary_fraction", rotary_fraction, &1.0);
            }
        }
        match self {
            Self::Gpt2 | Self::GptNeox => {} // missing biases are written as zeros
            Self::GptNeo => obstacles.must_be("qkv_bias", qkv_bias, &false),
            Self::Llama | Self::Arcee => obstacles.must_be("qkv_bias", qkv_bias, bias),
            Self::Mistral | Self::Qwen2 | Self::Qwen3 => {
                obstacles.must_be("bias", bias, &false);
                obstacles.must_be("qkv_bias", qkv_bias, &(self == Self::Qwen2));
            }
        }
        if self.is_gpt() {
            obstacles.must_be("n_kv_heads", n_kv_heads, n_heads);
            obstacles.must_be("head_dim", head_dim, &(d_model / n_heads));
        }
        if matches!(self, Self::Llama | Self::Arcee) && !d_model.is_multiple_of(*n_heads) {
            obstacles.add("n_heads", n_heads, &format!("has heads that divide model.d_model = {d_model}"));
        }
        let expected_scale = if self == Self::GptNeo { 1.0 } else { 1.0 / (*head_dim as f64).sqrt() };
        obstacles.must_be("attention_scale", &config.attention_scale(), &expected_scale);
        obstacles.must_be("norm_weights", norm_weights, &true);
        obstacles.must_be("value_residual", value_residual, &false);
        obstacles.must_be("embedding_skip", embedding_skip, &false);
        if logit_softcap.is_some() {
            obstacles.add("logit_softcap", logit_softcap, "has no cap on its logits");
        }
        let mut windows = attention_window.iter().filter(|window| **window > 0);
        let first = windows.next();
        match self {
            Self::GptNeo if windows.any(|window| Some(window) != first) => {
                obstacles.add("attention_window", attention_window, "has windows of one size");
            }
            Self::GptNeo => {}
            _ if first.is_some() => obstacles.add("attention_window", attention_window, "has no windows"),
            _ => {}
        }
        obstacles.1
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The keys that rule out a family.
struct Obstacles(Family, Vec<String>);

impl Obstacles {
    fn must_be<T: PartialEq + Serialize>(&mut self, key: &str, value: &T, expected: &T) {
        if value != expected {
            self.add(key, value, &format!("has {}", shown(expected)));
        }
    }

    fn add(&mut self, key: &str, value: &impl Serialize, why: &str) {
        let line = format!("model.{key} = {}: {} {why}", shown(value), self.0);
        self.1.push(line);
    }
}

/// A value as written in a config.
fn shown(value: &impl Serialize) -> String {
    Value::try_from(value).expect("values of a config can be written as TOML").to_string()
}
