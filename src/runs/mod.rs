//! Runs on disk, looked at: the curves of one, what is known of each, and what sets several apart.
//!
//! Nothing here changes a run, and one in progress is looked at like any other. What a crash cut short,
//! or an older version did not write yet, is left out; what a newer version writes otherwise is said in
//! notes. How a run gets its files is for [`crate::train`] to know.

mod compare;
mod curves;
mod facts;
mod head_log;
mod jsonl;
mod listing;
mod processes;
mod samples;

use std::io;
use std::path::PathBuf;

pub use compare::{Difference, differences};
pub use curves::{Curves, Row};
pub use facts::{Facts, Status, settings};
pub use head_log::head_log;
pub use listing::{Listing, Order, list, sort};
pub use processes::{Process, processes};
pub use samples::{Sample, samples};

use crate::checkpoint::CheckpointError;

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
