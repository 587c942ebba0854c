//! What reads the samples' texts and tells the scores of the next token: an engine, or the model of tensors.

use std::sync::Arc;

use burn::tensor::{Int, Tensor, TensorData, TensorReadError};

use crate::config::ModelConfig;
use crate::inference::{Engine, Precision, Session};
use crate::model::Gpt;
use crate::model::attention::KvCache;

/// A model to write with. A `&Gpt` without gradients becomes the faster of the two on its device.
#[derive(Clone, Debug)]
pub enum Author<'a> {
    /// Packed for writing, on the CPU.
    Engine(Arc<Engine>),
    /// As it was trained, on any device.
    Tensors(&'a Gpt),
}

impl<'a> From<&'a Gpt> for Author<'a> {
    fn from(model: &'a Gpt) -> Self {
        match Engine::is_for(model) {
            true => Self::Engine(Arc::new(Engine::new(model, Precision::F32))),
            false => Self::Tensors(model),
        }
    }
}

impl From<Arc<Engine>> for Author<'_> {
    fn from(engine: Arc<Engine>) -> Self {
        Self::Engine(engine)
    }
}

impl Author<'_> {
    /// What the model was made from.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        match self {
            Self::Engine(engine) => engine.config(),
            Self::Tensors(model) => model.config(),
        }
    }
}

/// Some samples' texts, as far as they were read.
#[derive(Debug)]
pub(super) enum Reader<'a> {
    Engine(Box<Session>),
    Tensors { model: &'a Gpt, samples: Vec<Sample> },
}

/// A sample that the model of tensors reads.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    cache: KvCache,
    /// Of the token after the last one that was read.
    logits: Vec<f32>,
}

impl<'a> Reader<'a> {
    /// Room for `n_samples` texts of up to `capacity` tokens.
    pub(super) fn new(author: Author<'a>, n_samples: usize, capacity: usize) -> Self {
        match author {
            Author::Engine(engine) => {
                Self::Engine(Box::new(Session::new(engine, n_samples, capacity)))
            }
            Author::Tensors(model) => {
                let sample = || Sample { cache: model.kv_cache(1), logits: Vec::new() };
                let samples = (0..n_samples).map(|_| sample()).collect();
                Self::Tensors { model, samples }
            }
        }
    }

    /// The scores of the token after the last one that was read of a sample.
    pub(super) fn logits(&self, sample: usize) -> &[f32] {
        match self {
            Self::Engine(session) => session.logits(sample),
            Self::Tensors { samples, .. } => &samples[sample].logits,
        }
    }

    /// Reads a sample's text anew.
    pub(super) fn read(&mut self, sample: usize, tokens: &[u32]) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(session) => {
                session.clear(sample);
                session.read(sample, tokens);
                Ok(())
            }
            Self::Tensors { model, samples } => {
                samples[sample].cache.clear();
                samples[sample].read(model, tokens)
            }
        }
    }

    /// Gives every sample what the first one has read.
    pub(super) fn share(&mut self) {
        match self {
            Self::Engine(session) => {
                (1..session.n_samples()).for_each(|sample| session.copy(0, sample));
            }
            Self::Tensors { samples, .. } => {
                let first = samples[0].clone();
                samples[1..].fill(first);
            }
        }
    }

    /// Reads the next token of each sample that has one.
    pub(super) fn step(&mut self, tokens: &[Option<u32>]) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(session) => {
                session.step(tokens);
                Ok(())
            }
            Self::Tensors { model, samples } => {
                for (sample, token) in samples.iter_mut().zip(tokens) {
                    if let Some(token) = token {
                        sample.read(model, &[*token])?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl Sample {
    fn read(&mut self, model: &Gpt, tokens: &[u32]) -> Result<(), TensorReadError> {
        let n = tokens.len();
        let ids: Vec<i64> = tokens.iter().map(|id| i64::from(*id)).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, n]), &model.device());
        let logits = model.forward_cached(ids, &mut self.cache); // [1, T, V]
        let last = logits.narrow(1, n - 1, 1); // [1, 1, V]
        self.logits = last.reshape([-1]).try_into_vec_as::<f32>()?;
        Ok(())
    }
}
