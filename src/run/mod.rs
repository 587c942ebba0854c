//! A run on disk: its directory, its checkpoints, its logs, and what they say afterwards.
//!
//! A checkpoint is written beside its final name, flushed, and renamed: a reader sees a whole one or none, and a run
//! that dies while it saves loses nothing that it had. Reading never changes a run: what a crash cut short, or an
//! older version did not write yet, is left out.

mod checkpoint;
mod compare;
mod curves;
mod facts;
mod files;
mod head_log;
mod layout;
mod listing;
mod log;
mod processes;
pub(crate) mod samples;
pub(crate) mod tensorboard;
mod tensors;
mod trained;

use std::io::{self, ErrorKind};
use std::path::PathBuf;

pub use checkpoint::{Best, Saved, TrainState};
pub use compare::{Difference, differences};
pub use curves::{Curves, Row};
pub use facts::{Facts, Status, settings};
pub use files::write_atomically;
pub use head_log::head_log;
pub use layout::{Located, RunDir, locate};
pub use listing::{Listing, Order, list, sort};
pub use log::unix_s;
pub use processes::{Process, processes};
pub use samples::{Sample, samples};
pub use trained::{OpenError, Trained};

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

/// Why runs cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// The folder of runs is not there.
    #[error(
        "there is no folder `{0}`\n  hint: train a run with `tinderbox train CONFIG`, or name the folder that \
         holds yours"
    )]
    NoFolder(PathBuf),
    /// There is not one run in the folder.
    #[error(
        "there are no runs in `{folder}`{}\n  hint: train one with `tinderbox train CONFIG`, or name the folder that \
         holds yours",
        skipped.iter().fold(String::new(), |list, line| list + "\n  - " + line)
    )]
    NoRuns {
        /// The folder.
        folder: PathBuf,
        /// What is in it instead, one line each.
        skipped: Vec<String>,
    },
    /// A folder or a file of a run cannot be read.
    #[error(
        "cannot read `{path}`: {source}\n  hint: check that it is a folder of runs, and that you may read it"
    )]
    Read {
        /// The folder or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The `config.toml` of a run is not TOML.
    #[error(
        "`{path}` is damaged: {reason}\n  hint: put the config.toml back that the run began with"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no run where one was named.
    #[error(transparent)]
    Run(#[from] CheckpointError),
}
