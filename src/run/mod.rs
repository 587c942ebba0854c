//! The run directory: the name of every file in it, its logs, its checkpoints, and everything that reads them back.
//!
//! Nothing here trains or measures. Readers never change a run, and leave out what a crash cut short or an older
//! version did not write.

#![allow(clippy::missing_errors_doc, reason = "every error is a `RunError`, whose messages say when it happens")]

mod checkpoint;
mod curves;
pub(crate) mod files;
mod info;
pub(crate) mod layout;
mod listing;
pub(crate) mod log;
pub(crate) mod samples;
pub(crate) mod tensorboard;
pub(crate) mod tensors;
mod trained;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

pub use checkpoint::{Best, Checkpoint, LeftUndone, TrainState};
pub use curves::{Curves, Row};
pub use files::write_atomically;
pub use info::{RunInfo, Status, config_table};
pub use layout::{Located, RunDir, locate, open_or_locate};
pub use listing::{Difference, Listing, Order, differences, list, sort};
pub use log::{Process, head_metrics, processes, step_label, unix_s};
pub use samples::{Sample, samples};
pub use trained::{OpenError, Trained};

use crate::config::ConfigError;
use crate::model::parameters::AssignError;
use crate::tokenizer::TokenizerError;

/// Why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum RunError {
    #[error(
        "`{0}` holds a run already\n  hint: continue it with --resume, replace it with --overwrite, \
         or choose another place with --run-dir"
    )]
    Exists(PathBuf),
    #[error(
        "`{0}` is not empty and not a run, so nothing is written there\n  hint: choose another place with --run-dir"
    )]
    NotEmpty(PathBuf),
    #[error("another process is training in `{0}`\n  hint: wait for it, or choose another place with --run-dir")]
    Busy(PathBuf),
    #[error("there is no run at `{path}`\n  hint: {hint}")]
    NotFound { path: PathBuf, hint: String },
    #[error(
        "`{0}` is not a run\n  hint: name a run directory, its `best` or `last`, or one of its `checkpoints/step-N`"
    )]
    NotARun(PathBuf),
    #[error(
        "the run `{0}` has no checkpoint yet\n  hint: its first evaluation or checkpoint_interval saves \
         one; start a run that ended before that anew with --overwrite"
    )]
    NoCheckpoint(PathBuf),
    #[error(
        "there is no folder `{0}`\n  hint: train a run with `tinderbox train CONFIG`, or name the folder that \
         holds yours"
    )]
    NoFolder(PathBuf),
    #[error(
        "there are no runs in `{folder}`{}\n  hint: train one with `tinderbox train CONFIG`, or name the folder that \
         holds yours",
        skipped.iter().fold(String::new(), |list, line| list + "\n  - " + line)
    )]
    NoRuns { folder: PathBuf, skipped: Vec<String> },
    #[error("cannot read `{path}`: {source}\n  hint: {}", read_hint(source))]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{path}`: {source}\n  hint: {}", write_hint(source))]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "`{path}` is damaged or of another version: {reason}\n  hint: use another of the run's \
         `checkpoints/step-N`; to resume from it, write its name into the file `last`"
    )]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "the weights in `{path}` do not fit the run's config.toml: {source}\n  hint: restore the config.toml \
         that the run began with"
    )]
    Misfit { path: PathBuf, source: AssignError },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl RunError {
    /// The message without its hint.
    pub(crate) fn first_line(&self) -> String {
        self.to_string().lines().next().unwrap_or_default().to_owned()
    }
}

fn cannot_read(path: &Path) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Read { path: path.to_owned(), source }
}

fn cannot_write(path: &Path) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Write { path: path.to_owned(), source }
}

fn read_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound => "a part of the run is gone; use another of its `checkpoints/step-N`",
        ErrorKind::NotADirectory => "a run is kept in a folder; name one, or one that can be made",
        _ => "check that you may read it",
    }
}

fn write_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "make room on the disk; earlier checkpoints are whole, and --resume continues from the last"
        }
        ErrorKind::NotFound
        | ErrorKind::NotADirectory
        | ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem => "choose a place that you may write to with --run-dir",
        _ => "earlier checkpoints are whole, and --resume continues from the last",
    }
}
