//! The run directory: the name of every file in it, its logs, its checkpoints, and everything that reads them back.
//!
//! Nothing here trains or measures. Readers never change a run, and leave out what a crash truncated or an older
//! version did not write.

mod adapter;
mod before_and_after;
mod checkpoint;
mod create;
mod curves;
mod dependents;
mod info;
pub mod layout;
mod listing;
mod lock;
pub mod log;
mod log_file;
mod merge;
mod resume;
pub(crate) mod samples;
pub(crate) mod tensorboard;
mod trained;

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

pub use adapter::{AdapterOf, AdapterTensors, Adapters};
pub use before_and_after::{Answers, BeforeAndAfter};
pub use checkpoint::{Best, Checkpoint, Pending, TrainState};
pub use curves::{Curves, LogRow};
pub use info::{RunInfo, Status, config_table};
pub use layout::{Located, RunDir, locate, open_or_locate};
pub(crate) use listing::differences_of;
pub use listing::{Difference, Listing, Order, differences, list, sort};
pub use lock::Lock;
pub use log::{Process, head_metrics, processes, step_label};
pub use log_file::unix_s;
pub use merge::merge;
pub(crate) use resume::Resumable;
pub use samples::{Sample, samples};
pub use trained::{OpenError, Trained};

use crate::config::ConfigError;
use tinderbox_model::format::first_line;
use tinderbox_model::parameters::AssignError;
use tinderbox_model::tokenizer::TokenizerError;

/// The reason why a run directory cannot be used.
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
    #[error(
        "the run `{root}` is not replaced, since these are in its folders and no run wrote them:{}\n  hint: move them \
         elsewhere, or choose another place with --run-dir",
        listed(others.iter().map(|path| path.display()))
    )]
    Others { root: PathBuf, others: Vec<PathBuf> },
    #[error(
        "`{checkpoint}` is not removed, since the adapters of `{by}` need it\n  hint: choose another place with --run-dir, \
         or remove `{by}` once you do not need it; `tinderbox merge` makes a run of it that needs no base"
    )]
    Needed { checkpoint: PathBuf, by: PathBuf },
    #[error("another process is training in `{0}`\n  hint: wait for it, or choose another place with --run-dir")]
    Busy(PathBuf),
    #[error(
        "the directory of this run, `{0}`, was moved, removed or replaced while it trained, so it stopped; nothing is \
         written to what is there now\n  hint: if it was moved, continue it from its last checkpoint with --resume and \
         the new place as --run-dir"
    )]
    Gone(PathBuf),
    #[error(
        "`{0}` is a link, which may lead anywhere, so nothing is written through it\n  hint: put the file itself in its \
         place, or remove it"
    )]
    Link(PathBuf),
    #[error("`{0}` is a device or a pipe, and a run has files only\n  hint: remove it, or put the file in its place")]
    NotAFile(PathBuf),
    #[error("there is no run at `{path}`\n  hint: {hint}")]
    NotFound { path: PathBuf, hint: String },
    #[error(
        "`{0}` is not a run\n  hint: name a run directory, its `best` or `last`, or one of its `checkpoints/step-N`; \
         `tinderbox import` makes one of another model"
    )]
    NotARun(PathBuf),
    #[error(
        "`{path}` is a checkpoint of the run `{run}`, and a run is needed here\n  hint: name the run; `train --resume` goes \
         on from its last checkpoint, and `train --from` starts another run from any"
    )]
    IsCheckpoint { path: PathBuf, run: PathBuf },
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
        listed(skipped)
    )]
    NoRuns { folder: PathBuf, skipped: Vec<String> },
    #[error("cannot read `{path}`: {source}\n  hint: {}", read_hint(source))]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{path}`: {source}\n  hint: {}", write_hint(source, *has_checkpoint))]
    Write { path: PathBuf, source: io::Error, has_checkpoint: bool },
    #[error(
        "`{adapter}` has only an adapter, and its base `{base}` is not there\n  hint: put the base run back, or move both \
         runs together"
    )]
    NoBase { adapter: PathBuf, base: PathBuf },
    #[error(
        "`{adapter}` has an adapter for other weights: its base had the SHA-256 {expected}, and `{base}` has \
         {found}\n  hint: put the base run back as it was, or fine-tune the new one"
    )]
    OtherBase { adapter: PathBuf, base: PathBuf, expected: String, found: String },
    #[error("the run `{0}` has no adapter: all of its weights are its own\n  hint: name it in place of its base")]
    NoAdapter(PathBuf),
    /// `whole` is another, intact checkpoint of the run.
    #[error("`{path}` is damaged: {reason}\n  hint: {}", damaged_hint(whole.as_deref()))]
    Damaged { path: PathBuf, reason: String, whole: Option<PathBuf> },
    #[error(
        "`{path}` is damaged: {reason}\n  hint: write the name of one of the run's checkpoints into it, such as \
         step-000100; --resume continues from the last one in any case"
    )]
    Pointer { path: PathBuf, reason: String },
    #[error(
        "`{path}` is damaged: it is not the file that the run's checkpoints were made with\n  hint: put back a copy of \
         it; a new run with the same text and [tokenizer] makes the same file"
    )]
    OtherTokenizer { path: PathBuf },
    #[error(
        "`{path}` was written by a newer version of the program, in version {found} of its format; this program knows \
         {known}\n  hint: use the newer version of the program"
    )]
    Newer { path: PathBuf, found: u64, known: u32 },
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
    fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into(), whole: None }
    }

    /// The message without its hint.
    pub fn first_line(&self) -> String {
        first_line(self)
    }
}

fn cannot_read(path: &Path) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Read { path: path.to_owned(), source }
}

fn cannot_write(path: &Path) -> impl Fn(io::Error) -> RunError {
    move |source| {
        // Decided now: a message must not depend on what is on the disk when it is shown.
        let has_checkpoint = path.ancestors().skip(1).take(3).any(|dir| dir.join(layout::LAST).is_file());
        RunError::Write { path: path.to_owned(), source, has_checkpoint }
    }
}

/// Reads a file; a missing one is empty.
fn read_or_empty(path: &Path) -> Result<Vec<u8>, RunError> {
    match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        result => result.map_err(cannot_read(path)),
    }
}

fn listed(items: impl IntoIterator<Item = impl Display>) -> String {
    items.into_iter().fold(String::new(), |list, item| format!("{list}\n  - {item}"))
}

fn damaged_hint(whole: Option<&Path>) -> String {
    match whole {
        Some(whole) => format!(
            "`{}` is whole, and can be named in place of the run; --resume continues from the last intact one",
            whole.display()
        ),
        None => "no other checkpoint of the run is whole: put back a copy of this one, or start the run anew with \
                 --overwrite"
            .to_owned(),
    }
}

fn read_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound => "a part of the run is gone; use another of its `checkpoints/step-N`",
        ErrorKind::NotADirectory => "a run is kept in a folder; name one, or one that can be made",
        _ => "check that you may read it",
    }
}

fn write_hint(source: &io::Error, has_checkpoint: bool) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded if has_checkpoint => {
            "make room on the disk; earlier checkpoints are whole, and --resume continues from the last"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "make room on the disk, and start anew with --overwrite: no checkpoint was saved yet"
        }
        ErrorKind::NotFound
        | ErrorKind::NotADirectory
        | ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem => "choose a place that you may write to with --run-dir",
        _ if has_checkpoint => "earlier checkpoints are whole, and --resume continues from the last",
        _ => "no checkpoint was saved yet: start anew with --overwrite",
    }
}
