//! Training: from a config to weights on the disk.
//!
//! [`train`] is the training loop, which every rank runs. `prepare` readies a run for its next step, `training` has the
//! parts that the loop calls, and `trainer` makes one step. This module prints nothing: events go to an [`Observer`].

mod assignment;
mod clock;
mod config;
mod devices;
mod error;
pub mod evaluate;
mod exchange;
mod files;
mod logs;
mod observer;
mod outer;
mod parallel;
pub mod precision;
mod preference;
mod prepare;
mod renderer;
mod skip;
mod thinned;
mod trainer;
mod training;

use std::path::PathBuf;
use std::time::Instant;

pub use burn::train::Interrupter;

pub use assignment::Assignment;
pub use config::{KeptCheckpoints, TrainConfig};
pub(crate) use devices::in_own_pool;
pub use devices::train_on;
pub use error::TrainError;
pub use observer::{Evaluation, Event, Exchange, Logged, Observer, Preferred, Started, Summary};
pub use precision::PrecisionError;
pub(crate) use prepare::dry_run;
pub use renderer::RendererObserver;
pub use skip::{NormsByLayer, Skipped};
pub use thinned::Thinned;
pub(crate) use trainer::draw;
pub use trainer::{StepResult, Trainer};

use crate::config::Config;
use crate::distributed::{DistributedError, Ranks};
use tinderbox_model::device::OpenDevice;
use training::Training;

/// The start of a run, given the state of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// As a new run, in a directory without a run.
    New,
    /// As a new run, which replaces the existing run in the directory.
    Overwrite,
    /// From the last checkpoint of the run in the directory.
    Resume,
}

/// A training job.
#[derive(Clone, Debug)]
pub struct Job {
    /// The config: model, text and training.
    pub config: Config,
    /// The run directory.
    pub run_dir: PathBuf,
    /// The start of the run.
    pub start: Start,
    /// The run or checkpoint whose weights and tokenizer a new run starts from; with `None`, the weights are drawn from
    /// the seed.
    pub from: Option<PathBuf>,
    /// The device to compute on.
    pub device: OpenDevice,
}

/// Trains until the run is done or `interrupter` stops it; a stopped run saves a checkpoint first.
///
/// # Errors
/// If the text, the run directory or the config cannot be used, if the device lacks the precision, if a loss is not
/// finite, or if a file cannot be written; and [`TrainError::InterruptedEarly`]. Earlier checkpoints stay.
pub fn train(job: Job, observer: Box<dyn Observer>, interrupter: &Interrupter) -> Result<Summary, TrainError> {
    lead(job, &Ranks::alone(), observer, interrupter)
}

/// Like [`train`], together with other ranks, which [join in](Assignment): each computes some rows of every batch.
/// Called by rank 0.
pub fn lead(
    job: Job,
    ranks: &Ranks,
    mut observer: Box<dyn Observer>,
    interrupter: &Interrupter,
) -> Result<Summary, TrainError> {
    let trained = train_with(job, ranks, &mut *observer, interrupter);
    if trained.is_err() {
        ranks.end();
    }
    ranks.limit_waiting(None); // other ranks may still be busy
    trained
}

fn train_with(
    job: Job,
    ranks: &Ranks,
    observer: &mut dyn Observer,
    interrupter: &Interrupter,
) -> Result<Summary, TrainError> {
    let began = Instant::now();
    let reads_standard_input = job.config.data.all_sources().iter().any(|source| source.path.as_os_str() == "-");
    if reads_standard_input && !ranks.is_alone() {
        return Err(DistributedError::StandardInput.into());
    }
    if job.config.finetune.base_weights.precision().is_some() && !ranks.is_alone() {
        return Err(DistributedError::RoundedBase.into());
    }
    let device = job.device.clone();
    let mut prepared = prepare::prepare(job, observer, interrupter)?;
    Assignment::broadcast(ranks, &mut prepared)?;
    to_the_end(Training::start(prepared, device, observer, interrupter, began)?)
}

fn to_the_end(mut run: Training<'_>) -> Result<Summary, TrainError> {
    let TrainConfig { log_interval, eval_interval, checkpoint_interval, .. } = run.config().train;
    while !run.is_done() || run.has_pending() {
        if run.should_stop()? {
            run.save()?;
            return run.finish(true);
        }
        if !run.has_pending() {
            if !run.step()? {
                continue; // interrupted
            }
            if run.is_last_step() || run.is_due(log_interval) {
                run.log()?;
            }
            if run.is_last_step() || run.is_due(eval_interval) {
                run.schedule_evaluation();
            }
        }
        if run.run_pending_evaluations()? && (run.is_best() || run.is_done() || run.is_due(checkpoint_interval)) {
            run.save()?;
        }
    }
    run.finish(false)
}
