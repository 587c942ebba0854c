//! A checkpoint directory: weights, optimizer state and training state.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::adapter::{AdapterOf, AdapterTensors, Adapters, is_adapter};
use super::layout::{MODEL, OPTIMIZER, STATE, locate, step_of, steps_in};
use super::{RunError, cannot_read, cannot_write};
use crate::config::ModelConfig;
use tinderbox_model::disk::{self, PartialDir, write_atomically, write_synced};
use tinderbox_model::parameters::AssignError;
use tinderbox_model::tensor_file::OpenTensorsError;
use tinderbox_model::{Dtype, Gpt, LazyTensor, Parameter, Role, parameters, tensor_file};

/// The version of the format. Version 1 had no checksums.
const VERSION: u32 = 2;
const FIRST_WITH_CHECKSUMS: u64 = 2;

/// The best evaluation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its step, whose checkpoint is kept.
    pub step: usize,
    /// The estimated validation loss, in nats per token; of preferences, in nats per pair.
    pub val_loss: f64,
    /// Of preferences, the share of pairs whose better answer is preferred. An older version, whose loss was that of the
    /// better answers, has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_accuracy: Option<f64>,
}

/// The training state, apart from tensors. Batches, dropout and learning rates follow from the step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    /// Updates made.
    pub step: usize,
    /// SHA-256 of the training text, in hexadecimal; empty in an imported model.
    pub text_sha256: String,
    /// The checkpoint, or the model of another project, that the initial weights came from, as it was named then;
    /// `None` if they were drawn from the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_from: Option<String>,
    /// The family of the model of another project that the weights came from, directly or through other runs; exports are
    /// of this family. `None` if they were drawn from the seed, or if an older version imported them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// The type of that model's numbers, as `export --dtype` calls it: the default of exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// The base and size of the adapters, if the checkpoint has only their weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterOf>,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// Evaluations since the best one.
    pub evaluations_without_improvement: usize,
    /// Training losses since the last line of the log, nats per token.
    pub loss_window: Vec<f32>,
    /// Mean training loss of the last line of the log, nats per token.
    pub train_loss: Option<f64>,
    /// CRC-32C of the run's `tokenizer.json`; `None` if an older version began the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_crc32c: Option<u32>,
    /// The work at this step that an interrupt left pending; done first on resume.
    #[serde(rename = "left_undone", default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
    /// The recent losses that spikes are detected from, nats per token; empty unless the config asks for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent_losses: Vec<f32>,
    /// Consecutive steps up to this one that were skipped because their loss or gradient was not finite.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub non_finite_steps: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Work that can be pending at a step; each includes those below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pending {
    /// The measurements of the initial weights.
    Start,
    /// The evaluation.
    Evaluation,
    /// The sample after it.
    Sample,
}

impl TrainState {
    /// The state of a run that starts with the weights and the tokenizer of the checkpoint in `dir`, whose state is `of`.
    pub(crate) fn starting_from(dir: &Path, of: Self) -> Self {
        let Self { family, dtype, tokenizer_crc32c, .. } = of;
        Self { started_from: Some(dir.display().to_string()), family, dtype, tokenizer_crc32c, ..Self::default() }
    }

    /// The checkpoint that the weights of the checkpoint in `dir` come from, as it was named then; `None` if they were drawn
    /// from the seed.
    pub fn base(&self, dir: &Path) -> Option<PathBuf> {
        match &self.adapter {
            Some(adapter) => Some(adapter.path(dir)),
            None => self.started_from.as_ref().map(PathBuf::from),
        }
    }

    /// Whether they come from the run or checkpoint `given`, as far as can be told: it may have been moved, and a run may
    /// have been trained on.
    pub(crate) fn is_from(&self, dir: &Path, given: &Path) -> Result<bool, RunError> {
        let Some(base) = self.base(dir).and_then(|base| base.canonicalize().ok()) else { return Ok(true) };
        let located = locate(given)?;
        let is_run = base.ancestors().nth(2).is_some_and(|run| given.canonicalize().is_ok_and(|given| given == run));
        let is_same = is_run || located.checkpoint.canonicalize().is_ok_and(|found| found == base);
        Ok(is_same || self.adapter.as_ref().is_some_and(|it| it.check(dir, &located.checkpoint).is_ok()))
    }

