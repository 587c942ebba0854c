//! `--weights`: how a trained model's weights are kept while it is used.

use std::sync::Arc;

use anyhow::bail;
use clap::ValueEnum;

use crate::generate::Author;
use crate::inference::{Engine, Precision};
use crate::model::Gpt;

/// How weights are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Weights {
    /// As they were trained
    #[default]
    F32,
    /// Rounded to 8 bits of precision: half as many bytes
    Bf16,
    /// Rounded to whole numbers from -127 to 127, with a scale for each 32 of them: a quarter as many bytes
    Int8,
}

impl Weights {
    /// The model packed with these weights, or none where the model itself computes: on any device but burn's own
    /// CPU backend. `device` is what its device is called.
    ///
    /// # Errors
    /// If that device would have to round the weights.
    pub(super) fn engine(self, model: &Gpt, device: &str) -> anyhow::Result<Option<Arc<Engine>>> {
        let precision = match self {
            Self::F32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
            Self::Int8 => Precision::Int8,
        };
        if Engine::is_for(model) {
            return Ok(Some(Arc::new(Engine::new(model, precision))));
        }
        if precision != Precision::F32 {
            bail!(
                "`{device}` computes with weights of f32 alone\n  hint: add --device cpu, or leave --weights out"
            );
        }
        Ok(None)
    }

    /// The model that writes: packed, where that is possible.
    ///
    /// # Errors
    /// As [`Weights::engine`].
    pub(super) fn author<'a>(self, model: &'a Gpt, device: &str) -> anyhow::Result<Author<'a>> {
        let engine = self.engine(model, device)?;
        Ok(engine.map_or(Author::Tensors(model), Author::Engine))
    }
}
