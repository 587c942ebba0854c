//! Prepares a run for its next step: a new run, a new run from another run's weights, or a resumed run.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;

use super::{Event, Interrupter, Job, Observer, Start, TrainError, Trainer, precision};
use crate::config::{
    Config, ConfigError, DataConfig, FinetuneConfig, FinetuneMethod, OptimizerConfig, PrecisionChoice, PreferenceLoss,
    TrainConfig, ValSplit,
};
use crate::data::{self, Corpus, DataError, OnProgress, OpenOptions, Reading};
use crate::run::{self, AdapterOf, Checkpoint, Difference, Located, Lock, Resumable, RunDir, TrainState};
use tinderbox_model::Gpt;
use tinderbox_model::device::OpenDevice;
use tinderbox_model::disk::remove_left_over;
use tinderbox_model::section::BrokenRules;
use tinderbox_model::tokenizer::{Tokenizer, TokenizerError};

pub(super) struct Prepared {
    pub config: Config,
    /// The precision set in the config, which names the one that was chosen.
    pub chosen_precision: PrecisionChoice,
    pub corpus: Corpus,
    pub trainer: Trainer,
    pub state: TrainState,
    /// Whether the run continues from one of its checkpoints.
    pub resumed: bool,
    /// One line for each damaged part of the run that was skipped.
    pub damaged: Vec<String>,
    /// One line for each changed setting that the coming steps depend on.
    pub changed: Vec<String>,
    /// The run directory, which rank 0 alone has.
    pub dir: Option<(RunDir, Lock)>,
}

impl Prepared {
    /// A new run without a directory.
    pub(super) fn new(config: Config, corpus: Corpus, trainer: Trainer, state: TrainState) -> Self {
        let (chosen_precision, resumed, dir) = (config.train.matmul_precision, false, None);
        let (damaged, changed) = (Vec::new(), Vec::new());
        Self { config, chosen_precision, corpus, trainer, state, resumed, damaged, changed, dir }
    }
}

/// Reads the text, and creates or reads the run. Reports progress to `observer`.
pub(super) fn prepare(
    job: Job,
    observer: &mut dyn Observer,
    interrupter: &Interrupter,
) -> Result<Prepared, TrainError> {
    let observer = Mutex::new(observer);
    let on_progress = |reading: &Reading<'_>| {
        let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
        observer.observe(&Event::Reading(reading));
        if interrupter.should_stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let chosen_precision = job.config.train.matmul_precision;
    let started = start(job, &on_progress, interrupter).map_err(|error| match error {
        TrainError::Data(DataError::Stopped) => TrainError::InterruptedEarly,
        other => other,
    })?;
    Ok(Prepared { chosen_precision, ..started })
}

fn start(job: Job, on_progress: OnProgress<'_>, interrupter: &Interrupter) -> Result<Prepared, TrainError> {
    let Job { mut config, run_dir, start, from, device } = job;
    let from = from.or_else(|| config.finetune.base.clone());
    config.train.matmul_precision = precision::check(config.train.matmul_precision, &device)?.into();
    precision::check_base(config.finetune.base_weights, &device)?;
    let device = &device.device.clone().autodiff();
    let overwrite = match start {
        Start::Resume => return resume(config, RunDir::open(&run_dir)?, device, on_progress, interrupter),
        Start::New => false,
        Start::Overwrite => true,
    };
    let parent = from.map(|from| Parent::find(&from, &config, &run_dir)).transpose()?;
    RunDir::check_new(&run_dir, overwrite)?; // before a large text is read, which may take minutes
    create(config, &run_dir, overwrite, parent, device, on_progress, interrupter)
}

/// Returns an error if a stop was requested; the last check before the run directory is created or changed.
fn check_not_interrupted(interrupter: &Interrupter) -> Result<(), TrainError> {
    if interrupter.should_stop() { Err(TrainError::InterruptedEarly) } else { Ok(()) }
}

