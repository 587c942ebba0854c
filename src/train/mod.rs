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

use std::fs::File;
use std::path::{Path, PathBuf};
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
use crate::tokenizer::Tokenizer;
use logs::Logs;
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
pub struct Job {
    /// What the run is.
    pub config: Config,
    /// Where it is kept.
    pub run_dir: PathBuf,
    /// What to do with a run that is already there.
    pub start: Start,
    /// Where it is computed.
    pub device: OpenDevice,
}

/// Trains as `job` says, until it is done or `interrupter` is told to stop; then it saves, and returns
/// what came of it.
///
/// # Errors
/// If the text, the run directory or the config cannot be used, if the loss is not finite, or if something
/// cannot be written. Checkpoints that were saved before stay.
pub fn train(
    job: Job,
    observer: Box<dyn Observer>,
    interrupter: &Interrupter,
) -> Result<Summary, TrainError> {
    let began = Instant::now();
    let Job {
        config,
        run_dir,
        start,
        device,
    } = job;
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
    lock: File,
}

fn create(
    config: Config,
    root: &Path,
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
    let lock = RunDir::lock(root)?;
    let run = RunDir::create(root, overwrite, &config, &corpus.tokenizer)?;
    let state = TrainState {
        text_sha256: corpus.text_sha256.clone(),
        ..TrainState::default()
    };
    Ok(Prepared {
        config,
        corpus,
        run,
        trainer,
        state,
        resumed: false,
        lock,
    })
}

fn resume(config: Config, run: RunDir, device: &Device) -> Result<Prepared, TrainError> {
    let lock = RunDir::lock(run.root())?;
    let refuse = |differences: Vec<String>| match differences.is_empty() {
        true => Ok(()),
        false => Err(TrainError::OtherRun {
            run: run.root().to_owned(),
            differences,
        }),
    };
    refuse(differences(&run.config()?, &config))?;
    let dir = run.last()?;
    let saved = Saved::read(&dir)?;
    let mut state = saved.state.clone();
    if state.step >= config.train.max_steps && Logs::says_end(&run, state.step) {
        return Err(TrainError::AlreadyDone {
            step: state.step,
            run: run.root().to_owned(),
        });
    }
    let tokenizer = run.tokenizer()?;
    refuse(other_tokenizer(&config, &tokenizer))?;
    let corpus = Corpus::open_with(&config.data, tokenizer, config.model.context_length)?;
    if corpus.text_sha256 != state.text_sha256 {
        let path = config.data.path.display();
        refuse(vec![format!("the text `{path}` is another than it was")])?;
    }
    check_sample_prompt(&config, &corpus)?;
    let device = device.clone().autodiff();
    let model = Gpt::zeros(&config.model, corpus.tokenizer.vocab_size(), &device);
    let mut trainer = Trainer::new(model, &config, corpus.train.clone());
    trainer.restore(saved, &dir)?;
    run.forget_after(state.step)?;
    if state
        .best
        .is_some_and(|best| !run.checkpoint(best.step).is_dir())
    {
        state.best = None; // it was no longer kept when a later one was better, which is gone now
        state.evaluations_without_improvement = 0;
    }
    run.write_config(&config)?;
    Ok(Prepared {
        config,
        corpus,
        run,
        trainer,
        state,
        resumed: true,
        lock,
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

/// What a checkpoint was made with and cannot change when its run goes on, or it would be no continuation.
fn differences(old: &Config, new: &Config) -> Vec<String> {
    let table = |config: &Config| toml::Table::try_from(config).expect("plain data");
    let (old, new) = (table(old), table(new));
    let whole_sections = ["tokenizer", "model"].into_iter().flat_map(|section| {
        let keys = new[section]
            .as_table()
            .into_iter()
            .flat_map(toml::Table::keys);
        keys.map(move |key| (section, key.as_str()))
    });
    let keys = [
        ("data", "val_fraction"),
        ("train", "seed"),
        ("train", "batch_size"),
        ("train", "grad_accumulation_steps"),
    ];
    let fixed = whole_sections
        .filter(|key| !matches!(key, ("model", "dropout") | ("tokenizer", "path")))
        .chain(keys);
    fixed
        .filter(|(section, key)| old[*section].get(*key) != new[*section].get(*key))
        .map(|(section, key)| {
            let before = old[section]
                .get(key)
                .map_or_else(|| "not given".to_owned(), ToString::to_string);
            format!(
                "{section}.{key} was {before} and is now {}",
                new[section][key]
            )
        })
        .collect()
}

/// The run's own copy of a tokenizer's file is what it goes on with: the file may be elsewhere by now, or gone,
/// but where it is, it should be the same.
fn other_tokenizer(config: &Config, own: &Tokenizer) -> Vec<String> {
    let path = config.tokenizer.path.as_ref();
    let is_other = |path: &&PathBuf| Tokenizer::from_file(path).is_ok_and(|found| found != *own);
    let other = path.filter(is_other);
    other
        .map(|path| format!("the tokenizer `{}` is another than it was", path.display()))
        .into_iter()
        .collect()
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> Self {
        Self::Run(Box::new(error))
    }
}
