//! Prepares a run directory for resuming from its last intact checkpoint, without the files and log lines after it.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::dependents::check_unneeded;
use super::layout::{BEST, LAST, step_of, steps_in};
use super::{BeforeAndAfter, Checkpoint, RunDir, RunError, TrainState, cannot_read, cannot_write};
use tinderbox_model::disk::{is_partial, remove_dir};

#[derive(Debug)]
pub(crate) struct Resumable {
    pub dir: PathBuf,
    pub checkpoint: Checkpoint,
    /// One line for each damaged part that is left out.
    pub damaged: Vec<String>,
}

impl RunDir {
    /// The checkpoint that `last` names or, if that is damaged, the latest intact one before it. If `last` cannot be
    /// read, the latest of all.
    pub(crate) fn resumable(&self) -> Result<Resumable, RunError> {
        let last = self.last();
        let mut steps = match steps_in(&self.checkpoints()) {
            Err(_) if last.is_err() => Vec::new(),
            steps => steps?,
        };
        let mut first_error = None;
        let mut damaged = Vec::new();
        match last {
            Ok(dir) => steps.retain(|(step, _)| Some(*step) <= step_of(&dir)),
            Err(error) => {
                damaged.extend((!matches!(error, RunError::NoCheckpoint(_))).then(|| error.first_line()));
                first_error = Some(error);
            }
        }
        for (_, dir) in steps.into_iter().rev() {
            match Checkpoint::read_whole(&dir) {
                Ok(checkpoint) => return Ok(Resumable { dir, checkpoint, damaged }),
                Err(error) if is_damage(&error) => {
                    damaged.push(error.first_line());
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(first_error.unwrap_or_else(|| RunError::NoCheckpoint(self.root().to_owned())))
    }

    /// Removes everything after the checkpoint of `state`, which a resumed run repeats, and half-written files left by
    /// a crash. Forgets the best checkpoint if it is gone or damaged, and returns a line about it if damaged.
    pub(crate) fn cut_back_to(&self, state: &mut TrainState) -> Result<Option<String>, RunError> {
        let folder = self.checkpoints();
        let mut later = steps_in(&folder)?.into_iter().filter(|(step, _)| *step > state.step);
        later.try_for_each(|(_, dir)| check_unneeded(&dir))?;
        for entry in fs::read_dir(&folder).map_err(cannot_read(&folder))? {
            let path = entry.map_err(cannot_read(&folder))?.path();
            if step_of(&path).is_some_and(|found| found > state.step) {
                remove_dir(&path).map_err(cannot_write(&path))?;
            } else if is_partial(&path) {
                fs::remove_dir_all(&path).map_err(cannot_write(&path))?;
            }
        }
        BeforeAndAfter::remove(self)?;
        self.write_pointer(LAST, state.step)?;
        let (mut damaged, mut is_forgotten) = (None, false);
        // It may have been replaced by a better one, which came after this step and is gone now.
        if let Some(best) = state.best.filter(|best| best.step != state.step) {
            let dir = self.checkpoint(best.step);
            let error = match dir.is_dir() {
                true => Checkpoint::whole_weights(&dir).err(),
                false => Some(RunError::NoCheckpoint(self.root().to_owned())),
            };
            if let Some(error) = error {
                damaged = is_damage(&error).then(|| error.first_line());
                is_forgotten = true;
                state.best = None;
                state.evaluations_without_improvement = 0;
            }
        }
        if is_forgotten || matches!(self.read_pointer(BEST), Err(RunError::Pointer { .. })) {
            let path = self.join(BEST);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(cannot_write(&path)(error)),
                _ => {}
            }
        }
        Ok(damaged)
    }
}

/// Whether this error of a checkpoint means that an earlier one may be intact.
fn is_damage(error: &RunError) -> bool {
    match error {
        RunError::Damaged { .. } => true,
        RunError::Read { source, .. } => source.kind() == ErrorKind::NotFound,
        _ => false,
    }
}
