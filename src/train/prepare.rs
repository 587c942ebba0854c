//! From what a run should be to one that is ready for its next step: made new, made from another run's
//! weights, or read back.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;

use super::logs::Logs;
use super::{Event, Interrupter, Job, Observer, Start, TrainError, Trainer, precision};
use crate::config::{Config, ConfigError, DataConfig};
use crate::data::{self, Corpus, DataError, OnProgress, OpenOptions, Reading};
use crate::model::Gpt;
use crate::run::{self, Located, RunDir, Saved, TrainState};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// A run that is ready for its next step.
pub(super) struct Prepared {
    pub config: Config,
    pub corpus: Corpus,
    pub run: RunDir,
    pub trainer: Trainer,
    pub state: TrainState,
    /// Whether the run goes on from a checkpoint of its own.
    pub resumed: bool,
    pub lock: File,
}

/// Does all that lies before the next step.
pub(super) fn prepare(
    job: Job,
    observer: &mut dyn Observer,
    interrupter: &Interrupter,
) -> Result<Prepared, TrainError> {
    let observer = Mutex::new(observer);
    let watch = |reading: &Reading<'_>| {
        let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
        observer.observe(&Event::Reading(reading));
        match interrupter.should_stop() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let prepared = prepare_watched(job, &watch);
    prepared.map_err(|error| match error {
        TrainError::Data(DataError::Stopped) => TrainError::InterruptedEarly,
        other => other,
    })
}

fn prepare_watched(job: Job, watch: OnProgress<'_>) -> Result<Prepared, TrainError> {
    let Job { config, run_dir, start, from, device } = job;
    precision::check(config.train.matmul_precision, &device)?;
    let device = &device.device;
    let overwrite = match start {
        Start::Resume => return resume(config, RunDir::open(&run_dir)?, device, watch),
        Start::New => false,
        Start::Overwrite => true,
    };
    match from {
        None => create(config, &run_dir, overwrite, None, device, watch),
        Some(from) => {
            let weights = Weights::find(&from, &config, &run_dir)?;
            create(config, &run_dir, overwrite, Some(&weights), device, watch)
        }
    }
}

fn create(
    config: Config,
    root: &Path,
    overwrite: bool,
    weights: Option<&Weights>,
    device: &Device,
    watch: OnProgress<'_>,
) -> Result<Prepared, TrainError> {
    RunDir::check_new(root, overwrite)?; // before minutes go into reading a large text
    let corpus = match weights {
        None => {
            let context_length = config.model.context_length;
            let options = OpenOptions { on_progress: watch, ..OpenOptions::default() };
            Corpus::open(&config.data, &config.tokenizer, context_length, options)?
        }
        Some(weights) => weights.corpus(&config, watch)?,
    };
    check_sample_prompt(&config, &corpus)?;
    let vocab_size = corpus.tokenizer.vocab_size();
    let device = device.clone().autodiff();
    let model = match weights {
        None => Gpt::new(&config.model, vocab_size, config.train.seed, &device),
        Some(weights) => {
            let model = Gpt::zeros(&config.model, vocab_size, &device);
            Saved::load_model_shortened(&weights.located.checkpoint, model)?
        }
    };
    let trainer = Trainer::new(model, &config, corpus.train.clone());
    let lock = RunDir::lock(root)?;
    let run = RunDir::create(root, overwrite, &config, &corpus.tokenizer)?;
    let state = TrainState {
        text_sha256: corpus.text_sha256.clone(),
        started_from: weights.map(|weights| weights.located.checkpoint.display().to_string()),
        ..TrainState::default()
    };
    Ok(Prepared { config, corpus, run, trainer, state, resumed: false, lock })
}

/// The checkpoint that a new run starts from, and what its weights are worth nothing without.
struct Weights {
    located: Located,
    tokenizer: Tokenizer,
}

impl Weights {
    /// Finds the checkpoint that a user named, for a new run of `config` at `root`.
    fn find(from: &Path, config: &Config, root: &Path) -> Result<Self, TrainError> {
        let located = run::locate(from)?;
        if is_same_place(located.run.root(), root) {
            return Err(TrainError::OntoItself(root.to_owned()));
        }
        let problems = config.disagreements(&located.run.config()?);
        if !problems.is_empty() {
            return Err(ConfigError::Settings { problems }.into());
        }
        let tokenizer = located.run.tokenizer()?;
        Ok(Self { located, tokenizer })
    }

    /// The text of `config` in the tokens that the weights know.
    fn corpus(&self, config: &Config, watch: OnProgress<'_>) -> Result<Corpus, TrainError> {
        let context_length = config.model.context_length;
        let tokenizer = self.tokenizer.clone();
        let options = OpenOptions { on_progress: watch, ..OpenOptions::default() };
        let corpus = Corpus::open(&config.data, tokenizer, context_length, options);
        corpus.map_err(|error| match error {
            DataError::Encode {
                path,
                source: TokenizerError::UnknownCharacters { characters },
            } => TrainError::UnknownCharacters {
                text: path,
                from: self.located.run.root().to_owned(),
                characters,
            },
            other => other.into(),
        })
    }
}