    /// Whether the weights come from another project and were not trained here.
    pub fn is_imported(&self) -> bool {
        self.text_sha256.is_empty()
    }
}

/// Not deserialized: serde would buffer the flattened fields as values, at many times their size.
#[derive(Serialize)]
struct StateFile {
    version: u32,
    #[serde(flatten)]
    state: TrainState,
    crc32c: Checksums,
}

impl StateFile {
    /// The text of the file, with its own checksum, which is still empty.
    fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("plain data serializes");
        let at = text.rfind("\"\"").expect("its own checksum comes last") + 1;
        text.insert_str(at, &hexadecimal(crc32c::crc32c(&text.as_bytes()[..at])));
        text + "\n"
    }
}

/// CRC-32C of the files of a checkpoint, in hexadecimal.
#[derive(Serialize, Deserialize)]
struct Checksums {
    #[serde(rename = "model.safetensors")]
    model: String,
    #[serde(rename = "optimizer.safetensors")]
    optimizer: String,
    /// The checksum of this file up to these digits, which are its last.
    #[serde(rename = "state.json")]
    state: String,
}

/// The contents of a checkpoint. Its tensors stay on the device or in the file until written or loaded.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The weights, by parameter name. Of a model with adapters, only theirs are written.
    pub model: BTreeMap<String, LazyTensor>,
    /// The optimizer's running means.
    pub optimizer: BTreeMap<String, LazyTensor>,
    /// The training state.
    pub state: TrainState,
}

impl Checkpoint {
    /// Writes the checkpoint to `dir`, atomically.
    pub fn write(&self, dir: &Path) -> Result<(), RunError> {
        let partial = PartialDir::create(dir).map_err(cannot_write(dir))?;
        // An error names the final path of the file.
        let write = |name: &str, tensors: &BTreeMap<String, LazyTensor>| {
            let written = tensor_file::write_as(&partial.path().join(name), tensors, Dtype::F32);
            written.map(hexadecimal).map_err(cannot_write(&dir.join(name)))
        };
        let mut model = self.model.clone();
        model.retain(|name, _| self.state.adapter.is_none() || is_adapter(name));
        let (model, optimizer) = (write(MODEL, &model)?, write(OPTIMIZER, &self.optimizer)?);
        let crc32c = Checksums { model, optimizer, state: String::new() };
        let state = StateFile { version: VERSION, state: self.state.clone(), crc32c }.to_text();
        write_synced(&partial.path().join(STATE), |file| file.write_all(state.as_bytes()))
            .map_err(cannot_write(&dir.join(STATE)))?;
        partial.rename().map_err(cannot_write(dir))
    }

    /// Replaces the training state of the checkpoint in `dir`, atomically. The tensors stay as they are, and so does a
    /// checkpoint of a version without checksums.
    pub(crate) fn replace_state(dir: &Path, state: &TrainState) -> Result<(), RunError> {
        let (_, Some(crc32c)) = read_state_file(dir)? else { return Ok(()) };
        let crc32c = Checksums { state: String::new(), ..crc32c };
        let text = StateFile { version: VERSION, state: state.clone(), crc32c }.to_text();
        let path = dir.join(STATE);
        write_atomically(&path, text.as_bytes()).map_err(cannot_write(&path))
    }

    /// Reads the checkpoint in `dir`, except for the values of its tensors, after verifying the checksums of its files.
    /// Weights are merged with their adapters.
    pub fn read(dir: &Path) -> Result<Self, RunError> {
        let read = Self::read_whole(dir).and_then(|checkpoint| {
            let Some(adapter) = &checkpoint.state.adapter else { return Ok(checkpoint) };
            let (adapters, base) = checkpoint.model.into_iter().partition(|(name, _)| is_adapter(name));
            Ok(Self { model: adapter.merged(dir, adapters, base)?, ..checkpoint })
        });
        read.map_err(naming_whole(dir))
    }