fn create(
    mut config: Config,
    root: &Path,
    overwrite: bool,
    parent: Option<Parent>,
    device: &Device,
    on_progress: OnProgress<'_>,
    interrupter: &Interrupter,
) -> Result<Prepared, TrainError> {
    let (corpus, model) = open_parts(&mut config, parent.as_ref(), device, on_progress)?;
    let lora = config.finetune.lora().zip(parent.as_ref());
    let adapter = lora.map(|(lora, parent)| AdapterOf::new(&parent.located.checkpoint, root, lora)).transpose()?;
    let started = match parent {
        Some(Parent { located: Located { checkpoint, .. }, .. }) => {
            TrainState::starting_from(&checkpoint, Checkpoint::read_state(&checkpoint)?)
        }
        None => TrainState::default(),
    };
    let trainer = Trainer::new(model, &config, corpus.train_batches());
    check_not_interrupted(interrupter)?;
    let lock = RunDir::lock(root)?;
    let run = RunDir::create(root, overwrite, &config, &corpus.tokenizer)?;
    let state = TrainState {
        text_sha256: corpus.text_sha256.clone(),
        adapter,
        tokenizer_crc32c: Some(crc32c::crc32c(corpus.tokenizer.to_json().as_bytes())),
        ..started
    };
    Ok(Prepared { dir: Some((run, lock)), ..Prepared::new(config, corpus, trainer, state) })
}

/// The text and the model of a new run.
fn open_parts(
    config: &mut Config,
    parent: Option<&Parent>,
    device: &Device,
    on_progress: OnProgress<'_>,
) -> Result<(Corpus, Gpt), TrainError> {
    let tokenizer = parent.map(|parent| parent.tokenizer.clone());
    config.data.val_split.get_or_insert(ValSplit::Documents); // a config without the key is one of an older version
    let options = OpenOptions { tokenizer, earlier: None, on_progress };
    let mut corpus = open_corpus(config, options).map_err(|error| match (error, parent) {
        (
            TrainError::Data(DataError::Encode { path, source: TokenizerError::UnknownCharacters { characters } }),
            Some(parent),
        ) => {
            let from = parent.located.run.root().to_owned();
            TrainError::UnknownCharacters { text: path, from, characters }
        }
        (other, _) => other,
    })?;
    check_finetune(config, &corpus)?;
    if parent.is_none() {
        corpus.tokenizer = corpus.tokenizer.without_bos(); // the training text has no BOS token either
    }
    let vocab_size = corpus.tokenizer.vocab_size();
    let model = match parent {
        None => Gpt::new(&config.model, vocab_size, config.train.seed, device),
        Some(parent) => {
            Checkpoint::check_shapes(&parent.located.checkpoint, &config.model, vocab_size)?;
            let model = Gpt::zeros(&config.model, vocab_size, device);
            let model = Checkpoint::load_model(&parent.located.checkpoint, model)?;
            with_adapters(with_frozen_weights(model, config), config)
        }
    };
    Ok((corpus, model))
}

/// The config, the records and the model at the start of a fine-tuning, without a run directory.
///
/// # Panics
/// If the config has no base.
pub(crate) fn dry_run(mut config: Config, device: &OpenDevice) -> Result<(Config, Corpus, Gpt), TrainError> {
    config.train.matmul_precision = precision::check(config.train.matmul_precision, device)?.into();
    precision::check_base(config.finetune.base_weights, device)?;
    let base = config.finetune.base.clone().expect("a fine-tuning has a base");
    let parent = Parent::find(&base, &config, Path::new(""))?;
    let device = device.device.clone().autodiff();
    let (corpus, model) = open_parts(&mut config, Some(&parent), &device, &|_| ControlFlow::Continue(()))?;
    Ok((config, corpus, model))
}