/// Whether two paths lead to one directory; not if one leads nowhere.
fn is_same_place(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

fn resume(
    config: Config,
    run: RunDir,
    device: &Device,
    watch: OnProgress<'_>,
) -> Result<Prepared, TrainError> {
    let lock = RunDir::lock(run.root())?;
    let refuse = |differences: Vec<String>| match differences.is_empty() {
        true => Ok(()),
        false => Err(other_run(&run, differences)),
    };
    refuse(differences(&run.config()?, &config))?;
    let dir = run.last()?;
    let saved = Saved::read(&dir)?;
    let mut state = saved.state.clone();
    if Logs::says_end(&run, state.step) {
        refuse_if_done(&state, &config, &run)?;
    }
    if state.step > config.train.max_steps {
        return Err(TrainError::PastEnd {
            run: run.root().to_owned(),
            step: state.step,
            max_steps: config.train.max_steps,
        });
    }
    let tokenizer = run.tokenizer()?;
    refuse(other_tokenizer(&config, &tokenizer))?;
    let corpus = Corpus::open(
        &config.data,
        tokenizer,
        config.model.context_length,
        OpenOptions { earlier: Some(&state.text_sha256), on_progress: watch },
    )
    .map_err(|error| match error {
        DataError::OtherText { paths } => {
            let text = data::in_quotes(&paths);
            other_run(&run, vec![format!("the text {text} is another than it was")])
        }
        other => other.into(),
    })?;
    check_sample_prompt(&config, &corpus)?;
    let device = device.clone().autodiff();
    let model = Gpt::zeros(&config.model, corpus.tokenizer.vocab_size(), &device);
    let mut trainer = Trainer::new(model, &config, corpus.train.clone());
    trainer.restore(saved, &dir)?;
    run.forget_after(state.step)?;
    if state.best.is_some_and(|best| !run.checkpoint(best.step).is_dir()) {
        state.best = None; // it was no longer kept when a later one was better, which is gone now
        state.evaluations_without_improvement = 0;
    }
    run.write_config(&config)?;
    Ok(Prepared { config, corpus, run, trainer, state, resumed: true, lock })
}

fn other_run(run: &RunDir, differences: Vec<String>) -> TrainError {
    TrainError::OtherRun { run: run.root().to_owned(), differences }
}

fn refuse_if_done(state: &TrainState, config: &Config, run: &RunDir) -> Result<(), TrainError> {
    let (run, step) = (run.root().to_owned(), state.step);
    if step >= config.train.max_steps {
        return Err(TrainError::AlreadyDone { run, step });
    }
    if has_stopped_early(state, config) {
        return Err(TrainError::AlreadyStopped {
            run,
            step,
            evaluations: state.evaluations_without_improvement,
        });
    }
    Ok(())
}

/// Whether nothing got better for as long as the config allows.
pub(super) fn has_stopped_early(state: &TrainState, config: &Config) -> bool {
    let patience = config.train.early_stopping_patience;
    patience > 0 && state.evaluations_without_improvement >= patience
}

/// A prompt for samples that cannot be read should not come up after the first hundred steps.
fn check_sample_prompt(config: &Config, corpus: &Corpus) -> Result<(), TrainError> {
    if config.train.sample_tokens > 0 {
        corpus.tokenizer.encode(&config.train.sample_prompt).map_err(TrainError::SamplePrompt)?;
    }
    Ok(())
}

/// What a checkpoint was made with and cannot change when its run goes on, or it would be no continuation.
fn differences(old: &Config, new: &Config) -> Vec<String> {
    let weights = different_weights(&old.data, &new.data);
    let table = |config: &Config| toml::Table::try_from(config).expect("plain data");
    let (old, new) = (table(old), table(new));
    let whole_sections = ["tokenizer", "model"].into_iter().flat_map(|section| {
        let keys = new[section].as_table().into_iter().flat_map(toml::Table::keys);
        keys.map(move |key| (section, key.as_str()))
    });
    let keys = [
        ("data", "val_fraction"),
        ("train", "seed"),
        ("train", "batch_size"),
        ("train", "grad_accumulation_steps"),
        ("optimizer", "kind"),
    ];
    let fixed = whole_sections
        .filter(|key| !matches!(key, ("model", "dropout") | ("tokenizer", "path")))
        .chain(keys);
    fixed
        .filter(|(section, key)| old[*section].get(*key) != new[*section].get(*key))
        .map(|(section, key)| {
            let before =
                old[section].get(key).map_or_else(|| "not given".to_owned(), ToString::to_string);
            format!("{section}.{key} was {before} and is now {}", new[section][key])
        })
        .chain(weights)
        .collect()
}

/// The weights of the sources, if they are not what they were: they decide which batches are drawn. Paths
/// may change, as long as the text does not.
fn different_weights(old: &DataConfig, new: &DataConfig) -> Option<String> {
    let weights = |data: &DataConfig| -> Vec<f64> {
        let sources = data.all_sources();
        sources.iter().map(|source| source.weight).collect()
    };
    let (old, new) = (weights(old), weights(new));
    let is_one = old.len() == 1 && new.len() == 1; // whose weight says nothing
    (old != new && !is_one)
        .then(|| format!("the weights of data.sources were {old:?} and are now {new:?}"))
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