    /// Like [`Checkpoint::read`], but with adapters beside the weights, as in training, and an error names no other
    /// checkpoint.
    pub(super) fn read_whole(dir: &Path) -> Result<Self, RunError> {
        let paths = [MODEL, OPTIMIZER].map(|name| dir.join(name));
        let (mut model, optimizer) = (open(&paths[0])?, open(&paths[1])?);
        let (state, crc32c) = read_state_file(dir)?;
        if let Some(Checksums { model, optimizer, .. }) = crc32c {
            compare(&paths[0], &model)?;
            compare(&paths[1], &optimizer)?;
        }
        if let Some(adapter) = &state.adapter {
            model.extend(adapter.open_base(dir)?);
        }
        Ok(Self { model, optimizer, state })
    }

    /// Reads the training state.
    pub fn read_state(dir: &Path) -> Result<TrainState, RunError> {
        read_state_file(dir).map(|(state, _)| state).map_err(naming_whole(dir))
    }

    /// The checksum of the weights in `dir`, which tells whether another checkpoint has taken the place of one that was
    /// read; `None` if there is no checkpoint, or one of a version without checksums.
    pub fn weights_checksum(dir: &Path) -> Option<String> {
        Some(read_state_file(dir).ok()?.1?.model)
    }

    /// The size of the weights in `dir` in bytes; 0 if there are none.
    pub fn weights_bytes(dir: &Path) -> u64 {
        match adapter(dir) {
            Some(adapter) => adapter.base_of(dir).map_or(0, |base| Self::weights_bytes(&base)),
            None => fs::metadata(dir.join(MODEL)).map_or(0, |metadata| metadata.len()),
        }
    }

    /// Compares the shapes of the tensors in `dir` with those of a model before anything is allocated for it: a config
    /// may require more memory than there is.
    pub fn check_shapes(dir: &Path, config: &ModelConfig, vocab_size: usize) -> Result<(), RunError> {
        let path = dir.join(MODEL);
        let weights = Self::unverified_weights(dir).map_err(naming_whole(dir))?;
        for Parameter { path: name, shape: expected, role, .. } in Parameter::all(config, vocab_size) {
            let source = match weights.get(&name).map(LazyTensor::shape) {
                None => AssignError::Missing(name),
                Some(found) if found == expected => continue,
                // A model with a shorter context uses only the first positions.
                Some(&[n, width]) if role == Role::PositionEmbedding && n >= expected[0] && width == expected[1] => {
                    continue;
                }
                Some(found) => AssignError::Shape { path: name, expected, found: found.to_vec() },
            };
            return Err(RunError::Misfit { path, source });
        }
        Ok(())
    }

    /// Loads the weights of the checkpoint in `dir` into `model`, without learned positions beyond its context.
    pub fn load_model(dir: &Path, model: Gpt) -> Result<Gpt, RunError> {
        load(dir, Self::weights(dir)?, model)
    }

    /// Like [`Checkpoint::load_model`], with the changes of `adapters`.
    pub(super) fn load_adapted(dir: &Path, model: Gpt, adapters: Adapters) -> Result<Gpt, RunError> {
        let table: Vec<Parameter> = model.parameters().collect();
        load(dir, adapters.merged_into(Self::weights(dir)?, &table, dir)?, model)
    }

    /// The weights of the checkpoint in `dir`, after verifying their checksum.
    fn weights(dir: &Path) -> Result<BTreeMap<String, LazyTensor>, RunError> {
        Self::whole_weights(dir).map_err(naming_whole(dir))
    }

    /// The same, but an error names no other checkpoint.
    pub(super) fn whole_weights(dir: &Path) -> Result<BTreeMap<String, LazyTensor>, RunError> {
        let weights = Self::own_weights(dir)?;
        match adapter(dir) {
            Some(adapter) => adapter.merged(dir, weights, adapter.open_base(dir)?),
            None => Ok(weights),
        }
    }

