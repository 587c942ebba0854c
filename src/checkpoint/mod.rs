//! A run on disk: its directory, its checkpoints, and the state from which it goes on.
//!
//! A checkpoint is written beside its final name, flushed, and renamed: a reader sees a whole one or
//! none, and a run that dies while it saves loses nothing that it had. This part knows how a run is
//! kept, and nothing of how it is trained.

mod files;
mod run_dir;
mod saved;
mod tensors;

use std::io::{self, ErrorKind};
use std::path::PathBuf;

pub use files::write_atomically;
pub use run_dir::{Located, RunDir, locate};
pub use saved::{Best, Saved, TrainState};

use crate::config::ConfigError;
use crate::model::parameters::AssignError;
use crate::tokenizer::TokenizerError;

/// What can go wrong between a run and its directory.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A new run would fall on an old one.
    #[error(
        "`{0}` holds a run already\n  hint: continue it with --resume, replace it with --overwrite, \
         or choose another place with --run-dir"
    )]
    Exists(PathBuf),
    /// A directory that is not a run's is in the way.
    #[error(
        "`{0}` is not empty and not a run, so nothing is written there\n  hint: choose another place \
         with --run-dir"
    )]
    Foreign(PathBuf),
    /// Another process writes to the run.
    #[error(
        "another process is training in `{0}`\n  hint: wait for it, or choose another place with --run-dir"
    )]
    Busy(PathBuf),
    /// There is nothing at the path.
    #[error("there is no run at `{path}`\n  hint: {hint}")]
    NotFound {
        /// Where a run was looked for.
        path: PathBuf,
        /// What to try.
        hint: String,
    },
    /// The path is there, but no run.
    #[error(
        "`{0}` is not a run\n  hint: name a run directory, its `best` or `last`, or one of its \
         `checkpoints/step-N`"
    )]
    NotARun(PathBuf),
    /// The run has not saved anything yet.
    #[error(
        "the run `{0}` has no checkpoint yet\n  hint: its first evaluation or checkpoint_interval saves \
         one; a run that ended before begins anew with --overwrite"
    )]
    NoCheckpoint(PathBuf),
    /// A file of the run cannot be read.
    #[error("cannot read `{path}`: {source}\n  hint: {}", read_hint(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the run cannot be written.
    #[error("cannot write `{path}`: {source}\n  hint: {}", write_hint(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error(
        "`{path}` is damaged or of another version: {reason}\n  hint: use another of the run's \
         `checkpoints/step-N`; to resume from it, write its name into the file `last`"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The weights are not those of the run's model.
    #[error(
        "the weights in `{path}` do not fit the run's config.toml: {source}\n  hint: put the config.toml \
         back that the run began with"
    )]
    Misfit {
        /// The file.
        path: PathBuf,
        /// The first parameter that does not fit.
        source: AssignError,
    },
    /// The run's own config cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The run's own tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

fn read_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound => "a part of the run is gone; use another of its `checkpoints/step-N`",
        ErrorKind::NotADirectory => "a run is kept in a folder; name one, or one that can be made",
        _ => "check that you may read it",
    }
}

/// What helps where a file of a run could not be written.
pub(crate) fn write_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "make room on the disk; checkpoints from before are whole, and --resume goes on from the last"
        }
        ErrorKind::NotFound
        | ErrorKind::NotADirectory
        | ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem => "choose a place that you may write to with --run-dir",
        _ => "checkpoints from before are whole, and --resume goes on from the last",
    }
}
