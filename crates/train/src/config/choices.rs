//! The enums of config keys that choose from a fixed set of values.

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use tinderbox_kernels::MatmulPrecision;

use tinderbox_model::device;

/// The quantity that the processes of a distributed run synchronize, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncKind {
    /// Gradients, in every step: the result equals training with one process.
    #[default]
    Step,
    /// Weights, after several local steps of each process on its rows of the batches.
    Local,
}

/// The format in which gradients are sent between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradientDtype {
    /// Unchanged, in f32.
    #[default]
    F32,
    /// Rounded to 8 significant bits, as is their sum, which halves the bytes.
    Bf16,
}

/// How the training files are parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextFormat {
    /// Chosen by file name: `.jsonl` and `.ndjson` are JSON Lines, everything else is plain text.
    #[default]
    Auto,
    /// Plain text, whatever the file name.
    Text,
    /// JSON Lines, whatever the file name: one object per line.
    Jsonl,
}

/// The precision of matrix products, or `auto`, which chooses it by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrecisionChoice {
    /// Products in f32, without rounding.
    #[default]
    F32,
    /// Matrices are rounded to 8 significant bits before they are multiplied.
    Bf16,
    /// `bf16` where `flex` computes on a CPU that has instructions for it, otherwise `f32`.
    Auto,
}

/// The number of latest checkpoints kept on disk; in a config a number or the word `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value", into = "toml::Value")]
pub enum KeptCheckpoints {
    /// The latest `n` checkpoints.
    Latest(usize),
    /// All checkpoints.
    All,
}

/// The optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    #[default]
    Adamw,
    /// Orthogonal updates for the blocks' matrices, and AdamW for everything else.
    Muon,
}

/// The polynomials of the Newton-Schulz iteration that makes Muon's steps orthogonal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewtonSchulz {
    /// One polynomial applied five times: steep at 0, it ends near 1 without converging.
    ///
    /// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    #[default]
    Jordan,
    /// Five polynomials, each optimal for the singular values that the ones before it leave.
    ///
    /// Source: Amsel et al. 2025, "The Polar Express: Optimal Matrix Sign Methods and Their Application to the Muon
    /// Algorithm".
    PolarExpress,
}

/// The learning-rate schedule after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Stays at the highest learning rate.
    Constant,
    /// Falls to the minimum on a straight line.
    Linear,
    /// Falls to the minimum on half a cosine.
    #[default]
    Cosine,
    /// Warm-up, stable, decay: stays constant, then falls on a straight line in the last `decay_fraction` of the run.
    Wsd,
}

/// A remark on the precision for messages, appended to the device's name; empty for f32.
pub fn precision_remark(precision: MatmulPrecision) -> &'static str {
    match precision {
        MatmulPrecision::F32 => "",
        MatmulPrecision::Bf16 => ", matrices in bf16",
    }
}

impl PrecisionChoice {
    /// The precision that this choice means on `device`.
    pub fn on(self, device: &Device) -> MatmulPrecision {
        self.resolve(device::is_flex(device) && MatmulPrecision::Bf16.is_native())
    }

    /// The precision that this choice means on a device where bf16 is native, or is not.
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
    /// The most checkpoints that are kept.
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
