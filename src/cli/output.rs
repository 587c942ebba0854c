//! Files and folders that a user names for what comes out: looked at before anything is computed for them,
//! and written whole or not at all.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, bail};

use crate::run::{CheckpointError, write_atomically};

/// Whether a file can be written at `path`, one that is there replaced.
///
/// # Errors
/// If it is a folder, or in none.
pub(super) fn check_file(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    if path.is_dir() || path.file_name().is_none() {
        bail!("cannot write `{shown}`: it is a folder\n  hint: name a file in it");
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        let folder = folder.display();
        bail!(
            "cannot write `{shown}`: there is no folder `{folder}`\n  hint: make it first, or name another"
        );
    }
    Ok(())
}

/// Whether `path` is a folder, or can become one.
///
/// # Errors
/// If something else is there.
pub(super) fn check_folder(path: &Path) -> anyhow::Result<()> {
    if path.exists() && !path.is_dir() {
        let shown = path.display();
        bail!("cannot write to `{shown}`: it is not a folder\n  hint: name a folder");
    }
    Ok(())
}

/// Writes a file whole or not at all, in place of one that is there.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = match fs::canonicalize(path) {
        // A pipe or a device is written to; a file, also behind a link, is replaced.
        Ok(target) if !target.is_file() => fs::write(target, text),
        Ok(target) => replace(&target, text),
        Err(_) => replace(path, text),
    };
    written.with_context(|| format!("cannot write `{}`", path.display()))
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    write_atomically(path, text.as_bytes()).map_err(|error| match error {
        CheckpointError::Write { source, .. } => source, // its hint is about runs
        other => io::Error::other(other),
    })
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
