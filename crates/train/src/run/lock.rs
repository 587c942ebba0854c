//! The lock of a run directory: only one process at a time trains there, and detects when the directory is moved or
//! replaced.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::layout::LOCK;
use super::{RunDir, RunError, cannot_write};
use tinderbox_model::disk::{self, create_dir_all};

/// The number of attempts to take the lock, and the time between them: [`RunDir::is_busy`] holds it for a moment.
const LOCK_ATTEMPTS: usize = 3;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A locked run directory: no other process trains in it while this value lives.
#[derive(Debug)]
pub struct Lock {
    root: PathBuf,
    file: File,
    /// Whether the file system identifies files reliably.
    is_known: bool,
}

impl RunDir {
    /// Creates `root` and keeps other processes from training in it.
    pub fn lock(root: &Path) -> Result<Lock, RunError> {
        let path = root.join(LOCK);
        if disk::is_link(&path) {
            return Err(RunError::Link(path));
        }
        create_dir_all(root).map_err(cannot_write(&path))?;
        for _ in 0..LOCK_ATTEMPTS {
            let file = disk::open_lock(&path).map_err(cannot_write(&path))?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                // Some network drives do not support locks: training without one is better than not training.
                Ok(()) | Err(TryLockError::Error(_)) => {
                    let is_known = disk::is_at(&file, &path);
                    return Ok(Lock { root: root.to_owned(), file, is_known });
                }
            }
        }
        Err(RunError::Busy(root.to_owned()))
    }

    /// Whether a process is training in this run. Changes nothing on disk.
    pub fn is_busy(&self) -> bool {
        disk::open_file(&self.join(LOCK))
            .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}

impl Lock {
    /// Checks that the directory is still the locked one: it may have been moved or removed, with another run now in
    /// its place.
    pub fn check(&self) -> Result<(), RunError> {
        match !self.is_known || disk::is_at(&self.file, &self.root.join(LOCK)) {
            true => Ok(()),
            false => Err(RunError::Gone(self.root.clone())),
        }
    }
}
