//! Whoever waits while texts are read: they are told how far it is, and may put an end to it.

use std::ops::ControlFlow;
use std::path::Path;

use super::DataError;

/// How far a text has been read for one of the purposes that it is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading<'a> {
    /// The text, as it was named.
    pub path: &'a Path,
    /// What it is read for.
    pub purpose: Purpose,
    /// Bytes of text read so far.
    pub bytes: u64,
    /// Bytes of text in all, where that is known.
    pub of: Option<u64>,
}

/// What a text is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To know what it is.
    Scan,
    /// To count the words that merges are learned from.
    CountWords,
    /// To find the merges, after which nothing is asked until they are found.
    FindMerges,
    /// To write its tokens.
    Encode,
}

/// Is told again and again how far a text has been read; on a break, nothing more is read, and nothing
/// is left of what was begun.
pub type OnProgress<'a> = &'a (dyn Fn(&Reading<'_>) -> ControlFlow<()> + Sync);

/// Lets everything go on.
pub(super) fn ignore(_: &Reading<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Reports progress.
///
/// # Errors
/// If it puts an end to it.
pub(super) fn tell(on_progress: OnProgress<'_>, reading: &Reading<'_>) -> Result<(), DataError> {
    match on_progress(reading) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(DataError::Stopped),
    }
}
