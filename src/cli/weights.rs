//! `--weights` and `--activations`: the precision of a trained model during use.

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::generate::LanguageModel;
use crate::generate::engine::Precision;
use crate::model::Gpt;

/// The storage format of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum WeightFormat {
    /// As trained
    #[default]
    F32,
    /// Rounded to 8 bits of precision: half as many bytes
    Bf16,
    /// Rounded to integers from -127 to 127, with a scale for each 32 of them: a quarter as many bytes
    Int8,
}

/// What the weights are multiplied with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Activations {
    /// As computed, in f32
    #[default]
    Exact,
    /// Rounded as weights in int8 are: products of integers, the fastest
    Int8,
}

/// The precision of a model during use.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Formats {
    /// The precision of the weights, on a CPU: fewer bits are faster and less exact
    #[arg(long, value_enum, default_value_t)]
    weights: WeightFormat,
    /// The precision of what weights in int8 are multiplied with
    #[arg(long, value_enum, default_value_t)]
    activations: Activations,
}

impl Formats {
    /// # Errors
    /// If only one of both is int8, and it is not that of the weights.
    pub(super) fn precision(self) -> anyhow::Result<Precision> {
        Ok(match (self.weights, self.activations) {
            (WeightFormat::F32, Activations::Exact) => Precision::F32,
            (WeightFormat::Bf16, Activations::Exact) => Precision::Bf16,
            (WeightFormat::Int8, Activations::Exact) => Precision::Int8,
            (WeightFormat::Int8, Activations::Int8) => Precision::W8A8,
            (_, Activations::Int8) => bail!("--activations int8 is for weights in int8\n  hint: add --weights int8"),
        })
    }

    /// Converts `model`, which is on the device named `device`, to a model in this precision.
    ///
    /// # Errors
    /// If something would have to be rounded and the device does not support that.
    pub(super) fn convert(self, model: Gpt, device: &str) -> anyhow::Result<LanguageModel> {
        LanguageModel::new(model, self.precision()?).with_context(|| {
            format!("`{device}` supports only f32 weights\n  hint: add --device cpu, or leave out --weights")
        })
    }
}
