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
        Self::new(model.clone(), Precision::F32).expect("every device supports f32")
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

    /// The packed weights, to put adapters beside them; `None` for a model of tensors.
    ///
    /// # Panics
    /// If it has clones.
    pub fn engine_mut(&mut self) -> Option<&mut Engine> {
        match self {
            Self::Engine(engine) => Some(Arc::get_mut(engine).expect("the model has no clones")),
            Self::Tensors(_) => None,
        }
    }

    /// The config of the model.
    pub fn config(&self) -> &ModelConfig {
        match self {
            Self::Engine(engine) => engine.config(),
            Self::Tensors(model) => model.config(),
        }
    }
}

/// A model with the KV cache and the logits of several sequences.
#[derive(Debug)]
pub(super) enum AnyDecoder {
    Engine(Box<Decoder>),
    Tensors { model: Box<Gpt>, sequences: Vec<Cached> },
}

/// The KV cache and the logits of one sequence in a model of tensors.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    cache: KvCache,
    logits: Vec<f32>,
}

impl AnyDecoder {
    pub(super) fn new(model: LanguageModel, n: usize, capacity: usize) -> Self {
        match model {
            LanguageModel::Engine(engine) => Self::Engine(Box::new(Decoder::new(engine, n, capacity))),
            LanguageModel::Tensors(model) => {
                let sequence = || Cached { cache: model.kv_cache(1), logits: Vec::new() };
                Self::Tensors { sequences: std::iter::repeat_with(sequence).take(n).collect(), model }
            }
        }
    }

    /// Makes a sequence use the adapters with this index, or none, and drops its tokens.
    pub(super) fn set_adapters(&mut self, sequence: usize, adapters: Option<usize>) {
        match self {
            Self::Engine(decoder) => decoder.set_adapters(sequence, adapters),
            Self::Tensors { sequences, .. } => {
                assert_eq!(adapters, None, "a model of tensors has its adapters merged");
                sequences[sequence].cache.truncate(0);
            }
        }
    }

    pub(super) fn logits(&self, sequence: usize) -> &[f32] {
        match self {
            Self::Engine(decoder) => decoder.logits(sequence),
            Self::Tensors { sequences, .. } => &sequences[sequence].logits,
        }
    }

    /// Appends tokens to a sequence and calls `see` with the logits after each of them, in order.
    pub(super) fn append_each(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        see: impl FnMut(&[f32]) + Send,
    ) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(decoder) => {
                decoder.prefill_each(sequence, tokens, see);
                Ok(())
            }
            Self::Tensors { model, sequences } => sequences[sequence].append_each(model, tokens, see),
        }
    }

    pub(super) fn append(&mut self, sequence: usize, tokens: &[u32]) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(decoder) => {
                decoder.prefill(sequence, tokens);
                Ok(())
            }
            Self::Tensors { model, sequences } => sequences[sequence].append(model, tokens),
        }
    }

    pub(super) fn truncate(&mut self, sequence: usize, n: usize) {
        match self {
            Self::Engine(decoder) => decoder.truncate(sequence, n),
            Self::Tensors { sequences, .. } => sequences[sequence].cache.truncate(n),
        }
    }

    /// Drops the tokens and the logits of a sequence, and frees their memory.
    pub(super) fn clear(&mut self, sequence: usize) {
        match self {
            Self::Engine(decoder) => decoder.clear(sequence),
            Self::Tensors { sequences, .. } => {
                sequences[sequence].cache.truncate(0);
                sequences[sequence].logits = Vec::new();
            }
        }
    }

    /// The bytes of memory that the keys and values of all sequences take now.
    pub(super) fn cache_bytes(&self) -> usize {
        match self {
            Self::Engine(decoder) => decoder.cache_bytes(),
            Self::Tensors { sequences, .. } => sequences.iter().map(|sequence| sequence.cache.bytes()).sum(),
        }
    }

    pub(super) fn copy_first(&mut self, n: usize, from: usize, to: usize) {
        match self {
            Self::Engine(decoder) => decoder.copy_first(n, from, to),
            Self::Tensors { sequences, .. } => {
                sequences[to] = sequences[from].clone();
                sequences[to].cache.truncate(n);
            }
        }
    }

    pub(super) fn copy(&mut self, from: usize, to: usize) {
        match self {
            Self::Engine(decoder) => decoder.copy(from, to),
            Self::Tensors { sequences, .. } => sequences[to] = sequences[from].clone(),
        }
    }

    pub(super) fn decode(&mut self, tokens: &[Option<u32>]) -> Result<(), TensorReadError> {
        match self {
            Self::Engine(decoder) => {
                decoder.decode(tokens);
                Ok(())
            }
            Self::Tensors { model, sequences } => {
                let mut next =
                    sequences.iter_mut().zip(tokens).filter_map(|(sequence, token)| Some((sequence, (*token)?)));
                next.try_for_each(|(sequence, token)| sequence.append(model, &[token]))
            }
        }
    }
}

impl Cached {
    fn append(&mut self, model: &Gpt, tokens: &[u32]) -> Result<(), TensorReadError> {
        let logits = self.read(model, tokens); // [1, T, V]
        self.logits = logits.narrow(1, tokens.len() - 1, 1).reshape([-1]).try_into_vec_as::<f32>()?; // [V]
        Ok(())
    }

    fn append_each(&mut self, model: &Gpt, tokens: &[u32], see: impl FnMut(&[f32])) -> Result<(), TensorReadError> {
        let logits = self.read(model, tokens).reshape([-1]).try_into_vec_as::<f32>()?; // [T * V]
        let rows = logits.chunks_exact(logits.len() / tokens.len());
        self.logits = rows.clone().next_back().expect("at least one token was appended").to_vec(); // [V]
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
