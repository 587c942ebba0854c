//! Creates, fills and removes the directories of runs.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::dependents::check_unneeded;
use super::layout::{
    CHECKPOINTS, CONTENTS, FILES, LAST, LOCK, RunDir, TENSORBOARD, TOKENIZER, TOKENIZER_CONFIG, is_run, step_of,
    steps_in,
};
use super::{Checkpoint, RunError, TrainState, cannot_read, cannot_write, log, tensorboard};
use crate::config::Config;
use tinderbox_model::disk::{self, PartialDir, create_dir_all, is_partial, remove_dir, remove_left_over, rename};
use tinderbox_model::tokenizer::Tokenizer;

impl RunDir {
    /// Checks, without changing anything, that a new run may be created at `root`: the path is free or has a run
    /// without steps, or `overwrite` is set and it has any run. Nothing but a run's files may be removed with it.
    pub fn check_new(root: &Path, overwrite: bool) -> Result<(), RunError> {
        if entries(root)?.iter().all(|path| is_named(path, &[LOCK])) {
            Ok(())
        } else if !is_run(root) {
            Err(RunError::NotEmpty(root.to_owned()))
        } else if overwrite || !has_steps(&Self::open(root)?) {
            steps_in(&root.join(CHECKPOINTS))
                .unwrap_or_default()
                .iter()
                .try_for_each(|(_, dir)| check_unneeded(dir))?;
            refuse(root, others(root)?)
        } else {
            Err(RunError::Exists(root.to_owned()))
        }
    }

    /// Checks, without changing anything, that [`RunDir::remove`] would remove only a run, or that there is none.
    pub(crate) fn check_removable(root: &Path) -> Result<(), RunError> {
        Self::check_new(root, true)?;
        let mut others = entries(root)?;
        others.retain(|path| !is_named(path, &CONTENTS) && !is_named(path, &[LOCK]));
        refuse(root, others)
    }

    /// Removes a run and its directory, unless that holds something else.
    pub(crate) fn remove(root: &Path) -> Result<(), RunError> {
        remove_contents(root, &CONTENTS)?;
        remove_left_over(root);
        remove_contents(root, &[LOCK])?;
        match fs::remove_dir(root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot_write(root)(error)),
            _ => Ok(()),
        }
    }

    /// Creates the directory of a new run, replacing an old one if `overwrite`.
    pub fn create(root: &Path, overwrite: bool, config: &Config, tokenizer: &Tokenizer) -> Result<Self, RunError> {
        Self::check_new(root, overwrite)?;
        // The config stays: it marks the directory as a run that may be overwritten, even if this is interrupted.
        remove_contents(root, &CONTENTS[1..])?;
        create_dir_all(root).map_err(cannot_write(root))?;
        remove_left_over(root);
        let run = Self::at(root);
        run.write_config(config)?;
        run.replace(TOKENIZER, &tokenizer.to_json())?;
        if let Some(json) = tokenizer.config_json() {
            run.replace(TOKENIZER_CONFIG, json)?;
        }
        let checkpoints = run.join(CHECKPOINTS);
        create_dir_all(&checkpoints).map_err(cannot_write(&checkpoints))?;
        Ok(run)
    }

    /// Creates the directory of a run with one checkpoint, of weights that were not trained there, replacing an old run
    /// if `overwrite`. The checkpoint is written first, next to the directory: if that fails, the old run stays.
    pub fn create_with(
        root: &Path,
        overwrite: bool,
        config: &Config,
        tokenizer: &Tokenizer,
        checkpoint: &Checkpoint,
    ) -> Result<Self, RunError> {
        Self::check_new(root, overwrite)?;
        let beside = PartialDir::create(root).map_err(cannot_write(root))?;
        let written = beside.path().join(CHECKPOINTS);
        checkpoint.write(&written)?;
        let _waiting = disk::lock_folder(disk::folder_of(root)); // for others that do the same, not for a training
        let _lock = Self::lock(root)?;
        let run = Self::create(root, overwrite, config, tokenizer)?;
        let step = checkpoint.state.step;
        rename(&written, &run.checkpoint(step)).map_err(cannot_write(root))?;
        run.write_pointer(LAST, step)?;
        run.set_best(step)?;
        Ok(run)
    }

    /// Saves a checkpoint, points `last` and `best` at the right ones, and removes those that are no longer kept:
    /// all but the `keep` latest, the best, and those that adapters need. `usize::MAX` keeps all.
    pub fn save(&self, checkpoint: &Checkpoint, keep: usize) -> Result<PathBuf, RunError> {
        let (step, best) = (checkpoint.state.step, checkpoint.state.best.map(|best| best.step));
        let dir = self.checkpoint(step);
        checkpoint.write(&dir)?;
        self.write_pointer(LAST, step)?;
        if let Some(best) = best.filter(|best| self.checkpoint(*best).is_dir()) {
            self.set_best(best)?;
        }
        let steps = steps_in(&self.checkpoints())?;
        let is_kept = |step, path: &Path| Some(step) == best || check_unneeded(path).is_err();
        for (_, path) in steps.into_iter().rev().skip(keep.max(1)).filter(|(step, path)| !is_kept(*step, path)) {
            remove_dir(&path).map_err(cannot_write(&path))?;
        }
        Ok(dir)
    }

    /// The run's tokenizer, if it is the one that its last checkpoint was trained with.
    pub fn tokenizer(&self) -> Result<Tokenizer, RunError> {
        let last = self.last().and_then(|last| Checkpoint::read_state(&last));
        self.tokenizer_of(&last.unwrap_or_default())
    }

    /// The run's tokenizer, if it is the one that the checkpoint of `state` was trained with.
    pub(crate) fn tokenizer_of(&self, state: &TrainState) -> Result<Tokenizer, RunError> {
        let path = self.join(TOKENIZER);
        let found = || fs::File::open(&path).and_then(disk::crc32c_of).ok();
        match state.tokenizer_crc32c {
            Some(expected) if found().is_some_and(|found| found != expected) => Err(RunError::OtherTokenizer { path }),
            _ => Ok(Tokenizer::from_file(&path)?),
        }
    }

    /// The run's tokenizer, padded to as many ids as its model has rows.
    pub fn tokenizer_of_model(&self, config: &Config) -> Result<Tokenizer, RunError> {
        Ok(self.tokenizer()?.padded_to(config.model.vocab_size)?)
    }
}

