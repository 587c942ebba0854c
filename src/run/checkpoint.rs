//! A checkpoint directory: weights, optimizer state, and where the run stands.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files::{partial_name, read_text, rename, sync_dir, write_synced};
use super::{RunError, cannot_read, cannot_write, tensors};
use crate::config::ModelConfig;
use crate::model::parameters::AssignError;
use crate::model::{Gpt, LazyTensor, parameters, shapes};

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";

/// The parameter with a row for each position of the context.
const POSITIONS: &str = "position_embedding.weight";

const VERSION: u32 = 1;

/// The best evaluation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its step, whose checkpoint is kept.
    pub step: usize,
    /// The estimated validation loss, nats per token.
    pub val_loss: f64,
}

/// Where a run stands, apart from its tensors. Batches, dropout and learning rates follow from the step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    /// Updates made.
    pub step: usize,
    /// SHA-256 of the training text, in hexadecimal; empty in a model that was imported.
    pub text_sha256: String,
    /// The checkpoint, or the model of another project, that the first weights came from, as it was named then; `None`
    /// if they were drawn from the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_from: Option<String>,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// Evaluations since the best one.
    pub evaluations_without_improvement: usize,
    /// Training losses since the last line of the log, nats per token.
    pub loss_window: Vec<f32>,
    /// Mean training loss of the last line of the log, nats per token.
    pub train_loss: Option<f64>,
    /// What an interrupt left undone at this step: done first when the run goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_undone: Option<LeftUndone>,
    /// The losses that spikes are told by, nats per token; empty unless the config asks for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent_losses: Vec<f32>,
}

/// What can be left undone at a step; each includes those below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftUndone {
    /// The measurements of the weights that the run starts with.
    Start,
    /// The evaluation.
    Evaluation,
    /// The sample after it.
    Sample,
}

impl TrainState {
    /// Whether the weights come from another project, and no text of ours was trained on.
    pub fn is_imported(&self) -> bool {
        self.text_sha256.is_empty()
    }
}

#[derive(Serialize, Deserialize)]
struct StateFile {
    version: u32,
    #[serde(flatten)]
    state: TrainState,
}

/// The contents of a checkpoint. Its tensors stay on the device or in the file until they are written or loaded.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The weights, by parameter name.
    pub model: BTreeMap<String, LazyTensor>,
    /// The optimizer's running means.
    pub optimizer: BTreeMap<String, LazyTensor>,
    /// Where the run stands.
    pub state: TrainState,
}

impl Checkpoint {
    /// Writes the checkpoint to `dir`, atomically.
    pub fn write(&self, dir: &Path) -> Result<(), RunError> {
        let partial = partial_name(dir);
        self.write_files(&partial).and_then(|()| rename(&partial, dir).map_err(cannot_write(dir))).inspect_err(|_| {
            fs::remove_dir_all(&partial).ok(); // the first error is the one to report
        })
    }

    fn write_files(&self, dir: &Path) -> Result<(), RunError> {
        if dir.exists() {
            fs::remove_dir_all(dir).map_err(cannot_write(dir))?; // a crash while saving left it
        }
        fs::create_dir_all(dir).map_err(cannot_write(dir))?;
        tensors::write(&dir.join(MODEL), &self.model)?;
        tensors::write(&dir.join(OPTIMIZER), &self.optimizer)?;
        let state = StateFile { version: VERSION, state: self.state.clone() };
        let state = serde_json::to_string_pretty(&state).expect("plain data");
        let path = dir.join(STATE);
        write_synced(&path, |file| writeln!(file, "{state}")).map_err(cannot_write(&path))?;
        sync_dir(dir).map_err(cannot_write(dir))
    }

    /// Reads the checkpoint in `dir`, but for the values of its tensors.
    pub fn read(dir: &Path) -> Result<Self, RunError> {
        Ok(Self {
            model: tensors::open(&dir.join(MODEL))?,
            optimizer: tensors::open(&dir.join(OPTIMIZER))?,
            state: Self::read_state(dir)?,
        })
    }

    /// Reads where the run stood.
    pub fn read_state(dir: &Path) -> Result<TrainState, RunError> {
        let path = dir.join(STATE);
        let reason = match serde_json::from_str::<StateFile>(&read_text(&path)?) {
            Ok(StateFile { version: VERSION, state }) => return Ok(state),
            Ok(StateFile { version, .. }) => format!("version {version}, not {VERSION}"),
            Err(error) => error.to_string(),
        };
        Err(RunError::Damaged { path, reason })
    }

    /// The size of the weights in `dir` in bytes; 0 if there are none.
    pub fn weights_bytes(dir: &Path) -> u64 {
        fs::metadata(dir.join(MODEL)).map_or(0, |metadata| metadata.len())
    }

    /// Compares the tensors in `dir` with those of a model for which nothing is allocated yet: a config may ask for
    /// more than there is.
    pub fn check_shapes(dir: &Path, config: &ModelConfig, vocab_size: usize) -> Result<(), RunError> {
        let path = dir.join(MODEL);
        let weights = tensors::open(&path)?;
        for (name, expected) in shapes::of_config(config, vocab_size) {
            let source = match weights.get(&name).map(LazyTensor::shape) {
                None => AssignError::Missing(name),
                Some(found) if found == expected => continue,
                // A model with a shorter context leaves some out.
                Some(&[n, width]) if name == POSITIONS && n >= expected[0] && width == expected[1] => continue,
                Some(found) => AssignError::Shape { path: name, expected, found: found.to_vec() },
            };
            return Err(RunError::Misfit { path, source });
        }
        Ok(())
    }

    /// Loads the weights of the checkpoint in `dir` into `model`.
    pub fn load_model(dir: &Path, model: Gpt) -> Result<Gpt, RunError> {
        load(dir, tensors::open(&dir.join(MODEL))?, model, usize::MAX)
    }

    /// As [`Checkpoint::load_model`], without the learned positions that `model` has no room for.
    pub fn load_model_shortened(dir: &Path, model: Gpt) -> Result<Gpt, RunError> {
        let n_positions = model.config().context_length;
        load(dir, tensors::open(&dir.join(MODEL))?, model, n_positions)
    }

    /// Loads the weights, which were read from `dir`, into `model`.
    pub fn into_model(self, dir: &Path, model: Gpt) -> Result<Gpt, RunError> {
        load(dir, self.model, model, usize::MAX)
    }
}

/// Loads the weights of the checkpoint in `dir` into `model` one by one, of learned positions the first `n_positions`.
fn load(
    dir: &Path,
    mut weights: BTreeMap<String, LazyTensor>,
    model: Gpt,
    n_positions: usize,
) -> Result<Gpt, RunError> {
    let mut unreadable = None;
    let assigned = parameters::assign(model, |name, _| {
        let read = weights.remove(name)?.read();
        let mut weight = read.map_err(|error| _ = unreadable.get_or_insert(error)).ok()?;
        if name == POSITIONS
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
        (Ok(_), Some((name, _))) => Err(RunError::Damaged { path, reason: format!("the model has no `{name}`") }),
        (Ok(model), None) => Ok(model),
    }
}