/// Refuses keys that do nothing with these records or this method. Runs of earlier versions may have them, so only new
/// runs are checked.
fn check_finetune(config: &Config, corpus: &Corpus) -> Result<(), TrainError> {
    let given = &config.finetune;
    let FinetuneConfig { method, preference, packing, train_on, .. } = given;
    let are_preferences = corpus.train_batches().are_preferences();
    let default = FinetuneConfig::default();
    let (beta, rank, alpha, use_rslora) = (default.beta, default.rank, default.alpha, default.use_rslora);
    let without_preferences = FinetuneConfig { preference: default.preference, beta, ..given.clone() };
    let without_adapters = FinetuneConfig {
        rank,
        alpha,
        use_rslora,
        targets: default.targets,
        last_blocks: default.last_blocks,
        dropout: default.dropout,
        trained_tokens: default.trained_tokens,
        ..given.clone()
    };
    let is_full = *method == FinetuneMethod::Full;
    let problems = [
        (
            are_preferences && *packing,
            "finetune.packing = true must be false with preferences: each answer has a separate row",
        ),
        (
            are_preferences && is_full && *preference == PreferenceLoss::Dpo,
            "finetune.method = \"full\" must be \"lora\" or \"dora\" with preferences: finetune.preference = \"dpo\" \
             compares with the model without its adapters; \"orpo\" takes any method",
        ),
        (
            are_preferences && *train_on != default.train_on,
            "finetune.train_on must be \"assistant\" with preferences: the last answer of each counts",
        ),
        (
            !are_preferences && *given != without_preferences,
            "finetune.preference and finetune.beta must be left out: no record has `chosen` and `rejected`",
        ),
        (
            is_full && *given != without_adapters,
            "finetune.method = \"full\" has no adapters, so rank, alpha, use_rslora, targets, last_blocks, dropout and \
             trained_tokens of [finetune] must be left out",
        ),
    ];
    let problems: Vec<String> =
        problems.into_iter().filter(|(is_broken, _)| *is_broken).map(|(_, problem)| problem.to_owned()).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(ConfigError::Settings(BrokenRules(problems)).into()),
    }
}

/// The model that a run trains: with new adapters if its config asks for them.
pub(super) fn with_adapters(model: Gpt, config: &Config) -> Gpt {
    match config.finetune.lora() {
        Some(lora) => model.adapted(&lora, config.train.seed),
        None => model,
    }
}

/// The base of a fine-tuning, with its weights in the configured format.
fn with_frozen_weights(model: Gpt, config: &Config) -> Gpt {
    match config.finetune.base_weights.precision() {
        Some(precision) => model.with_frozen_weights(precision),
        None => model,
    }
}

/// The number of tokens of the text that are searched for a sample prompt.
const SEARCHED_TOKENS: usize = 64;

/// Opens the text of `config`, and replaces the default sample prompt if the tokenizer makes no tokens of it. Also checks
/// that the sample prompt can be encoded, so that an error comes now and not when the first sample is due.
fn open_corpus(config: &mut Config, options: OpenOptions<'_>) -> Result<Corpus, TrainError> {
    let corpus = Corpus::open(config, options)?;
    config.tokenizer.end_of_text = corpus.tokenizer.end_of_text().is_some(); // the config of some kinds does not say it
    if config.train.sample_tokens == 0 {
        return Ok(corpus);
    }
    let prompt = &mut config.train.sample_prompt;
    let n_ids = |prompt: &str| corpus.tokenizer.encode_prompt(prompt).map(|ids| ids.len());
    match n_ids(prompt) {
        Ok(1..) => return Ok(corpus),
        // If the text has no line break, or the tokenizer drops it, samples begin with the first token that has a text.
        Ok(0) | Err(TokenizerError::UnknownCharacters { .. }) if *prompt == TrainConfig::default().sample_prompt => {}
        Ok(0) => return Err(TrainError::EmptySamplePrompt(prompt.clone())),
        Err(error) => return Err(TrainError::SamplePrompt(error)),
    }
    let mut ids = Vec::new();
    if let Some(first) = corpus.train.texts().find(|tokens| !tokens.is_empty()) {
        ids = vec![0; first.len().min(SEARCHED_TOKENS)];
        first.read(0, &mut ids);
    }
    let mut texts = ids.into_iter().map(|id| corpus.tokenizer.decode(&[id.cast_unsigned()]));
    let first = texts.find(|text| matches!(n_ids(text), Ok(1..)));
    *prompt = first.ok_or_else(|| TrainError::EmptySamplePrompt(prompt.clone()))?;
    Ok(corpus)
}

/// The checkpoint that a new run starts from, and the tokenizer of that checkpoint's run.
struct Parent {
    located: Located,
    tokenizer: Tokenizer,
}

