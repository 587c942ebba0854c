//! Atomic writes: readers, even after a crash, find a file or directory complete or not at all. Once a call returns, the
//! names that it made survive a crash of the system.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::file::{PARTIAL, Temporary, folder_of, remove_unused, start_of_name, unique_name};

/// Replaces the file `path`: a reader sees the old contents or the new ones.
///
/// Processes that replace it at the same time do not interfere.
pub fn write_atomically(path: &Path, contents: &[u8]) -> io::Result<()> {
    PartialFile::write(path, |file| file.write_all(contents))?.rename()
}

/// A file that is on the disk under a temporary name; removed on drop.
#[derive(Debug)]
pub struct PartialFile {
    target: PathBuf,
    temporary: Temporary,
}

impl PartialFile {
    /// Lets `write` fill a file with a unique name beside `target`, and waits until it is on the disk.
    pub fn write(target: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<Self> {
        let folder = target.parent().unwrap_or(Path::new(""));
        let mut temporary = Temporary::create(folder, &start_of_name(target), PARTIAL)?;
        write(&mut temporary.file)?;
        temporary.file.sync_all()?;
        Ok(Self { target: target.to_owned(), temporary })
    }

    /// Renames the file to its target, replacing an existing one.
    pub fn rename(self) -> io::Result<()> {
        self.temporary.rename(&self.target)?;
        sync_names_beside(&self.target)
    }
}

/// Creates a file, replacing any existing one, lets `write` fill it, and waits until it is on the disk.
pub fn write_synced<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {} // the target of a link stays as it is
    }
    let mut file = File::create_new(path)?;
    let written = write(&mut file)?;
    file.sync_all()?;
    Ok(written)
}

/// Removes a directory: it is gone at once, and its files afterwards.
pub fn remove_dir(dir: &Path) -> io::Result<()> {
    let partial = unique_name(dir);
    rename(dir, &partial)?;
    fs::remove_dir_all(partial)
}

/// Whether this is the name of something unfinished: its writer was killed, or is still working on it.
pub fn is_partial(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name.starts_with(b".") && name.ends_with(PARTIAL.as_bytes())
}

/// Removes the unfinished files in `dir` that killed processes left. Those of running processes stay.
pub fn remove_left_over(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if is_partial(&entry.path()) {
            remove_unused(&entry.path()).ok(); // the next process tries again
        }
    }
}

/// Renames within a directory and waits until the new name is on the disk.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_names_beside(to)
}

/// Waits until the name of a file or a directory is on the disk.
pub fn sync_names_beside(path: &Path) -> io::Result<()> {
    sync_dir(folder_of(path))
}

pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(()); // other systems cannot flush a directory
    }
    File::open(dir)?.sync_all()
}

/// Creates a directory and its missing parents, and waits until their names are on the disk.
pub fn create_dir_all(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        create_dir_all(parent)?;
    }
    fs::create_dir_all(dir)?; // another process may have created it by now
    sync_names_beside(dir)
}
