//! What the forward and backward pass of one batch hold in memory, beside the weights.
//!
//! The forward pass keeps what the backward pass will ask for. The backward pass frees it, block by block from
//! the last to the first, while the gradients of the weights grow. [`pass_memory`] walks through it as the
//! program does, and remembers the fullest moment: `fused` for burn's CPU backend, `composed` for every other.

mod composed;
mod fused;

use serde::Serialize;

use crate::config::ModelConfig;
use crate::device::Backend;

/// Bytes of an f32.
const F32: f64 = 4.0;

/// Which operations compute the model: they differ in what they keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// Those of `kernels` for burn's CPU backend.
    Fused,
    /// Those that are put together of burn's own, on every other backend.
    Composed,
}

impl Operations {
    /// Those that a backend computes with.
    #[must_use]
    pub fn of(backend: Backend) -> Self {
        match backend {
            Backend::Flex => Self::Fused,
            _ => Self::Composed,
        }
    }
}

/// What goes through a model at once.
#[derive(Clone, Copy, Debug)]
pub struct PassShape {
    /// Rows of tokens.
    pub batch_size: usize,
    /// Tokens of a row.
    pub seq_len: usize,
    /// What computes.
    pub operations: Operations,
}

/// Bytes that a training pass holds at one moment, by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Held {
    /// Kept for the backward pass, without the logits.
    pub activations: f64,
    /// Who looks at whom: of a block of queries, while the backward pass of attention needs them. None are kept.
    pub attention_weights: f64,
    /// Kept for the backward pass: the scores for the next token.
    pub logits: f64,
    /// Gradients of the weights, as far as they are computed.
    pub gradients: f64,
    /// What an operation needs while it computes.
    pub temporaries: f64,
}

impl Held {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.activations + self.attention_weights + self.logits + self.gradients + self.temporaries
    }
}

/// The memory of a training pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PassMemory {
    /// Between the forward and the backward pass.
    pub kept: Held,
    /// At the fullest moment.
    pub peak: Held,
    /// When that is.
    pub peak_during: &'static str,
}

/// Walks through a training pass of a batch.
#[must_use]
pub fn pass_memory(config: &ModelConfig, vocab_size: usize, shape: PassShape) -> PassMemory {
    match shape.operations {
        Operations::Fused => fused::pass_memory(config, vocab_size, shape),
        Operations::Composed => composed::pass_memory(config, vocab_size, shape),
    }
}

/// What is held now, and the most that was.
struct Ledger {
    kept: Held,
    now: Held,
    peak: Held,
    peak_during: &'static str,
}

impl Ledger {
    fn new(kept: Held) -> Self {
        Self { kept, now: kept, peak: kept, peak_during: "the loss" }
    }

    /// A moment at which `temporaries` are held too.
    fn look(&mut self, during: &'static str, temporaries: f64) {
        let held = Held { temporaries, ..self.now };
        if held.total() > self.peak.total() {
            (self.peak, self.peak_during) = (held, during);
        }
    }

    fn into_memory(self) -> PassMemory {
        PassMemory { kept: self.kept, peak: self.peak, peak_during: self.peak_during }
    }
}
