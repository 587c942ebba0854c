//! The runs in a folder.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::RunDir;
use super::{Facts, RunsError};

/// What is in a folder of runs.
#[derive(Clone, Debug)]
pub struct Listing {
    /// What is known of each run.
    pub runs: Vec<Facts>,
    /// Which other folders in it are no runs, or cannot be read; one line each.
    pub skipped: Vec<String>,
}

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The lowest validation loss in bits per byte; runs without one come last.
    Loss,
    /// The run that began last; runs of which nobody knows come last.
    Time,
}

/// Reads the runs in `folder`, by name.
///
/// # Errors
/// If the folder cannot be read, or has no runs.
pub fn list(folder: &Path) -> Result<Listing, RunsError> {
    let failed = |source: std::io::Error| match source.kind() {
        ErrorKind::NotFound => RunsError::NoFolder(folder.to_owned()),
        _ => RunsError::Read { path: folder.to_owned(), source },
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !is_hidden && entry.path().is_dir() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let (mut runs, mut skipped) = (Vec::new(), Vec::new());
    for path in paths {
        match RunDir::open(&path).map_err(RunsError::from).and_then(|run| Facts::read(&run)) {
            Ok(facts) => runs.push(facts),
            Err(error) => {
                let error = error.to_string();
                let first_line = error.lines().next().unwrap_or_default();
                skipped.push(first_line.to_owned());
            }
        }
    }
    if runs.is_empty() {
        let folder = folder.to_owned();
        return Err(RunsError::NoRuns { folder, skipped });
    }
    Ok(Listing { runs, skipped })
}

/// Brings runs into an order; those that are alike in it are ordered by name.
pub fn sort(runs: &mut [Facts], order: Order) {
    let key = |facts: &Facts| match order {
        Order::Loss => [facts.val_bits_per_byte, facts.val_loss],
        Order::Time => [facts.began_unix_s.map(|began| -began), None],
    };
    let key = |facts: &Facts| key(facts).map(|number| number.unwrap_or(f64::INFINITY));
    runs.sort_by(|a, b| {
        let ([a1, a2], [b1, b2]) = (key(a), key(b));
        let by_numbers = a1.total_cmp(&b1).then(a2.total_cmp(&b2));
        by_numbers.then_with(|| a.run.cmp(&b.run))
    });
}