impl Parent {
    fn find(from: &Path, config: &Config, root: &Path) -> Result<Self, TrainError> {
        let located = run::locate(from)?;
        let own = located.run.root().canonicalize();
        if own.is_ok_and(|own| root.canonicalize().is_ok_and(|root| root == own)) {
            return Err(TrainError::StartsFromItself(root.to_owned()));
        }
        let mut problems = config.disagreements(&located.run.config()?);
        let tokenizer = located.run.tokenizer()?;
        if let Some(id) = config.finetune.trained_tokens.iter().find(|id| **id as usize >= tokenizer.n_ids()) {
            let n = tokenizer.n_ids();
            problems.push(format!("finetune.trained_tokens has {id}, and the ids of the model are below {n}"));
        }
        if !problems.is_empty() {
            return Err(ConfigError::Settings(BrokenRules(problems)).into());
        }
        Ok(Self { located, tokenizer })
    }
}

fn resume(
    mut config: Config,
    run: RunDir,
    device: &Device,
    on_progress: OnProgress<'_>,
    interrupter: &Interrupter,
) -> Result<Prepared, TrainError> {
    let lock = RunDir::lock(run.root())?;
    run.check_no_links()?;
    remove_left_over(run.root());
    let root = || run.root().to_owned();
    let refuse = |differences: Vec<String>| match differences.is_empty() {
        true => Ok(()),
        false => Err(TrainError::OtherRun { run: root(), differences }),
    };
    let Resumable { dir, checkpoint, mut damaged } = run.resumable()?;
    let mut state = checkpoint.state.clone();
    if state.is_imported() {
        return Err(TrainError::Imported(root()));
    }
    let earlier = run.config()?;
    config.data.val_split = match (earlier.data.val_split, config.data.val_split) {
        (None, Some(ValSplit::End)) => None, // by another name
        (earlier, given) => given.or(earlier),
    };
    let [mut refused, mut changed] = differences(&earlier, &config);
    let given = config.finetune.base.as_ref().filter(|given| earlier.finetune.base.as_ref() != Some(given));
    if let Some(given) = given
        && !state.is_from(&dir, given)?
    {
        let base = state.base(&dir).unwrap_or_default();
        refused.push(format!("finetune.base was `{}` and is now `{}`", base.display(), given.display()));
    }
    changed.extend(run.needed_checkpoints()?);
    refuse(refused)?;
    let TrainState { step, evaluations_without_improvement: evaluations, .. } = state;
    let max_steps = config.train.max_steps;
    if run::log::has_ended(&run, step) {
        if step >= max_steps {
            return Err(TrainError::AlreadyDone { run: root(), step });
        }
        if has_stopped_early(&state, &config) {
            return Err(TrainError::AlreadyStopped { run: root(), step, evaluations });
        }
    }
    if step > max_steps {
        return Err(TrainError::PastEnd { run: root(), step, max_steps });
    }
    let tokenizer = run.tokenizer_of(&state)?;
    refuse(other_tokenizer(&config, &tokenizer))?;
    let options = OpenOptions { tokenizer: Some(tokenizer), earlier: Some(&state.text_sha256), on_progress };
    let corpus = open_corpus(&mut config, options).map_err(|error| match error {
        TrainError::Data(DataError::OtherText { paths }) => {
            let text = format!("the text {} has changed", data::in_quotes(&paths));
            TrainError::OtherRun { run: root(), differences: vec![text] }
        }
        other => other,
    })?;
    if corpus.train_batches().are_preferences() && state.best.is_some_and(|best| best.val_accuracy.is_none()) {
        (state.best, state.evaluations_without_improvement) = (None, 0); // of another loss, by an older version
    }
    Checkpoint::check_shapes(&dir, &config.model, corpus.tokenizer.vocab_size())?;
    let model = with_adapters(Gpt::zeros(&config.model, corpus.tokenizer.vocab_size(), device), &config);
    let mut trainer = Trainer::new(model, &config, corpus.train_batches());
    trainer.restore(checkpoint, &dir)?;
    trainer.change_model(|model| with_frozen_weights(model, &config));
    check_not_interrupted(interrupter)?;
    damaged.extend(run.cut_back_to(&mut state)?);
    run.write_config(&config)?;
    let dir = Some((run, lock));
    Ok(Prepared { resumed: true, damaged, changed, dir, ..Prepared::new(config, corpus, trainer, state) })
}

