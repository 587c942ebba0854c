//! Writing files so that they are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::CheckpointError;

/// Replaces `path` by a file with `contents`: a reader sees the old one or the new one.
///
/// # Errors
/// If the file cannot be written; what was there stays.
pub fn write_atomically(path: &Path, contents: &[u8]) -> Result<(), CheckpointError> {
    let beside = partial_name(path);
    write_synced(&beside, |file| file.write_all(contents))
        .and_then(|()| rename(&beside, path))
        .inspect_err(|_| {
            fs::remove_file(&beside).ok(); // already reporting why it could not be written
        })
}

/// Makes a file that `write` fills, and waits until it is on the disk.
pub(super) fn write_synced(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), CheckpointError> {
    let written = File::create(path).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()
    });
    written.map_err(|source| CheckpointError::Write { path: path.to_owned(), source })
}

/// Renames within a directory and waits until the new name is on the disk.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    fs::rename(from, to)
        .map_err(|source| CheckpointError::Write { path: to.to_owned(), source })?;
    match to.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_dir(Path::new(".")),
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

/// Waits until the names of the files in a directory are on the disk.
pub(super) fn sync_dir(dir: &Path) -> Result<(), CheckpointError> {
    if !cfg!(unix) {
        return Ok(()); // only Unix can flush a directory
    }
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|source| CheckpointError::Write { path: dir.to_owned(), source })
}

/// Removes a directory so that a reader, and a crash, sees it whole or not at all.
pub(super) fn remove_dir(dir: &Path) -> Result<(), CheckpointError> {
    let aside = partial_name(dir);
    rename(dir, &aside)?;
    fs::remove_dir_all(&aside).map_err(|source| CheckpointError::Write { path: aside, source })
}

/// The name beside `path` under which it is written first.
pub(super) fn partial_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.partial"))
}

/// Reads a text file of a run.
pub(super) fn read_text(path: &Path) -> Result<String, CheckpointError> {
    fs::read_to_string(path)
        .map_err(|source| CheckpointError::Read { path: path.to_owned(), source })
}
