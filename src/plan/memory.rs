//! The memory of a run at its fullest moment.
//!
//! That is a moment of a training step: of its forward and backward pass, or of the update after it. A checkpoint is
//! saved one tensor after another, and an evaluation keeps nothing for a backward pass. Token files are mapped, and not
//! counted: the system takes their pages back when it needs them. Every number counts as one of f32; training in bf16
//! holds a little less.

use serde::Serialize;

use super::disk::running_means;
use crate::config::Config;
use crate::device::{Backend, OpenDevice};
use crate::measure::Machine;
use crate::model::cost::{self, Held, Operations, ParameterTensor, PassMemory, PassShape};

const MIB: f64 = 1_048_576.0;

/// What the process holds beside the run: code, threads, buffers of matrix products. Measured on Linux with the
/// smallest of models.
const PROCESS: f64 = 38.0 * MIB;

/// What the allocator holds beside what it was asked for: blocks that wait to be used again, up to a limit; a share of
/// what a pass holds, for copies in panels and blocks that fit nothing else; and a share that is lost between blocks.
/// Measured on Linux, see `docs/plan.md`.
const WAITING: f64 = 2.1;
const MOST_WAITING: f64 = 64.0 * MIB;
const LEFT_OVER: f64 = 0.27;
const LOST: f64 = 0.05;

/// The memory of a run. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// All of it at the fullest moment.
    pub peak: u64,
    /// When that is.
    pub peak_during: &'static str,
    /// What it is made of.
    pub parts: Parts,
    /// What the forward pass keeps for the backward pass, weights of attention and logits included.
    pub kept_for_backward: u64,
    /// Of that, what grows with the square of the context.
    pub kept_attention_weights: u64,
    /// The memory that there is; none where it cannot be known, as on a GPU.
    pub machine: Option<Machine>,
}

/// What the fullest moment is made of, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// The weights.
    pub weights: u64,
    /// What the optimiser keeps for each of them.
    pub optimizer: u64,
    /// The gradients, and their sum over micro-batches.
    pub gradients: u64,
    /// What is kept for the backward pass, without the two below.
    pub activations: u64,
    /// The weights of attention.
    pub attention_weights: u64,
    /// The scores for the next token.
    pub logits: u64,
    /// What is needed for a moment.
    pub temporaries: u64,
    /// The process and its allocator; 0 on a GPU, whose driver has its own.
    pub process: u64,
}

/// A moment of a run: what is held beside weights and running means.
struct Moment {
    during: &'static str,
    held: Held,
}

impl Memory {
    pub(super) fn new(config: &Config, vocab_size: usize, device: &OpenDevice) -> Self {
        let on_cpu = device.backend.is_cpu();
        let weights = cost::tensors(&config.model, vocab_size);
        let means = running_means(config.optimizer.kind, &weights);
        let (of_weights, of_means) = (bytes(&weights), bytes(&means));
        let pass = pass(config, vocab_size, device.backend);
        let step = step(config, of_weights, &pass);
        let update = update(config, &weights, Operations::of(device.backend));
        let fullest = match update.held.total() > step.held.total() {
            true => update,
            false => step,
        };
        let held = fullest.held;
        let tensors = of_weights + of_means + held.total();
        // What the backward pass freed is not given back at once, and gradients are of other sizes and do not fit in
        // there: a large model with few tokens holds both.
        let freed = pass.kept.total() - pass.kept.gradients;
        let not_yet_given_back = (freed + of_weights - held.total()).max(0.0);
        let process = if on_cpu {
            let waiting = (WAITING * tensors).min(MOST_WAITING) + LEFT_OVER * held.total();
            PROCESS + waiting + LOST * tensors + not_yet_given_back
        } else {
            0.0
        };
        Self {
            peak: whole(tensors + process),
            peak_during: fullest.during,
            parts: Parts {
                weights: whole(of_weights),
                optimizer: whole(of_means),
                gradients: whole(held.gradients),
                activations: whole(held.activations),
                attention_weights: whole(held.attention_weights),
                logits: whole(held.logits),
                temporaries: whole(held.temporaries),
                process: whole(process),
            },
            kept_for_backward: whole(pass.kept.total()),
            kept_attention_weights: whole(pass.kept.attention_weights),
            machine: on_cpu.then(Machine::here),
        }
    }

    /// Whether it is more than the machine has in all.
    #[must_use]
    pub fn is_too_much(&self) -> bool {
        self.machine.is_some_and(|machine| self.peak > machine.total)
    }

    /// Whether it is more than the machine has free now.
    #[must_use]
    pub fn is_too_much_now(&self) -> bool {
        self.machine.is_some_and(|machine| self.peak > machine.available)
    }
}

/// The forward and backward pass of one micro-batch.
fn pass(config: &Config, vocab_size: usize, backend: Backend) -> PassMemory {
    let shape = PassShape {
        batch_size: config.train.batch_size,
        seq_len: config.model.context_length,
        operations: Operations::of(backend),
    };
    cost::pass_memory(&config.model, vocab_size, shape)
}

/// Forward and backward, beside the gradients of the micro-batches before.
fn step(config: &Config, of_weights: f64, pass: &PassMemory) -> Moment {
    let mut held = pass.peak;
    if config.train.grad_accumulation_steps > 1 {
        held.gradients += of_weights;
    }
    Moment { during: pass.peak_during, held }
}

/// The update, tensor by tensor.
fn update(config: &Config, weights: &[ParameterTensor], operations: Operations) -> Moment {
    let mut gradients = bytes(weights);
    let mut held = Held::default();
    for weight in weights {
        let own = bytes(std::slice::from_ref(weight));
        let now = Held {
            gradients,
            temporaries: 4.0
                * cost::update_temporaries(
                    &config.model,
                    weight,
                    config.optimizer.kind,
                    operations,
                ),
            ..Held::default()
        };
        if now.total() > held.total() {
            held = now;
        }
        gradients -= own;
    }
    Moment { during: "the update of the weights", held }
}

fn bytes(tensors: &[ParameterTensor]) -> f64 {
    4.0 * tensors.iter().map(|tensor| tensor.numbers() as f64).sum::<f64>()
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a size is not below 0, and what is beyond 2^64 is as good as 2^64"
)]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}
