//! `--weights`: the storage format of a trained model's weights during use.

use anyhow::Context;
use clap::ValueEnum;

use crate::generate::LanguageModel;
use crate::generate::engine::Precision;
use crate::model::Gpt;

/// The storage format of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum WeightFormat {
    /// As trained
    #[default]
    F32,
    /// Rounded to 8 bits of precision: half as many bytes
    Bf16,
    /// Rounded to integers from -127 to 127, with a scale for each 32 of them: a quarter as many bytes
    Int8,
}

impl WeightFormat {
    /// Converts `model`, which is on the device named `device`, to a model with weights in this format.
    ///
    /// # Errors
    /// If the weights would have to be rounded and the device does not support that.
    pub(super) fn convert(self, model: Gpt, device: &str) -> anyhow::Result<LanguageModel> {
        let precision = match self {
            Self::F32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
            Self::Int8 => Precision::Int8,
        };
        LanguageModel::new(model, precision).with_context(|| {
            format!("`{device}` supports only f32 weights\n  hint: add --device cpu, or leave out --weights")
        })
    }
}
