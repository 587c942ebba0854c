//! The files of a run, which rank 0 alone writes.

use std::path::PathBuf;

use super::TrainError;
use super::logs::Logs;
use crate::config::TrainConfig;
use crate::run::{Checkpoint, Lock, RunDir, TrainState};

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

    pub(super) fn set_best(&self, step: usize) -> Result<(), TrainError> {
        self.lock.check()?;
        Ok(self.run.set_best(step)?)
    }

    pub(super) fn replace_state(&self, state: &TrainState) -> Result<(), TrainError> {
        self.lock.check()?;
        Ok(Checkpoint::replace_state(&self.run.checkpoint(state.step), state)?)
    }

    pub(super) fn save(&self, checkpoint: &Checkpoint, config: &TrainConfig) -> Result<PathBuf, TrainError> {
        self.logs.sync()?; // log lines must reach the disk before the checkpoint that follows them
        self.lock.check()?;
        let saved = self.run.save(checkpoint, config.keep_checkpoints.limit());
        self.lock.check()?; // the directory may have been moved meanwhile
        Ok(saved?)
    }
}
