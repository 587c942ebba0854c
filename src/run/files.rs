//! Atomic writes: a reader, and a crash, finds a file or a directory whole or not at all.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::{RunError, cannot_read};

/// Replaces the file `path`: a reader sees the old contents or the new ones.
pub fn write_atomically(path: &Path, contents: &[u8]) -> io::Result<()> {
    let partial = partial_name(path);
    write_synced(&partial, |file| file.write_all(contents)).and_then(|()| rename(&partial, path)).inspect_err(|_| {
        fs::remove_file(&partial).ok(); // the first error is the one to report
    })
}

/// Creates a file, lets `write` fill it, and waits until it is on the disk.
pub(crate) fn write_synced(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut file = File::create(path)?;
    write(&mut file)?;
    file.sync_all()
}

/// Renames within a directory and waits until the new name is on the disk.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    match to.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_dir(Path::new(".")),
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

/// Waits until the names in a directory are on the disk.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(()); // other systems cannot flush a directory
    }
    File::open(dir)?.sync_all()
}

pub(crate) fn remove_dir(dir: &Path) -> io::Result<()> {
    let partial = partial_name(dir);
    rename(dir, &partial)?;
    fs::remove_dir_all(partial)
}

/// The hidden name beside `path` for something that is half written or half removed.
pub(crate) fn partial_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.partial"))
}

pub(crate) fn read_text(path: &Path) -> Result<String, RunError> {
    fs::read_to_string(path).map_err(cannot_read(path))
}

/// Reads a file; a missing one is empty.
pub(crate) fn read_or_empty(path: &Path) -> Result<Vec<u8>, RunError> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        result => result.map_err(cannot_read(path)),
    }
}
