//! The values that keys of a config choose from.

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use tinderbox_kernels::MatmulPrecision;

use crate::device;

/// When processes that train one run exchange what they computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncKind {
    /// Gradients in every step: the run is that of one process.
    #[default]
    Step,
    /// Weights after some steps that each process makes by itself, on its rows of the batches.
    Local,
}

/// How gradients travel between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradientDtype {
    /// As they are.
    #[default]
    F32,
    /// Rounded to 8 significant bits, as is their sum: half the bytes.
    Bf16,
}

/// How files become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextFormat {
    /// By their names: `.jsonl` and `.ndjson` are JSON Lines, everything else is text.
    #[default]
    Auto,
    /// Text, whatever their names.
    Text,
    /// JSON Lines, whatever their names: one object a line.
    Jsonl,
}

/// The kind of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// One Unicode character, from the alphabet of the corpus.
    #[default]
    Char,
    /// One byte: any text, 256 tokens.
    Byte,
    /// A frequent sequence of bytes, found in the training split: any text, `vocab_size` tokens.
    Bpe,
    /// As the file at `path` defines.
    File,
}

/// How the model knows the positions of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionKind {
    /// A learned vector for each position, added to the token's embedding.
    #[default]
    Learned,
    /// Queries and keys are rotated by their position.
    Rope,
}

/// The normalisation before each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// To mean 0 and variance 1.
    #[default]
    LayerNorm,
    /// To a root mean square of 1.
    RmsNorm,
}

/// The activation of the MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpKind {
    /// GELU in its exact form.
    #[default]
    Gelu,
    /// GELU by its approximation with the hyperbolic tangent, as in GPT-2.
    GeluTanh,
    /// `SiLU` of a gate, times the value: three matrices instead of two.
    Swiglu,
    /// The square of `ReLU`.
    ReluSquared,
}

/// How the wavelengths of rotary positions are stretched.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// All by one factor.
    ///
    /// Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation".
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Long ones by a factor, short ones not at all, and those between by something between.
    ///
    /// Source: Llama 3.1, `apply_scaling` in its reference code; Grattafiori et al. 2024, "The Llama 3 Herd of Models".
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths that fit `original_context_length` fewer times are stretched by the whole factor. Above 0.
        low_freq_factor: f64,
        /// Wavelengths that fit it more often stay. Above `low_freq_factor`.
        high_freq_factor: f64,
        /// The context before. At least 1.
        original_context_length: usize,
    },
}

/// The precision of products, or by what it is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrecisionChoice {
    /// Nothing is rounded.
    #[default]
    F32,
    /// Matrices are rounded to 8 significant bits.
    Bf16,
    /// `bf16` where `flex` computes on a CPU that has instructions for it, else `f32`.
    Auto,
}

/// How many of a run's latest checkpoints stay on disk: in a config a number, or the word `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value", into = "toml::Value")]
pub enum KeptCheckpoints {
    /// So many.
    Latest(usize),
    /// Every one.
    All,
}

/// Which optimiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    #[default]
    Adamw,
    /// Orthogonal updates for the blocks' matrices, and AdamW for everything else.
    Muon,
}

/// The polynomials that make Muon's steps orthogonal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewtonSchulz {
    /// One polynomial five times: steep at 0, it ends near 1 without converging.
    ///
    /// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    #[default]
    Jordan,
    /// Five polynomials, each the best for what the ones before leave of the singular values.
    ///
    /// Source: Amsel et al. 2025, "The Polar Express: Optimal Matrix Sign Methods and Their Application to the Muon
    /// Algorithm".
    PolarExpress,
}

/// The curve of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Stays at its highest.
    Constant,
    /// Falls on a straight line to the minimum.
    Linear,
    /// Falls on half a cosine to the minimum.
    #[default]
    Cosine,
    /// Warm-up, stable, decay: stays, then falls on a straight line in the last `decay_fraction` of the run.
    Wsd,
}

/// The precision in messages, behind a device's name; empty for f32.
pub fn precision_remark(precision: MatmulPrecision) -> &'static str {
    match precision {
        MatmulPrecision::F32 => "",
        MatmulPrecision::Bf16 => ", matrices in bf16",
    }
}

impl PrecisionChoice {
    /// The precision on a device.
    pub fn on(self, device: &Device) -> MatmulPrecision {
        self.resolve(device::is_flex(device) && MatmulPrecision::Bf16.is_native())
    }

    /// The precision where bf16 is native, or is not.
    fn resolve(self, is_native: bool) -> MatmulPrecision {
        match self {
            Self::F32 => MatmulPrecision::F32,
            Self::Auto if !is_native => MatmulPrecision::F32,
            Self::Bf16 | Self::Auto => MatmulPrecision::Bf16,
        }
    }
}

impl From<MatmulPrecision> for PrecisionChoice {
    fn from(precision: MatmulPrecision) -> Self {
        match precision {
            MatmulPrecision::F32 => Self::F32,
            MatmulPrecision::Bf16 => Self::Bf16,
        }
    }
}

impl KeptCheckpoints {
    /// How many stay at most.
    #[must_use]
    pub fn limit(self) -> usize {
        match self {
            Self::Latest(n) => n,
            Self::All => usize::MAX,
        }
    }
}

impl Default for KeptCheckpoints {
    fn default() -> Self {
        Self::Latest(2)
    }
}

impl TryFrom<toml::Value> for KeptCheckpoints {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        let n = value.as_integer().and_then(|n| usize::try_from(n).ok());
        let all = (value.as_str() == Some("all")).then_some(Self::All);
        n.map(Self::Latest).or(all).ok_or("expected a whole number, at least 1, or \"all\"")
    }
}

impl From<KeptCheckpoints> for toml::Value {
    fn from(kept: KeptCheckpoints) -> Self {
        match kept {
            KeptCheckpoints::Latest(n) => Self::Integer(i64::try_from(n).unwrap_or(i64::MAX)),
            KeptCheckpoints::All => Self::String("all".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_automatic_precision_depends_on_the_machine() {
        let resolved = |choice: PrecisionChoice| [false, true].map(|is_native| choice.resolve(is_native));
        let (f32, bf16) = (MatmulPrecision::F32, MatmulPrecision::Bf16);
        assert_eq!(resolved(PrecisionChoice::F32), [f32, f32]);
        assert_eq!(resolved(PrecisionChoice::Bf16), [bf16, bf16]);
        assert_eq!(resolved(PrecisionChoice::Auto), [f32, bf16]);
    }
}