    /// The contents of the file of weights in `dir`, after verifying its checksum; only the adapters of a run that has
    /// them.
    pub(super) fn own_weights(dir: &Path) -> Result<BTreeMap<String, LazyTensor>, RunError> {
        let path = dir.join(MODEL);
        let weights = open(&path)?;
        if let (_, Some(Checksums { model, .. })) = read_state_file(dir)? {
            compare(&path, &model)?;
        }
        Ok(weights)
    }

    /// The same without a look at the values.
    pub(super) fn unverified_weights(dir: &Path) -> Result<BTreeMap<String, LazyTensor>, RunError> {
        let weights = open(&dir.join(MODEL))?;
        match adapter(dir) {
            Some(adapter) => adapter.merged(dir, weights, Self::unverified_weights(&adapter.base_of(dir)?)?),
            None => Ok(weights),
        }
    }

    /// The number of parameters in the checkpoint in `dir`; their values are not read.
    pub(super) fn n_parameters(dir: &Path) -> Result<u64, RunError> {
        let weights = Self::unverified_weights(dir)?;
        Ok(weights.values().map(|tensor| tensor.n_numbers() as u64).sum())
    }

    /// Loads the weights, which were read from `dir`, into `model`.
    pub fn into_model(self, dir: &Path, model: Gpt) -> Result<Gpt, RunError> {
        load(dir, self.model, model)
    }
}

impl Adapters {
    /// Those of a fine-tuned run or one of its checkpoints, for use with the checkpoint `base`.
    ///
    /// # Errors
    /// If the run has no adapters, or they were trained on other weights than those of `base`.
    pub fn of_run(run: &Path, base: &Path) -> Result<Self, RunError> {
        let dir = locate(run)?.checkpoint;
        let adapter = Checkpoint::read_state(&dir)?.adapter.ok_or_else(|| RunError::NoAdapter(run.to_owned()))?;
        adapter.check(&dir, base)?;
        Ok(Self { lora: adapter.lora, tensors: Checkpoint::own_weights(&dir)? })
    }
}

impl AdapterOf {
    /// The weights of the base, for adapters in the checkpoint `dir`.
    fn open_base(&self, dir: &Path) -> Result<BTreeMap<String, LazyTensor>, RunError> {
        let base = self.base_of(dir)?;
        self.check(dir, &base)?;
        Checkpoint::whole_weights(&base)
    }

    /// The adapters in the checkpoint `dir`: where they belong, the matrices `[in, R]` and `[R, out]`, and the lengths
    /// `[out]` if they are trained.
    pub fn tensors(&self, dir: &Path) -> Result<Vec<AdapterTensors>, RunError> {
        let mut adapters = open(&dir.join(MODEL))?;
        let base = Checkpoint::unverified_weights(&self.base_of(dir)?)?;
        let rows = self.lora.adapters(&self.table(dir, &base)?).into_iter();
        rows.map(|rows| AdapterTensors::take(&mut adapters, rows, dir)).collect()
    }
}

/// Loads the weights of the checkpoint in `dir` into `model` one by one.
fn load(dir: &Path, mut weights: BTreeMap<String, LazyTensor>, model: Gpt) -> Result<Gpt, RunError> {
    let (n_positions, mut unreadable) = (model.config().context_length, None);
    let positions = model.parameters().find(|weight| weight.role == Role::PositionEmbedding).map(|weight| weight.path);
    let assigned = parameters::assign(model, |name, _| {
        let read = weights.remove(name)?.read();
        let mut weight = read.map_err(|error| _ = unreadable.get_or_insert(error)).ok()?;
        if positions.as_deref() == Some(name)
            && let [n, width] = weight.shape[..]
            && n > n_positions
        {
            weight.values.truncate(n_positions * width);
            weight.shape[0] = n_positions;
        }
        Some(weight)
    });
    let path = dir.join(MODEL);
    if let Some(error) = unreadable {
        return Err(cannot_read(&path)(error));
    }
    match (assigned, weights.pop_first()) {
        (Err(source), _) => Err(RunError::Misfit { path, source }),
        (Ok(_), Some((name, _))) => Err(RunError::damaged(&path, format!("the model has no `{name}`"))),
        (Ok(model), None) => Ok(model),
    }
}

