//! The runs whose adapters need a checkpoint. Their names are kept in a file beside its weights, so that it is not removed.

use std::fs;
use std::path::{Path, PathBuf};

use super::layout::{CHECKPOINTS, CONFIG, NEEDED_BY, steps_in};
use super::{Checkpoint, RunDir, RunError};
use tinderbox_model::disk::{lock_folder, write_atomically};

/// `path` as seen from the directory of the run `root`: relative if both are in one folder, so that they can be moved
/// together.
pub(super) fn seen_from(root: &Path, path: &Path) -> PathBuf {
    let [path, root] = [path, root].map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    let beside = root.parent().and_then(|folder| path.strip_prefix(folder).ok());
    beside.map_or_else(|| path.clone(), |inside| Path::new("..").join(inside))
}

/// Records that the adapters of the run `root` need the checkpoint `base`. If nothing can be written there, nothing is
/// removed there either.
pub(super) fn record(base: &Path, root: &Path) {
    let Some(base_root) = base.ancestors().nth(2) else { return };
    let (file, name) = (base.join(NEEDED_BY), seen_from(base_root, root).display().to_string());
    let _others_wait = lock_folder(base);
    let names = fs::read_to_string(&file).unwrap_or_default();
    if !names.lines().any(|known| known == name) {
        write_atomically(&file, format!("{names}{name}\n").as_bytes()).ok();
    }
}

/// The runs whose adapters need the checkpoint `dir`.
fn dependents(dir: &Path) -> Vec<PathBuf> {
    let Some(root) = dir.ancestors().nth(2) else { return Vec::new() };
    let lines = fs::read_to_string(dir.join(NEEDED_BY)).unwrap_or_default();
    let runs = lines.lines().map(|line| match Path::new(line).strip_prefix("..") {
        Ok(inside) if root.file_name().is_some() => root.with_file_name(inside),
        _ => root.join(line),
    });
    runs.filter(|run| needs(run, dir)).collect()
}

/// Whether a run has adapters of the checkpoint `dir`, or has no checkpoint yet.
fn needs(run: &Path, dir: &Path) -> bool {
    let Ok(steps) = steps_in(&run.join(CHECKPOINTS)) else { return false };
    let is_of_base = |(_, tuned): &(usize, PathBuf)| {
        let adapter = Checkpoint::read_state(tuned).ok().and_then(|state| state.adapter);
        let base = adapter.and_then(|adapter| adapter.base_of(tuned).ok()?.canonicalize().ok());
        base.is_some_and(|base| dir.canonicalize().is_ok_and(|dir| dir == base))
    };
    run.join(CONFIG).is_file() && (steps.is_empty() || steps.iter().any(is_of_base))
}

/// Returns an error if the adapters of a run need the checkpoint `dir`, which would be removed.
pub(super) fn check_unneeded(dir: &Path) -> Result<(), RunError> {
    match dependents(dir).into_iter().next() {
        Some(by) => Err(RunError::Needed { checkpoint: dir.to_owned(), by }),
        None => Ok(()),
    }
}

impl RunDir {
    /// A line for each checkpoint that is kept since the adapters of a run need it.
    pub(crate) fn needed_checkpoints(&self) -> Result<Vec<String>, RunError> {
        let errors = self.kept()?.into_iter().filter_map(|(_, dir)| check_unneeded(&dir).err());
        Ok(errors.map(|error| error.first_line()).collect())
    }
}
