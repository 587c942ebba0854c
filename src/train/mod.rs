//! Training: from a config to weights on the disk.
//!
//! [`train`] is the whole of it. `prepare` makes a run ready for its next step; `trainer` is one step,
//! readable top to bottom; `session` is the rhythm around it: logs, evaluations, samples, checkpoints;
//! `strategy` puts that into burn-train, whose "epoch" is our evaluation interval, and `metrics` are the
//! numbers it is told. Nothing here prints: what happens is told to
//! an [`Observer`].

mod error;
pub mod evaluate;
mod logs;
mod metrics;
mod observer;
pub mod precision;
mod prepare;
mod session;
mod step_clock;
mod strategy;
mod trainer;

use std::path::PathBuf;
use std::time::Instant;

pub use burn::train::Interrupter;
pub use burn::train::renderer::MetricsRenderer;

pub use error::TrainError;
pub use observer::{Evaluation, Event, Logged, Observer, Started, Summary};
pub use precision::PrecisionError;
pub use trainer::{StepResult, Trainer};

use crate::config::{Config, ConfigError};
use crate::device::OpenDevice;
use crate::run::CheckpointError;
use session::Session;

/// What to do with what is already in the run directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// There is nothing: a run that is there is an error.
    New,
    /// Replace a run that is there.
    Overwrite,
    /// Go on from its last checkpoint.
    Resume,
}

/// A run that is to be made.
#[derive(Clone, Debug)]
pub struct Job {
    /// What the run is.
    pub config: Config,
    /// Where it is kept.
    pub run_dir: PathBuf,
    /// What to do with a run that is already there.
    pub start: Start,
    /// The run, or one of its checkpoints, whose weights and tokenizer a new run starts from; none: weights
    /// are drawn from the seed. A run that goes on has its own.
    pub from: Option<PathBuf>,
    /// Where it is computed.
    pub device: OpenDevice,
}

/// Trains as `job` says, until it is done or `interrupter` is told to stop; then it saves, and returns
/// what came of it.
///
/// # Errors
/// If the text, the run directory or the config cannot be used, if the device has not the precision that was asked
/// for, if the loss is not finite, or if something
/// cannot be written; and [`TrainError::InterruptedEarly`]. Checkpoints that were saved before stay.
pub fn train(
    job: Job,
    mut observer: Box<dyn Observer>,
    interrupter: &Interrupter,
) -> Result<Summary, TrainError> {
    let began = Instant::now();
    let device = job.device.clone();
    let prepared = prepare::prepare(job, &mut *observer, interrupter)?;
    let renderer = observer.metrics_renderer();
    let session = Session::new(prepared, &device, observer, interrupter.clone(), began)?;
    strategy::run(session, renderer, interrupter)
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> Self {
        Self::Run(Box::new(error))
    }
}

impl From<ConfigError> for TrainError {
    fn from(error: ConfigError) -> Self {
        CheckpointError::from(error).into()
    }
}
