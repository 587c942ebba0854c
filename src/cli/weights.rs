//! `--weights` and `--activations`: the precision of a trained model in use.

use anyhow::{Context, bail};
use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::print::note;
use crate::generate::LanguageModel;
use crate::generate::engine::Precision;
use crate::model::Gpt;

/// The storage format of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum WeightFormat {
    /// As trained
    #[default]
    F32,
    /// Rounded to 8 significant bits: half the bytes
    Bf16,
    /// Rounded to integers from -127 to 127, with one scale per 32: a quarter of the bytes
    Int8,
}

/// The precision of activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Activations {
    /// As computed, in f32
    #[default]
    Exact,
    /// Rounded like int8 weights: integer products, the fastest
    Int8,
}

/// The precision of a model in use.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Formats {
    /// Precision of the weights on a CPU: fewer bits are faster and less exact
    #[arg(long, value_enum, default_value_t)]
    weights: WeightFormat,
    /// Precision of the activations that int8 weights are multiplied with
    #[arg(long, value_enum, default_value_t)]
    activations: Activations,
}

impl Formats {
    pub(super) fn precision(self) -> anyhow::Result<Precision> {
        Ok(match (self.weights, self.activations) {
            (WeightFormat::F32, Activations::Exact) => Precision::F32,
            (WeightFormat::Bf16, Activations::Exact) => Precision::Bf16,
            (WeightFormat::Int8, Activations::Exact) => Precision::Int8,
            (WeightFormat::Int8, Activations::Int8) => Precision::W8A8,
            (_, Activations::Int8) => bail!("--activations int8 needs int8 weights\n  hint: add --weights int8"),
        })
    }

    /// The precisions of the weights and of the activations, as the flags name them.
    pub(super) fn names(self) -> [String; 2] {
        let name = |value: Option<PossibleValue>| value.expect("no value is hidden").get_name().to_owned();
        [name(self.weights.to_possible_value()), name(self.activations.to_possible_value())]
    }

    /// Notes that a model on the device named `device` does not speculate, if it `is_asked` to.
    pub(super) fn note_speculation(is_asked: bool, model: &LanguageModel, device: &str) {
        if is_asked && !matches!(model, LanguageModel::Engine(_)) {
            note(format!("note: `{device}` does not speculate: --speculate (generate.speculate) is ignored"));
        }
    }

    /// Converts `model`, which is on the device named `device`, to a model in this precision.
    pub(super) fn convert(self, model: Gpt, device: &str) -> anyhow::Result<LanguageModel> {
        LanguageModel::new(model, self.precision()?).with_context(|| {
            format!("`{device}` supports only f32 weights\n  hint: add --device cpu, or leave out --weights")
        })
    }
}
