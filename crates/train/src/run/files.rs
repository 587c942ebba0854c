//! Reads files of a run that may be missing.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::{RunError, cannot_read};

/// Reads a file; a missing one is empty.
pub(crate) fn read_or_empty(path: &Path) -> Result<Vec<u8>, RunError> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        result => result.map_err(cannot_read(path)),
    }
}
