//! Names of files and directories that are on the disk, and so survive a crash of the system, once a call returns.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::file::folder_of;

/// Renames within a directory and waits until the new name is on the disk.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_names_beside(to)
}

/// Waits until the name of a file or a directory is on the disk.
pub fn sync_names_beside(path: &Path) -> io::Result<()> {
    sync_dir(folder_of(path))
}

/// Waits until the names in a directory are on the disk.
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
