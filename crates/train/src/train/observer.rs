//! The events and results reported by a run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::skip::Skipped;
use crate::config::{MatmulPrecision, PrecisionChoice};
use crate::data::{Reading, SourceSummary};
use crate::distributed::{Exchanged, Ranks};
use crate::optimizer::BatchSchedule;
use crate::run::layout::METRICS;
use crate::run::log::{MetricsLine, read_lines};
use crate::run::{RunDir, RunError, RunInfo};
use tinderbox_model::measure::peak_rss_mib;

/// Receives the events of a run, on the training thread, so that a slow observer slows down the run.
pub trait Observer: Send {
    /// Called for each event.
    fn observe(&mut self, event: &Event<'_>);
}

/// An event of a run. A `step` is the number of updates made so far.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub enum Event<'a> {
    /// Progress in reading a text; sent many times before [`Event::Started`].
    Reading(&'a Reading<'a>),
    /// The run is ready for its next step.
    Started(&'a Started),
    /// A step was made. `loss` is the latest loss read back from the device, in nats per token.
    Stepped { step: usize, loss: Option<f32> },
    /// A step did not change the weights, and the run continues.
    Skipped { step: usize, skipped: &'a Skipped },
    /// A log interval ended.
    Logged(&'a Logged),
    /// The estimation of the losses on the training and validation splits begins.
    Evaluating,
    /// These losses were estimated.
    Evaluated(&'a Evaluation),
    /// A sample was generated; `text` begins with its prompt.
    Sampled { step: usize, text: &'a str },
    /// A checkpoint was saved in the directory `path`.
    Saved { path: &'a Path, is_best: bool },
    /// The evaluation of the whole validation split, after the last step, has done some of its batches. A second one, of
    /// the best checkpoint, may follow.
    FinalEvaluation { done: usize, of: usize },
    /// Early stopping: the last `evaluations` evaluations did not improve on the best validation loss.
    StoppedEarly { step: usize, evaluations: usize },
}

/// The state of a run before its next step.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct Started {
    pub run_dir: PathBuf,
    pub device: String,
    pub matmul_precision: MatmulPrecision,
    /// The precision set in the config.
    pub chosen_precision: PrecisionChoice,
    pub parameters: u64,
    /// Those that the steps change: all, or only adapters.
    pub trained_parameters: u64,
    pub train_tokens: usize,
    pub val_tokens: usize,
    /// The size of the validation text in bytes.
    pub val_bytes: u64,
    pub sources: Vec<SourceSummary>,
    pub vocab_size: usize,
    /// Updates made so far.
    pub step: usize,
    pub max_steps: usize,
    /// The number of steps between two evaluations; 0 if only the last step is evaluated.
    pub eval_interval: usize,
    pub batches: BatchSchedule,
    /// The number of ranks that train together; 1 without a launcher.
    pub ranks: usize,
    /// Whether a stopped run continues.
    pub resumed: bool,
    /// One line for each damaged checkpoint that a resumed run skipped.
    pub damaged: Vec<String>,
    /// One line for each changed setting that the steps of a resumed run depend on.
    pub changed: Vec<String>,
    /// The checkpoint of another run that the initial weights came from; `None` if they were drawn from the seed.
    pub from: Option<String>,
}

/// The metrics of a log interval.
#[derive(Clone, Debug, Default)]
pub struct Logged {
    /// Updates made so far.
    pub step: usize,
    /// Mean loss over the interval's steps, in nats per token.
    pub train_loss: f64,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Global gradient norm of the last step, before clipping.
    pub gradient_norm: f32,
    /// Median time of the interval's steps, in milliseconds.
    pub median_step_ms: f64,
    /// Tokens of a step divided by the median step time.
    pub tokens_per_s: f64,
    /// The time spent on exchanges with other ranks; `None` without other ranks.
    pub exchange: Option<Exchange>,
}

/// The time that rank 0 spends on exchanges with the other ranks, as shares of its step time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Exchange {
    /// The number of ranks.
    pub ranks: usize,
    /// The share of time spent waiting until the last rank has computed its part of the batch.
    pub waiting_share: f64,
    /// The share of time spent on communication, from the end of the wait until the sum has arrived.
    pub communication_share: f64,
}

impl Exchange {
    /// The shares for steps that took `total`; `None` without other ranks.
    pub(super) fn new(ranks: &Ranks, before: Exchanged, after: Exchanged, total: Duration) -> Option<Self> {
        let share = |before: Duration, after: Duration| {
            after.saturating_sub(before).as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE)
        };
        (!ranks.is_alone()).then(|| Self {
            ranks: ranks.size(),
            waiting_share: share(before.waiting, after.waiting),
            communication_share: share(before.communicating, after.communicating),
        })
    }
}

/// The estimated losses of an evaluation.
#[derive(Clone, Debug, Default)]
pub struct Evaluation {
    /// Updates made so far.
    pub step: usize,
    /// The loss on the training split, in nats per token; of preferences, in nats per pair.
    pub train_loss: f64,
    /// The loss on the validation split.
    pub val_loss: f64,
    /// The validation loss in bits per byte of text, which is comparable between tokenizers; `None` of preferences.
    pub val_bits_per_byte: Option<f64>,
    /// How well the validation split's preferences are learned.
    pub preferred: Option<Preferred>,
    /// Whether the validation loss is the lowest so far.
    pub is_best: bool,
}

/// How well preferences are learned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Preferred {
    /// The share of pairs whose better answer has the higher reward.
    #[serde(rename = "val_accuracy")]
    pub accuracy: f64,
    /// How much higher it is on average.
    #[serde(rename = "val_margin")]
    pub margin: f64,
}

/// The results of a run. Losses of the whole validation split are `None` if the run was interrupted.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct Summary {
    #[serde(serialize_with = "tinderbox_model::format::serialize_path")]
    pub run_dir: PathBuf,
    pub device: String,
    pub parameters: u64,
    /// Those that the steps change: all, or only adapters.
    pub trained_parameters: u64,
    /// Updates made, including those before a resume.
    pub steps: usize,
    /// Tokens trained on, counting repetitions.
    pub tokens: u64,
    /// Wall-clock seconds since the start of this process.
    pub wall_s: f64,
    /// Seconds that this process spent on steps alone.
    pub train_s: f64,
    /// Median time of a step after the first five, in milliseconds.
    pub median_step_ms: f64,
    /// Tokens of a step divided by the median step time.
    pub tokens_per_s: f64,
    /// The time spent on exchanges with other ranks in this process's steps; the fields are missing without other
    /// ranks.
    #[serde(flatten)]
    pub exchange: Option<Exchange>,
    /// Peak resident memory of this process, in MiB; `None` where the system does not report it.
    pub peak_rss_mib: Option<f64>,
    /// Mean training loss of the last log interval, in nats per token.
    pub train_loss: Option<f64>,
    /// Loss of the last weights over the whole validation split, in nats per token.
    pub val_loss: Option<f64>,
    /// Loss of the best checkpoint over the whole validation split, in nats per token.
    pub best_val_loss: Option<f64>,
    /// The step of the best checkpoint.
    pub best_step: Option<usize>,
    /// `val_loss` in bits per byte of text; `None` of preferences.
    pub val_bits_per_byte: Option<f64>,
    /// The bits per byte of the beginning of the validation split in gzip's format; `None` of records.
    pub gzip_bits_per_byte: Option<f64>,
    /// How well the last weights have learned preferences; the fields are missing without them.
    #[serde(flatten)]
    pub preferred: Option<Preferred>,
    #[serde(skip)]
    pub interrupted: bool,
}

impl Summary {
    /// The results of a run that has ended, from its logs. This process made none of its steps.
    pub fn of_ended(run: &RunDir) -> Result<Self, RunError> {
        let RunInfo {
            step, parameters, trained_parameters, tokens, val_loss: best_val_loss, best_step, device, ..
        } = RunInfo::read(run)?;
        let lines = read_lines::<MetricsLine>(&run.join(METRICS))?.lines;
        let end = lines.iter().rfind(|line| line.val_loss.is_some());
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(Self {
            run_dir: run.root().to_owned(),
            device: device.unwrap_or_default(),
            parameters: parameters.unwrap_or_default(),
            trained_parameters: trained_parameters.or(parameters).unwrap_or_default(),
            steps: count(step),
            tokens: tokens.unwrap_or_default(),
            wall_s: 0.0,
            train_s: 0.0,
            median_step_ms: 0.0,
            tokens_per_s: 0.0,
            exchange: None,
            peak_rss_mib: peak_rss_mib(),
            train_loss: lines.iter().rev().find_map(|line| line.train_loss),
            val_loss: end.and_then(|end| end.val_loss),
            best_val_loss,
            best_step: best_step.map(count),
            val_bits_per_byte: end.and_then(|end| end.val_bits_per_byte),
            gzip_bits_per_byte: None,
            preferred: end.and_then(|end| Some(Preferred { accuracy: end.val_accuracy?, margin: end.val_margin? })),
            interrupted: false,
        })
    }
}
