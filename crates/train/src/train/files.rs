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

    /// Replaces the state of the checkpoint of its step.
    pub(super) fn replace_state(&self, state: &TrainState) -> Result<(), TrainError> {
        self.lock.check()?;
        Ok(Checkpoint::replace_state(&self.run.checkpoint(state.step), state)?)
    }

    /// Saves a checkpoint and returns its path, and an error if the run directory was moved meanwhile and the
    /// checkpoint moved with it.
    pub(super) fn save(
        &mut self,
        checkpoint: &Checkpoint,
        config: &TrainConfig,
    ) -> Result<(PathBuf, Option<RunError>), TrainError> {
        self.logs.sync()?; // log lines must reach the disk before the checkpoint that follows them
        let keep = config.keep_checkpoints.limit();
        let moved = self.follow()?;
        let saved = self.run.save(checkpoint, keep);
        if moved.is_none()
            && let Some(moved) = self.follow()?
        {
            return Ok((self.run.save(checkpoint, keep)?, Some(moved)));
        }
        Ok((saved?, moved))
    }

    /// Continues in the directory's new place if it was moved, and returns that as the error.
    fn follow(&mut self) -> Result<Option<RunError>, TrainError> {
        match self.lock.check() {
            Err(RunError::Moved { root, to }) => {
                self.run = RunDir::open(&to)?;
                Ok(Some(RunError::Moved { root, to }))
            }
            other => Ok(other.map(|()| None)?),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;
    use crate::config::Config;
    use tinderbox_model::LazyTensor;
    use tinderbox_model::tokenizer::Tokenizer;

    #[test]
    fn checkpoint_follows_run_moved_during_write() {
        let folder = tempfile::tempdir().unwrap();
        let [root, moved] = ["run", "moved"].map(|name| folder.path().join(name));
        let (config, state) = (Config::default(), TrainState { step: 1, ..TrainState::default() });
        let lock = RunDir::lock(&root).unwrap();
        let run = RunDir::create(&root, false, &config, &Tokenizer::byte()).unwrap();
        let mut files = Files::open(run, lock, &TrainState::default(), &config.train).unwrap();
        let (from, to) = (root.clone(), moved.clone());
        let weight = LazyTensor::computed(vec![1], move |sink| {
            if from.exists() {
                fs::rename(&from, &to)?;
            }
            sink(&[1.0])
        });
        let model = BTreeMap::from([("a".to_owned(), weight)]);
        let checkpoint = Checkpoint { model, optimizer: BTreeMap::new(), state };
        let (path, error) = files.save(&checkpoint, &config.train).unwrap();
        assert_eq!(path, moved.join("checkpoints/step-000001"));
        assert!(matches!(error, Some(RunError::Moved { to, .. }) if to == moved));
        assert_eq!(Checkpoint::read(&path).unwrap().state.step, 1);
        assert_eq!(RunDir::open(&moved).unwrap().last().unwrap(), path);
        assert!(!root.exists());
    }
}
