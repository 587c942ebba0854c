//! Reads files of a run, with the errors of a run.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::{RunError, cannot_read};

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