/// Early stopping: whether the validation loss has not improved for as many evaluations as the config allows.
pub(super) fn has_stopped_early(state: &TrainState, config: &Config) -> bool {
    let patience = config.train.early_stopping_patience;
    patience > 0 && state.evaluations_without_improvement >= patience
}

/// Describes the settings that differ: those that a resumed run must keep, and those that its coming steps depend on,
/// except for their number.
fn differences(old: &Config, new: &Config) -> [Vec<String>; 2] {
    // While batches grow, the number of steps determines which tokens the earlier steps have read.
    let grows = [old, new].iter().any(|config| config.schedule != config.schedule.without_ramp());
    let is_other_kind = old.tokenizer.kind != new.tokenizer.kind;
    let text = |value: &Option<toml::Value>| value.as_ref().map_or("not given".to_owned(), toml::Value::to_string);
    let tables = [old, new].map(|config| toml::Table::try_from(config).expect("plain data serializes"));
    let (mut refused, mut changed) = (Vec::new(), Vec::new());
    for Difference { key: path, values } in run::differences_of(&tables) {
        let key = path.split_once('.').expect("keys are written section.key");
        let difference = format!("{path} was {} and is now {}", text(&values[0]), text(&values[1]));
        let follows = is_other_kind && key == ("tokenizer", "vocab_size") // which only BPE has
            || key == ("tokenizer", "end_of_text") && !new.tokenizer.kind.is_table();
        if is_fixed(key) && !follows || grows && OF_RAMP.contains(&key) {
            refused.push(difference);
        } else if ["optimizer", "schedule"].contains(&key.0) || OF_UPDATES.contains(&key) {
            changed.push(difference);
        }
    }
    refused.extend(different_weights(&old.data, &new.data));
    [refused, changed]
}

/// The keys that determine the batches that grow.
const OF_RAMP: [(&str, &str); 4] = [
    ("schedule", "initial_context_length"),
    ("schedule", "initial_batch_size"),
    ("schedule", "ramp_fraction"),
    ("train", "max_steps"),
];

/// The keys outside `[optimizer]` and `[schedule]` that a step depends on, and that may change.
const OF_UPDATES: [(&str, &str); 4] =
    [DROPOUT, ("train", "matmul_precision"), ("train", "skip_non_finite"), ("train", "skip_loss_spikes")];

const DROPOUT: (&str, &str) = ("model", "dropout");

/// Whether a resumed run must keep a key, because its weights, batches or optimizer state depend on it.
fn is_fixed(key: (&str, &str)) -> bool {
    let of_section = ["tokenizer", "model", "finetune"].contains(&key.0)
        && ![DROPOUT, ("tokenizer", "path"), ("finetune", "base")].contains(&key);
    let others = [
        ("data", "val_fraction"),
        ("data", "val_split"),
        ("train", "seed"),
        ("train", "batch_size"),
        ("train", "grad_accumulation_steps"),
        ("train", "with_replacement"),
    ];
    let of_optimizer = key.0 == "optimizer" && OptimizerConfig::is_fixed(key.1);
    of_section || of_optimizer || others.contains(&key)
}

/// Describes a difference between the weights of the sources, which determine the batches that are drawn. The paths of
/// the sources may change as long as the text does not.
fn different_weights(old: &DataConfig, new: &DataConfig) -> Option<String> {
    let (old, new) = (old.weights(), new.weights());
    let is_one = old.len() == 1 && new.len() == 1; // the weight of a single source does not matter
    (old != new && !is_one).then(|| format!("the weights of data.sources were {old:?} and are now {new:?}"))
}

/// Describes a changed tokenizer file. A resumed run uses the copy of the tokenizer in the run directory; the original
/// file may be gone, but must not differ from the copy.
fn other_tokenizer(config: &Config, own: &Tokenizer) -> Vec<String> {
    let is_other = |path: &&PathBuf| Tokenizer::from_file(path).is_ok_and(|found| found != *own);
    let path = config.tokenizer.path.as_ref().filter(is_other);
    path.map(|path| format!("the tokenizer `{}` has changed", path.display())).into_iter().collect()
}
