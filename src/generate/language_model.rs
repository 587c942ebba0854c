//! Two ways to compute the next token's logits: packed for the CPU, or with tensors on any device.

use std::sync::Arc;

use burn::tensor::{Int, Tensor, TensorData, TensorReadError};

use crate::config::ModelConfig;
use crate::inference::{Engine, Precision, Session};
use crate::model::Gpt;
use crate::model::attention::KvCache;

/// A model to write with. Cloning one shares its weights.
#[derive(Clone, Debug)]
pub enum LanguageModel {
    /// Packed for the CPU.
    Engine(Arc<Engine>),
    /// As tensors, without gradients, on any device.
    Tensors(Box<Gpt>),
}

impl From<&Gpt> for LanguageModel {
    fn from(model: &Gpt) -> Self {
        Self::new(model.clone(), Precision::F32).expect("every device computes in f32")
    }
}

impl LanguageModel {
    /// The faster way to compute `model`, which has no gradients, on its device: packed on burn's own CPU backend, as
    /// it is on any other. `None` if that would have to round the weights, and cannot.
    #[must_use]
    pub fn new(model: Gpt, precision: Precision) -> Option<Self> {
        if Engine::is_for(&model) {
            return Some(Self::Engine(Arc::new(Engine::from_owned(model, precision))));
        }
        (precision == Precision::F32).then(|| Self::Tensors(Box::new(model)))
    }

    /// The config that the model was made from.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        match self {
            Self::Engine(engine) => engine.config(),
            Self::Tensors(model) => model.config(),
        }
    }
}

/// A model with the state of several texts, as far as they were read.
#[derive(Debug)]
pub(super) enum Reader {
    Engine(Box<Session>),
    Tensors { model: Box<Gpt>, texts: Vec<TextState> },
}

/// The state of one text that a model of tensors reads.
#[derive(Clone, Debug)]
pub(super) struct TextState {
    cache: KvCache,
    /// Logits of the token after the last one that was read.
    logits: Vec<f32>,
}

impl Reader {
    /// Room for `n_texts` texts of up to `capacity` tokens.
    pub(super) fn new(model: LanguageModel, n_texts: usize, capacity: usize) -> Self {
        match model {
            LanguageModel::Engine(engine) => Self::Engine(Box::new(Session::new(engine, n_texts, capacity))),
            LanguageModel::Tensors(model) => {
                let text = || TextState { cache: model.kv_cache(1), logits: Vec::new() };
                let texts = (0..n_texts).map(|_| text()).collect();
                Self::Tensors { model, texts }
            }
        }
    }

    /// Logits of the token after the last one that was read of a text.
    pub(super) fn logits(&self, text: usize) -> &[f32] {
        match self {
            Self::Engine(session) => session.logits(text),
            Self::Tensors { texts, .. } => &texts[text].logits,
        }
    }

    /// Reads a text anew.
    pub(super) fn read(&mut self, text: usize, tokens: &[u32]) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(session) => {
                session.clear(text);
                session.read(text, tokens);
                Ok(())
            }
            Self::Tensors { model, texts } => {
                texts[text].cache.clear();
                texts[text].read(model, tokens)
            }
        }
    }

    /// Copies the state of the first text to all others.
    pub(super) fn share(&mut self) {
        match self {
            Self::Engine(session) => {
                (1..session.n_samples()).for_each(|text| session.copy(0, text));
            }
            Self::Tensors { texts, .. } => {
                let first = texts[0].clone();
                texts[1..].fill(first);
            }
        }
    }

    /// Reads the next token of each text that has one.
    pub(super) fn step(&mut self, tokens: &[Option<u32>]) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(session) => {
                session.step(tokens);
                Ok(())
            }
            Self::Tensors { model, texts } => {
                for (text, token) in texts.iter_mut().zip(tokens) {
                    if let Some(token) = token {
                        text.read(model, &[*token])?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl TextState {
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