/// Opens a file of tensors. Their values, all f32, are read on demand.
fn open(path: &Path) -> Result<BTreeMap<String, LazyTensor>, RunError> {
    tensor_file::open(path).map_err(|error| match error {
        OpenTensorsError::Read(source) => cannot_read(path)(source),
        OpenTensorsError::Damaged(reason) => RunError::damaged(path, reason),
    })
}

/// The base and size of the adapters in `dir`, if there are any.
fn adapter(dir: &Path) -> Option<AdapterOf> {
    read_state_file(dir).ok()?.0.adapter
}

/// Verifies the checksum of a file before its bytes are used. They are read again then, from the page cache.
fn compare(path: &Path, expected: &str) -> Result<(), RunError> {
    let found = File::open(path).and_then(disk::crc32c_of).map(hexadecimal).map_err(cannot_read(path))?;
    match found == expected {
        true => Ok(()),
        false => Err(RunError::damaged(path, format!("its checksum was {expected} and is now {found}"))),
    }
}

fn read_state_file(dir: &Path) -> Result<(TrainState, Option<Checksums>), RunError> {
    #[derive(Deserialize)]
    struct Version {
        version: u64,
    }
    #[derive(Deserialize)]
    struct FileSums {
        #[serde(default)]
        crc32c: Option<Checksums>,
    }
    let path = dir.join(STATE);
    let damaged = |reason: String| RunError::damaged(&path, reason);
    let text = String::from_utf8(fs::read(&path).map_err(cannot_read(&path))?)
        .map_err(|error| damaged(format!("it is not text at byte {}", error.utf8_error().valid_up_to())))?;
    let malformed = |error: serde_json::Error| damaged(error.to_string());
    let Version { version: found } = serde_json::from_str(&text).map_err(malformed)?;
    if found > u64::from(VERSION) {
        return Err(RunError::Newer { path, found, known: VERSION });
    }
    let FileSums { crc32c } = serde_json::from_str(&text).map_err(malformed)?;
    match &crc32c {
        Some(sums) => {
            let sum = text.rfind(&format!("\"{}\"", sums.state)).map(|at| crc32c::crc32c(&text.as_bytes()[..=at]));
            if sum.map(hexadecimal).as_ref() != Some(&sums.state) {
                return Err(damaged("it is not as it was written, by its checksum".to_owned()));
            }
        }
        None if found >= FIRST_WITH_CHECKSUMS => return Err(damaged("it has no checksums".to_owned())),
        None => {}
    }
    let state: TrainState = serde_json::from_str(&text).map_err(malformed)?;
    match step_of(dir) {
        Some(step) if step != state.step => {
            Err(damaged(format!("it is of step {}, and its directory of step {step}", state.step)))
        }
        _ => Ok((state, crc32c)),
    }
}

fn hexadecimal(crc32c: u32) -> String {
    format!("{crc32c:08x}")
}

/// Adds to the error of a damaged checkpoint an intact one of the same run, preferably an earlier one.
fn naming_whole(dir: &Path) -> impl Fn(RunError) -> RunError {
    move |error| match error {
        RunError::Damaged { path, reason, whole: None } => RunError::Damaged { path, reason, whole: whole_beside(dir) },
        RunError::Read { path, source } if source.kind() == ErrorKind::NotFound && dir.is_dir() => {
            RunError::Damaged { path, reason: "it is missing".to_owned(), whole: whole_beside(dir) }
        }
        other => other,
    }
}

fn whole_beside(dir: &Path) -> Option<PathBuf> {
    let (step, folder) = (step_of(dir)?, dir.parent()?);
    let mut steps = steps_in(folder).ok()?;
    steps.sort_by_key(|(other, _)| (*other > step, other.abs_diff(step)));
    let mut others = steps.into_iter().filter(|(other, _)| *other != step).map(|(_, dir)| dir);
    others.find(|dir| Checkpoint::read_whole(dir).is_ok())
}
