//! Training: from a config to weights on the disk.
//!
//! [`train`] is the whole of it. `trainer` is one step, readable top to bottom; `session` is the rhythm
//! around it: logs, evaluations, samples, checkpoints; `strategy` puts that into burn-train, whose "epoch"
//! is our evaluation interval. Nothing here prints: what happens is told to an [`Observer`].

mod error;
pub mod evaluate;
mod logs;
mod measure;
mod observer;
mod session;
mod strategy;
mod trainer;

use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::Device;
pub use burn::train::Interrupter;

pub use error::TrainError;
pub use observer::{Evaluation, Event, Logged, Observer, Started, Summary};
pub use trainer::{StepResult, Trainer};

use crate::checkpoint::{CheckpointError, RunDir, Saved, TrainState};
use crate::config::Config;
use crate::data::Corpus;
use crate::device::OpenDevice;
use crate::model::Gpt;
use session::Session;

/// What to do with what is already in the run directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// There is nothing: a run that is there is an error.
    New,
    /// Replace a run that is there.
    Overwrite,
    /// Go on from its last checkpoint.
    Resume,
}

/// A run that is to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the run is.
    pub config: Config,
    /// Where it is kept.
    pub run_dir: PathBuf,
    /// What to do with a run that is already there.
    pub start: Start,
    /// Where it is computed.
    pub device: OpenDevice,
}

/// Trains as `plan` says, until it is done or `interrupter` is told to stop; then it saves, and returns
/// what came of it.
///
/// # Errors
/// If the text, the run directory or the plan cannot be used, if the loss is not finite, or if something
/// cannot be written. Checkpoints that were saved before stay.
pub fn train(
    plan: Plan,
    observer: Box<dyn Observer>,
    interrupter: &Interrupter,
) -> Result<Summary, TrainError> {
    let began = Instant::now();
    let Plan {
        config,
        run_dir,
        start,
        device,
    } = plan;
    let prepared = match start {
        Start::Resume => resume(config, RunDir::open(&run_dir)?, &device.device)?,
        Start::New | Start::Overwrite => {
            create(config, &run_dir, start == Start::Overwrite, &device.device)?
        }
    };
    let session = Session::new(prepared, &device, observer, interrupter.clone(), began)?;
    strategy::run(session, interrupter)
}

/// A run that is ready for its next step.
struct Prepared {
    config: Config,
    corpus: Corpus,
    run: RunDir,
    trainer: Trainer,
    state: TrainState,
    resumed: bool,
}

fn create(
    config: Config,
    root: &std::path::Path,
    overwrite: bool,
    device: &Device,
) -> Result<Prepared, TrainError> {
    RunDir::check_new(root, overwrite)?; // before minutes go into reading a large text
    let corpus = Corpus::open(&config.data, &config.tokenizer, config.model.context_length)?;
    check_sample_prompt(&config, &corpus)?;
    let vocab_size = corpus.tokenizer.vocab_size();
    let device = device.clone().autodiff();
    let model = Gpt::new(&config.model, vocab_size, config.train.seed, &device);
    let trainer = Trainer::new(model, &config, corpus.train.clone());
    let run = RunDir::create(root, overwrite, &config, &corpus.tokenizer)?;
    Ok(Prepared {
        config,
        corpus,
        run,
        trainer,
        state: TrainState::default(),
        resumed: false,
    })
}

fn resume(config: Config, run: RunDir, device: &Device) -> Result<Prepared, TrainError> {
    let differences = differences(&run.config()?, &config);
    if !differences.is_empty() {
        return Err(TrainError::OtherRun {
            run: run.root().to_owned(),
            differences,
        });
    }
    let tokenizer = run.tokenizer()?;
    let dir = run.last()?;
    let saved = Saved::read(&dir)?;
    let state = saved.state.clone();
    if state.step >= config.train.max_steps {
        return Err(TrainError::AlreadyDone {
            step: state.step,
            run: run.root().to_owned(),
        });
    }
    let corpus = Corpus::open_with(&config.data, tokenizer, config.model.context_length)?;
    check_sample_prompt(&config, &corpus)?;
    let device = device.clone().autodiff();
    let model = Gpt::zeros(&config.model, corpus.tokenizer.vocab_size(), &device);
    let mut trainer = Trainer::new(model, &config, corpus.train.clone());
    trainer.restore(saved, &dir)?;
    run.forget_after(state.step)?;
    run.write_config(&config)?;
    Ok(Prepared {
        config,
        corpus,
        run,
        trainer,
        state,
        resumed: true,
    })
}

/// A prompt for samples that cannot be read should not come up after the first hundred steps.
fn check_sample_prompt(config: &Config, corpus: &Corpus) -> Result<(), TrainError> {
    if config.train.sample_tokens > 0 {
        corpus
            .tokenizer
            .encode(&config.train.sample_prompt)
            .map_err(TrainError::SamplePrompt)?;
    }
    Ok(())
}

/// What decides the weights that a checkpoint holds, and so cannot change when its run goes on.
fn differences(old: &Config, new: &Config) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |key: &str, old: String, new: String| {
        if old != new {
            found.push(format!("{key} was {old} and is now {new}"));
        }
    };
    compare(
        "data.val_fraction",
        old.data.val_fraction.to_string(),
        new.data.val_fraction.to_string(),
    );
    compare(
        "tokenizer.kind",
        format!("{:?}", old.tokenizer.kind),
        format!("{:?}", new.tokenizer.kind),
    );
    compare(
        "train.seed",
        old.train.seed.to_string(),
        new.train.seed.to_string(),
    );
    let model = |config: &Config| toml::Table::try_from(&config.model).unwrap_or_default();
    let (old_model, new_model) = (model(old), model(new));
    for (key, value) in &new_model {
        let before = old_model
            .get(key)
            .map(ToString::to_string)
            .unwrap_or_default();
        if key != "dropout" {
            compare(&format!("model.{key}"), before, value.to_string());
        }
    }
    found
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> Self {
        Self::Run(Box::new(error))
    }
}
