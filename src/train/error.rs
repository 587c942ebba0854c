//! What can end a training run.

use std::io;
use std::path::PathBuf;

use super::PrecisionError;
use crate::data::DataError;
use crate::generate::GenerateError;
use crate::inspect::InspectError;
use crate::optimizer::StateError;
use crate::run::{CheckpointError, write_hint};
use crate::tokenizer::{TokenizerError, described_characters};

/// Why a run could not start, or did not end.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The text cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The run's directory cannot be used.
    #[error(transparent)]
    Run(Box<CheckpointError>),
    /// The device multiplies in another precision.
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    /// The samples' prompt has characters that the text does not have.
    #[error("cannot use train.sample_prompt: {0}")]
    SamplePrompt(#[source] TokenizerError),
    /// A new run would fall on the one that it starts from.
    #[error(
        "the new run would take the place of the one that it starts from, `{0}`\n  hint: choose another place \
         with --run-dir; to go on with the run itself, use --resume"
    )]
    OntoItself(PathBuf),
    /// The text has characters that the weights know no token for.
    #[error(
        "the text `{}` cannot be read by the tokenizer of `{}`, which does not know {}\n  hint: leave out or \
         replace these, or start from a run with kind = \"byte\" under [tokenizer], which knows every \
         character", text.display(), from.display(), described_characters(characters)
    )]
    UnknownCharacters {
        /// The file or folder.
        text: PathBuf,
        /// The run that the tokenizer belongs to.
        from: PathBuf,
        /// The distinct characters, in code point order.
        characters: Vec<char>,
    },
    /// A sample could not be written.
    #[error("cannot write a sample: {0}")]
    Sample(#[from] GenerateError),
    /// The config is not that of the run that should go on.
    #[error(
        "`{run}` cannot go on with other settings than it began with:\n  - {}\n  hint: use those that \
         it began with, or start a new run with --run-dir",
        differences.join("\n  - ")
    )]
    OtherRun {
        /// The run.
        run: PathBuf,
        /// The keys with their values then and now.
        differences: Vec<String>,
    },
    /// There is nothing left to do.
    #[error(
        "`{run}` is done: it made all of its {step} steps\n  hint: for more of them, raise \
         train.max_steps with --set"
    )]
    AlreadyDone {
        /// The run.
        run: PathBuf,
        /// Updates made.
        step: usize,
    },
    /// The run has gone further than it is to go.
    #[error(
        "`{run}` has made {step} steps already, and train.max_steps = {max_steps} asks for fewer\n  hint: set \
         train.max_steps to {step} to end it where it is, or to more"
    )]
    PastEnd {
        /// The run.
        run: PathBuf,
        /// Updates made.
        step: usize,
        /// Updates in all.
        max_steps: usize,
    },
    /// Nothing got better for as long as the config allows.
    #[error(
        "`{run}` is done: it stopped early after step {step}, {evaluations} evaluations without a better one\n  \
         hint: for more of them, raise train.early_stopping_patience with --set, or set it to 0"
    )]
    AlreadyStopped {
        /// The run.
        run: PathBuf,
        /// Updates made.
        step: usize,
        /// Evaluations since the best one.
        evaluations: usize,
    },
    /// The loss, or the gradient, is NaN or infinite.
    #[error(
        "the {what} of step {step} is {value}, so the run stopped; {kept}\n  hint: lower \
         {learning_rates}, or lengthen schedule.warmup_steps"
    )]
    NotFinite {
        /// The step, counted from 1 as the log does.
        step: usize,
        /// Which number it is.
        what: &'static str,
        /// The number.
        value: f64,
        /// The keys that say how far a step goes.
        learning_rates: &'static str,
        /// What is still there.
        kept: String,
    },
    /// The device failed.
    #[error(
        "the device failed at step {step}: {message}; {kept}\n  hint: go on with --resume, on the CPU \
         with --resume --device cpu"
    )]
    Device {
        /// Updates begun so far.
        step: usize,
        /// What it said.
        message: String,
        /// What is still there.
        kept: String,
    },
    /// Someone asked to stop while the text was read, before there was anything to save.
    #[error("interrupted before the first step: no run was made or changed")]
    InterruptedEarly,
    /// What the heads do cannot be measured.
    #[error("cannot measure what the heads do at step {step}; {kept}")]
    Heads {
        /// Updates made.
        step: usize,
        /// Why.
        source: Box<InspectError>,
        /// What is still there.
        kept: String,
    },
    /// A log of the run cannot be written.
    #[error("cannot write `{path}`: {source}\n  hint: {}", write_hint(source))]
    Log {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The optimiser's part of a checkpoint does not fit.
    #[error(
        "the optimizer.safetensors of `{path}` does not fit the run: {source}\n  hint: {}",
        state_hint(source)
    )]
    OptimizerState {
        /// The checkpoint.
        path: PathBuf,
        /// What does not fit.
        source: StateError,
    },
    /// burn-train reported a failure of its own.
    #[error("the training loop failed: {0}")]
    Loop(String),
}

fn state_hint(source: &StateError) -> &'static str {
    match source {
        StateError::Misfit(_) | StateError::Unreadable { .. } => {
            "write the name of another of the run's `checkpoints/step-N` into the file `last`"
        }
        StateError::OtherKind { .. } => {
            "put the config.toml back that the run began with, or start a new run with --run-dir"
        }
    }
}
