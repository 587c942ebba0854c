//! `--weights`: how a trained model's weights are kept while it is used.

use anyhow::Context;
use clap::ValueEnum;

use crate::generate::LanguageModel;
use crate::generate::engine::Precision;
use crate::model::Gpt;

/// How weights are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum WeightFormat {
    /// As they were trained
    #[default]
    F32,
    /// Rounded to 8 bits of precision: half as many bytes
    Bf16,
    /// Rounded to whole numbers from -127 to 127, with a scale for each 32 of them: a quarter as many bytes
    Int8,
}

impl WeightFormat {
    /// The model with these weights on its device, of this name.
    ///
    /// # Errors
    /// If its device would have to round them, and cannot.
    pub(super) fn of(self, model: Gpt, device: &str) -> anyhow::Result<LanguageModel> {
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
