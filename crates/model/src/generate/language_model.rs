//! The two implementations of next-token logits: packed weights for the CPU, or tensors on any device.

use std::sync::Arc;

use burn::tensor::{Int, Tensor, TensorData, TensorReadError};

use super::engine::{Decoder, Engine, Precision};
use crate::Gpt;
use crate::attention::KvCache;
use crate::config::ModelConfig;

/// A model for generation. Clones share its weights.
#[derive(Clone, Debug)]
pub enum LanguageModel {
    /// Packed weights, for the CPU.
    Engine(Arc<Engine>),
    /// Tensors without gradients, for any device.
    Tensors(Box<Gpt>),
}

impl From<&Gpt> for LanguageModel {
    fn from(model: &Gpt) -> Self {
        Self::new(model.clone(), Precision::F32).expect("every device computes in f32")
    }
}

impl LanguageModel {
    /// The faster implementation for the device of `model`, which has no gradients: packed on burn's own CPU backend,
    /// tensors on any other. `None` if the weights would have to be rounded, which only the packed model supports.
    pub fn new(model: Gpt, precision: Precision) -> Option<Self> {
        if Engine::is_for(&model) {
            return Some(Self::Engine(Arc::new(Engine::new(model, precision))));
        }
        (precision == Precision::F32).then(|| Self::Tensors(Box::new(model)))
    }

    /// The config of the model.
    pub fn config(&self) -> &ModelConfig {
        match self {
            Self::Engine(engine) => engine.config(),
            Self::Tensors(model) => model.config(),
        }
    }
}

/// A model with the KV cache and the logits of several sequences (here called texts).
#[derive(Debug)]
pub(super) enum AnyDecoder {
    Engine(Box<Decoder>),
    Tensors { model: Box<Gpt>, texts: Vec<TextState> },
}

/// The KV cache and the logits of one text in a model of tensors.
#[derive(Clone, Debug)]
pub(super) struct TextState {
    cache: KvCache,
    logits: Vec<f32>,
}

impl AnyDecoder {
    /// A decoder for `n_texts` texts of up to `capacity` tokens.
    pub(super) fn new(model: LanguageModel, n_texts: usize, capacity: usize) -> Self {
        match model {
            LanguageModel::Engine(engine) => Self::Engine(Box::new(Decoder::new(engine, n_texts, capacity))),
            LanguageModel::Tensors(model) => {
                let text = || TextState { cache: model.kv_cache(1), logits: Vec::new() };
                Self::Tensors { texts: std::iter::repeat_with(text).take(n_texts).collect(), model }
            }
        }
    }

    pub(super) fn logits(&self, text: usize) -> &[f32] {
        match self {
            Self::Engine(decoder) => decoder.logits(text),
            Self::Tensors { texts, .. } => &texts[text].logits,
        }
    }

    /// Replaces the tokens of a text.
    pub(super) fn prefill(&mut self, text: usize, tokens: &[u32]) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(decoder) => {
                decoder.clear(text);
                decoder.prefill(text, tokens);
                Ok(())
            }
            Self::Tensors { model, texts } => {
                texts[text].cache.clear();
                texts[text].append(model, tokens)
            }
        }
    }

    /// Appends tokens to a text and calls `see` with the logits after each of them, in order.
    pub(super) fn append_each(
        &mut self,
        text: usize,
        tokens: &[u32],
        see: impl FnMut(&[f32]) + Send,
    ) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(decoder) => {
                decoder.prefill_each(text, tokens, see);
                Ok(())
            }
            Self::Tensors { model, texts } => texts[text].append_each(model, tokens, see),
        }
    }

    /// Appends tokens to a text.
    pub(super) fn append(&mut self, text: usize, tokens: &[u32]) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(decoder) => {
                decoder.prefill(text, tokens);
                Ok(())
            }
            Self::Tensors { model, texts } => texts[text].append(model, tokens),
        }
    }

    /// Truncates a text to its first `n` tokens.
    pub(super) fn truncate(&mut self, text: usize, n: usize) {
        match self {
            Self::Engine(decoder) => decoder.truncate(text, n),
            Self::Tensors { texts, .. } => texts[text].cache.truncate(n),
        }
    }

    /// Replaces the tokens of text `to` with the first `n` tokens of text `from`.
    pub(super) fn copy_first(&mut self, n: usize, from: usize, to: usize) {
        match self {
            Self::Engine(decoder) => decoder.copy_first(n, from, to),
            Self::Tensors { texts, .. } => {
                texts[to] = texts[from].clone();
                texts[to].cache.truncate(n);
            }
        }
    }

    /// Copies the state of the first text to all other texts.
    pub(super) fn share(&mut self) {
        match self {
            Self::Engine(decoder) => (1..decoder.n_samples()).for_each(|text| decoder.copy(0, text)),
            Self::Tensors { texts, .. } => {
                let first = texts[0].clone();
                texts[1..].fill(first);
            }
        }
    }

    /// Appends the next token of each text that has one.
    pub(super) fn decode(&mut self, tokens: &[Option<u32>]) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(decoder) => {
                decoder.decode(tokens);
                Ok(())
            }
            Self::Tensors { model, texts } => {
                let mut going_on = texts.iter_mut().zip(tokens).filter_map(|(text, token)| Some((text, (*token)?)));
                going_on.try_for_each(|(text, token)| text.append(model, &[token]))
            }
        }
    }
}

impl TextState {
    fn append(&mut self, model: &Gpt, tokens: &[u32]) -> Result<(), TensorReadError> {
        let logits = self.read(model, tokens); // [1, T, V]
        self.logits = logits.narrow(1, tokens.len() - 1, 1).reshape([-1]).try_into_vec_as::<f32>()?; // [V]
        Ok(())
    }

    fn append_each(&mut self, model: &Gpt, tokens: &[u32], see: impl FnMut(&[f32])) -> Result<(), TensorReadError> {
        let logits = self.read(model, tokens).reshape([-1]).try_into_vec_as::<f32>()?; // [T * V]
        let rows = logits.chunks_exact(logits.len() / tokens.len());
        self.logits = rows.clone().next_back().expect("at least one token").to_vec(); // [V]
        rows.for_each(see);
        Ok(())
    }

    /// The logits after each of the tokens, `[1, T, V]`.
    fn read(&mut self, model: &Gpt, tokens: &[u32]) -> Tensor<3> {
        let ids: Vec<i64> = tokens.iter().map(|id| i64::from(*id)).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, tokens.len()]), &model.device());
        model.forward_cached(ids, &mut self.cache)
    }
}
