//! What a run tells whoever watches it.

use std::path::{Path, PathBuf};

use burn::train::renderer::MetricsRenderer;
use serde::Serialize;

use crate::config::MatmulPrecision;
use crate::data::{Reading, SourceSummary};

/// Watches a run. Called in the run's own thread: what takes long here holds it up.
pub trait Observer: Send {
    /// Something happened.
    fn observe(&mut self, event: &Event<'_>);

    /// What shows burn-train's metrics of the run; asked once, before it starts.
    ///
    /// The items of its progress are steps, its epochs are evaluations.
    fn metrics_renderer(&mut self) -> Option<Box<dyn MetricsRenderer>> {
        None
    }
}

/// Something that happened in a run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A text is read, again and again until all is ready.
    Reading(&'a Reading<'a>),
    /// All is ready for the next step.
    Started(&'a Started),
    /// A step was made; there are `max_steps` in all.
    Stepped {
        /// Updates made so far.
        step: usize,
        /// The latest loss that is known, nats per token.
        loss: Option<f32>,
    },
    /// A log interval is over.
    Logged(&'a Logged),
    /// The losses on both splits were estimated.
    Evaluated(&'a Evaluation),
    /// A sample was written.
    Sampled {
        /// Updates made so far.
        step: usize,
        /// The prompt and what the model wrote on.
        text: &'a str,
    },
    /// A checkpoint was saved.
    Saved {
        /// Its directory.
        path: &'a Path,
        /// Whether it is the best so far.
        is_best: bool,
    },
    /// The last evaluation, over the whole validation split, begins.
    FinalEvaluation,
    /// No evaluation was better than the best for as long as the config allows.
    StoppedEarly {
        /// Updates made so far.
        step: usize,
        /// Evaluations since the best one.
        evaluations: usize,
    },
}

/// What a run starts from.
#[derive(Clone, Debug)]
pub struct Started {
    /// Where the run is kept.
    pub run_dir: PathBuf,
    /// What computes.
    pub device: String,
    /// The precision of the products, as the config has it.
    pub matmul_precision: MatmulPrecision,
    /// Numbers that are learned.
    pub parameters: usize,
    /// Tokens that are learned from.
    pub train_tokens: usize,
    /// Tokens that are kept for validation.
    pub val_tokens: usize,
    /// Bytes of text that these stand for.
    pub val_bytes: u64,
    /// The texts that these are of, one by one.
    pub sources: Vec<SourceSummary>,
    /// Different tokens.
    pub vocab_size: usize,
    /// Updates made before.
    pub step: usize,
    /// Updates in all.
    pub max_steps: usize,
    /// Tokens of one step.
    pub tokens_per_step: usize,
    /// Whether a run goes on that was stopped.
    pub resumed: bool,
    /// The checkpoint of another run that the first weights came from; none where they were drawn.
    pub from: Option<String>,
}

/// A log interval.
#[derive(Clone, Debug)]
pub struct Logged {
    /// Updates made so far.
    pub step: usize,
    /// Mean loss of the interval's steps, nats per token.
    pub train_loss: f64,
    /// Learning rate of its last step.
    pub learning_rate: f64,
    /// Norm of all gradients of its last step, before clipping.
    pub gradient_norm: f32,
    /// Median time of its steps, milliseconds.
    pub median_step_ms: f64,
    /// Tokens of a step over that time.
    pub tokens_per_s: f64,
}

/// Estimated losses.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Updates made so far.
    pub step: usize,
    /// Estimated loss on the training split, nats per token.
    pub train_loss: f64,
    /// Estimated loss on the validation split, nats per token.
    pub val_loss: f64,
    /// The same in bits for each byte of text: comparable between tokenizers.
    pub val_bits_per_byte: f64,
    /// Whether the validation loss is the lowest so far.
    pub is_best: bool,
}

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Where it is kept.
    pub run_dir: PathBuf,
    /// What computed.
    pub device: String,
    /// Numbers that were learned.
    pub parameters: usize,
    /// Updates made, those before a resume included.
    pub steps: usize,
    /// Tokens learned from, with repetition.
    pub tokens: u64,
    /// Seconds of everything, in this process.
    pub wall_s: f64,
    /// Seconds of the steps alone, in this process.
    pub train_s: f64,
    /// Median time of a step after the first five, milliseconds.
    pub median_step_ms: f64,
    /// Tokens of a step over that time.
    pub tokens_per_s: f64,
    /// The most memory that this process held, MiB; none where the system does not tell.
    pub peak_rss_mib: Option<f64>,
    /// Mean training loss of the last log interval, nats per token.
    pub train_loss: Option<f64>,
    /// Loss of the last weights over the whole validation split, nats per token; none if interrupted.
    pub val_loss: Option<f64>,
    /// Loss of the best checkpoint over the whole validation split, nats per token; none if interrupted.
    pub best_val_loss: Option<f64>,
    /// The step of that checkpoint.
    pub best_step: Option<usize>,
    /// Loss of the last weights, bits per byte of text; none if interrupted.
    pub val_bits_per_byte: Option<f64>,
    /// Whether the run was interrupted before its end.
    #[serde(skip)]
    pub interrupted: bool,
}
