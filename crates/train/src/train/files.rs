//! The files of a run, which rank 0 alone writes.

use std::path::PathBuf;

use super::TrainError;
use super::logs::Logs;
use crate::config::TrainConfig;
use crate::run::{Checkpoint, Lock, RunDir, RunError, TrainState};

#[derive(Debug)]
pub(super) struct Files {
    pub run: RunDir,
    pub logs: Logs,
    /// Keeps other processes out of the run directory.
    lock: Lock,
}

impl Files {
    /// Opens the logs of a run, up to its current step.
    pub(super) fn open(run: RunDir, lock: Lock, state: &TrainState, config: &TrainConfig) -> Result<Self, TrainError> {
        Ok(Self { logs: Logs::open(&run, state, config)?, run, lock })
    }

    /// Makes the checkpoint of `step` the best.
    pub(super) fn set_best(&self, step: usize) -> Result<(), TrainError> {
        self.lock.check()?;
        Ok(self.run.set_best(step)?)
    }

    /// Saves a checkpoint and returns its path; also an error, if the run directory was moved and the checkpoint went
    /// along.
    pub(super) fn save(
        &mut self,
        checkpoint: &Checkpoint,
        config: &TrainConfig,
    ) -> Result<(PathBuf, Option<RunError>), TrainError> {
        self.logs.sync()?; // log lines must reach the disk before the checkpoint that follows them
        let moved = match self.lock.check() {
            Err(RunError::Moved { root, to }) => {
                self.run = RunDir::open(&to)?;
                Some(RunError::Moved { root, to })
            }
            other => other.map(|()| None)?,
        };
        Ok((self.run.save(checkpoint, config.keep_checkpoints.limit())?, moved))
    }
}
