//! A run on disk: its directory, its checkpoints, and the state from which it goes on.
//!
//! A checkpoint is written beside its final name, flushed, and renamed: a reader sees a whole one or
//! none, and a run that dies while it saves loses nothing that it had. This part knows how a run is
//! kept, and nothing of how it is trained.

mod files;
mod run_dir;
mod saved;
mod tensors;

use std::io;
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
        "`{0}` holds a run already; continue it with --resume, replace it with --overwrite, or choose another place with --run-dir"
    )]
    Exists(PathBuf),
    /// A directory that is not a run's is in the way.
    #[error(
        "`{0}` is not empty and not a run, so nothing is written there; choose another --run-dir"
    )]
    Foreign(PathBuf),
    /// There is nothing at the path.
    #[error("there is no run at `{path}`; {hint}")]
    NotFound {
        /// Where a run was looked for.
        path: PathBuf,
        /// What to try.
        hint: String,
    },
    /// The path is there, but no run.
    #[error(
        "`{0}` is not a run: name a run directory, its `best` or `last`, or one of its `checkpoints/step-N`"
    )]
    NotARun(PathBuf),
    /// The run has not saved anything yet.
    #[error(
        "the run `{0}` has no checkpoint yet; let it train until its first evaluation or checkpoint"
    )]
    NoCheckpoint(PathBuf),
    /// A file of the run cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the run cannot be written.
    #[error("cannot write `{path}`; is the disk full? What was saved before is still there")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error(
        "`{path}` is damaged or of another version: {reason}; use another checkpoint of the run"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The weights are not those of the run's model.
    #[error("the weights in `{path}` do not fit the run's config.toml")]
    Misfit {
        /// The file.
        path: PathBuf,
        /// The first parameter that does not fit.
        source: AssignError,
    },
    /// The run's own config cannot be used.
    #[error("cannot use the run's configuration")]
    Config(#[from] ConfigError),
    /// The run's own tokenizer cannot be used.
    #[error("cannot use the run's tokenizer")]
    Tokenizer(#[from] TokenizerError),
}