fn remove_contents(root: &Path, names: &[&str]) -> Result<(), RunError> {
    for path in names.iter().rev().map(|name| root.join(name)) {
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
            Ok(_) => fs::remove_file(&path),
            Err(_) => continue, // there is none
        }
        .map_err(cannot_write(&path))?;
    }
    Ok(())
}

/// The paths in a folder; none if it is missing.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, RunError> {
    match fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => Ok(entries.map_err(cannot_read(folder))?.iter().map(fs::DirEntry::path).collect()),
    }
}

/// Whether a file has one of these names, or was left half-written.
fn is_named(path: &Path, names: &[&str]) -> bool {
    names.iter().any(|name| path.ends_with(name)) || is_partial(path)
}

/// Files in the folders of a run that no run writes, and that would be removed with it.
fn others(root: &Path) -> Result<Vec<PathBuf>, RunError> {
    // Of a link, only the link is removed.
    let entries =
        |folder: &Path| if folder.is_symlink() || !folder.is_dir() { Ok(Vec::new()) } else { entries(folder) };
    let mut others = entries(&root.join(TENSORBOARD))?;
    others.retain(|path| !is_named(path, &[tensorboard::EVENTS]));
    for path in entries(&root.join(CHECKPOINTS))? {
        match step_of(&path) {
            Some(_) if path.is_dir() => {
                others.extend(entries(&path)?.into_iter().filter(|path| !is_named(path, &FILES)));
            }
            _ if is_partial(&path) => {}
            _ => others.push(path),
        }
    }
    Ok(others)
}

/// Returns an error that names the `others` in the run at `root`, if there are any.
fn refuse(root: &Path, mut others: Vec<PathBuf>) -> Result<(), RunError> {
    if others.is_empty() {
        return Ok(());
    }
    others.sort();
    let others = others.iter().map(|path| path.strip_prefix(root).unwrap_or(path).to_owned()).collect();
    Err(RunError::Others { root: root.to_owned(), others })
}

/// Whether a run has something to lose: a step, saved or logged, or imported weights.
fn has_steps(run: &RunDir) -> bool {
    let is_worth = |(step, dir): (usize, PathBuf)| {
        step > 0 || Checkpoint::read_state(&dir).map_or(true, |state| state.is_imported())
    };
    steps_in(&run.checkpoints()).map_or(run.checkpoints().exists(), |steps| steps.into_iter().any(is_worth))
        || log::last_step(run).is_none_or(|step| step > 0)
}
