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

/// What computes.
pub(super) enum Packed {
    Engine(Arc<Engine>),
    Model(Box<Gpt>),
}

impl Packed {
    /// It, as one that writes.
    pub(super) fn author(&self) -> Author<'_> {
        match self {
            Self::Engine(engine) => Author::Engine(Arc::clone(engine)),
            Self::Model(model) => Author::Tensors(model),
        }
    }
}

impl Weights {
    /// The model packed with these weights, or the model itself where that computes: on any device but burn's own
    /// CPU backend. `device` is what its device is called.
    ///
    /// # Errors
    /// If that device would have to round the weights.
    pub(super) fn packed(self, model: Gpt, device: &str) -> anyhow::Result<Packed> {
        let precision = match self {
            Self::F32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
            Self::Int8 => Precision::Int8,
        };
        if Engine::is_for(&model) {
            let engine = Engine::from_owned(model, precision);
            return Ok(Packed::Engine(Arc::new(engine)));
        }
        if precision != Precision::F32 {
            bail!(
                "`{device}` computes with weights of f32 alone\n  hint: add --device cpu, or leave --weights out"
            );
        }
        Ok(Packed::Model(Box::new(model)))
    }
}
