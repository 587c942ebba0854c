//! The errors that can end a training run early.

use std::path::PathBuf;

use super::{NormsByLayer, PrecisionError};
use crate::config::ConfigError;
use crate::data::DataError;
use crate::distributed::DistributedError;
use crate::optimizer::StateError;
use crate::run::RunError;
use tinderbox_inspect::InspectError;
use tinderbox_model::format::shell_word;
use tinderbox_model::generate::GenerateError;
use tinderbox_model::tokenizer::{TokenizerError, described_characters};

/// The reason why a run could not start or did not finish.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum TrainError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Run(Box<RunError>),
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    #[error(transparent)]
    Distributed(#[from] DistributedError),
    #[error("cannot use train.sample_prompt: {0}")]
    SamplePrompt(#[source] TokenizerError),
    #[error(
        "cannot use train.sample_prompt: the tokenizer makes no token of {0:?}\n  hint: choose a text with a word, or \
         train.sample_tokens=0"
    )]
    EmptySamplePrompt(String),
    #[error(
        "the new run would replace the run that it starts from, `{0}`\n  hint: choose another place \
         with --run-dir; to continue the run itself, use --resume"
    )]
    StartsFromItself(PathBuf),
    #[error(
        "the model of `{0}` was imported, so there is no training to resume\n  hint: start a run from its weights \
         with `tinderbox train CONFIG --from {0}` and another --run-dir"
    )]
    Imported(PathBuf),
    #[error(
        "the text `{}` cannot be read by the tokenizer of `{}`, which does not know {}\n  hint: leave out or replace \
         these, or start from a run with kind = \"byte\" under [tokenizer], which knows every character",
        text.display(), from.display(), described_characters(characters)
    )]
    UnknownCharacters { text: PathBuf, from: PathBuf, characters: Vec<char> },
    #[error("cannot generate a sample: {0}")]
    Sample(#[from] GenerateError),
    #[error(
        "`{run}` cannot resume with other settings than it began with:\n  - {}\n  hint: use those that \
         it began with, or start a new run with --run-dir",
        differences.join("\n  - ")
    )]
    OtherRun { run: PathBuf, differences: Vec<String> },
    #[error(
        "`{run}` is done: it made all of its {step} steps\n  hint: for more of them, raise train.max_steps with --set; \
         `tinderbox report {}` makes its report again",
        shell_word(run)
    )]
    AlreadyDone { run: PathBuf, step: usize },
    #[error(
        "`{run}` has made {step} steps already, and train.max_steps = {max_steps} asks for fewer\n  hint: set \
         train.max_steps to {step} to end it where it is, or to more"
    )]
    PastEnd { run: PathBuf, step: usize, max_steps: usize },
    #[error(
        "`{run}` is done: it stopped early after step {step}, with no improvement in {evaluations} evaluations\n  \
         hint: for more of them, raise train.early_stopping_patience with --set, or set it to 0; \
         `tinderbox report {}` makes its report again",
        shell_word(run)
    )]
    AlreadyStopped { run: PathBuf, step: usize, evaluations: usize },
    /// `step` counts from 1, as in the log.
    #[error(
        "the {what} of step {step} is {value}, so the run stopped; {kept}{norms}\n  hint: lower \
         {learning_rates}, or lengthen schedule.warmup_steps; train.skip_non_finite = true skips such steps"
    )]
    NotFinite {
        step: usize,
        what: &'static str,
        value: f64,
        learning_rates: &'static str,
        kept: String,
        norms: Box<NormsByLayer>,
    },
    #[error(
        "the device failed at step {step}: {message}; {kept}\n  hint: continue with --resume, on the CPU \
         with --resume --device cpu"
    )]
    Device { step: usize, message: String, kept: String },
    /// A stop was requested while the text was being read.
    #[error("interrupted before the first step: no run was made or changed")]
    InterruptedEarly,
    #[error("cannot measure the heads at step {step}; {kept}")]
    Heads { step: usize, source: Box<InspectError>, kept: String },
    #[error("the optimizer.safetensors of `{path}` does not fit the run: {source}\n  hint: {}", state_hint(source))]
    OptimizerState { path: PathBuf, source: StateError },
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

impl From<RunError> for TrainError {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}

impl From<ConfigError> for TrainError {
    fn from(error: ConfigError) -> Self {
        RunError::from(error).into()
    }
}
