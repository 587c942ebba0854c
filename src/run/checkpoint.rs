//! One checkpoint: weights, the optimiser's running means, and where the run stands.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files::{partial_name, read_text, rename, sync_dir, write_synced};
use super::{CheckpointError, tensors};
use crate::model::parameters::{self, HostTensor};
use crate::model::{Gpt, LazyTensor};

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";

/// The parameter with a row for each position of the context.
const POSITIONS: &str = "position_embedding.weight";

/// The layout of `state.json` that this version writes.
const VERSION: u32 = 1;

/// The best evaluation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step after which it was made; its checkpoint is kept.
    pub step: usize,
    /// The estimated validation loss, nats per token.
    pub val_loss: f64,
}

/// Where a run stands, beside its weights and running means.
///
/// Batches, dropout and learning rates are functions of the step: there is no more state than this.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    /// Updates made so far; the next step has this number.
    pub step: usize,
    /// SHA-256 of the text that is learned from, in hexadecimal.
    pub text_sha256: String,
    /// The checkpoint of another run that the first weights came from, as it was named then; none where
    /// they were drawn from the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_from: Option<String>,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// Evaluations since then.
    pub evaluations_without_improvement: usize,
    /// Training losses since the last line of the log, nats per token.
    pub loss_window: Vec<f32>,
    /// Mean training loss of the last line of the log, nats per token.
    pub train_loss: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct StateFile {
    version: u32,
    #[serde(flatten)]
    state: TrainState,
}

/// What a checkpoint directory holds. Its tensors stay where they are, on a device or in the directory's files,
/// until one by one they are written or put into a model.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The weights, by parameter name.
    pub model: BTreeMap<String, LazyTensor>,
    /// The optimiser's running means.
    pub optimizer: BTreeMap<String, LazyTensor>,
    /// Where the run stands.
    pub state: TrainState,
}

impl Saved {
    /// Writes the checkpoint to `dir`, which is there whole afterwards or not at all.
    ///
    /// # Errors
    /// If it cannot be written; a checkpoint of the same name that was there before stays.
    pub fn write(&self, dir: &Path) -> Result<(), CheckpointError> {
        let partial = partial_name(dir);
        self.write_parts(&partial, dir).inspect_err(|_| {
            fs::remove_dir_all(&partial).ok(); // already reporting why it could not be written
        })
    }

    fn write_parts(&self, partial: &Path, dir: &Path) -> Result<(), CheckpointError> {
        let failed = |source| CheckpointError::Write { path: partial.to_owned(), source };
        if partial.exists() {
            fs::remove_dir_all(partial).map_err(failed)?; // of a run that died while it saved
        }
        fs::create_dir_all(partial).map_err(failed)?;
        tensors::write(&partial.join(MODEL), &self.model)?;
        tensors::write(&partial.join(OPTIMIZER), &self.optimizer)?;
        let state = StateFile { version: VERSION, state: self.state.clone() };
        let state = serde_json::to_string_pretty(&state).expect("plain data");
        write_synced(&partial.join(STATE), |file| writeln!(file, "{state}"))?;
        sync_dir(partial)?;
        rename(partial, dir)
    }

    /// Reads the checkpoint in `dir`; of its tensors names and shapes, and the numbers when they are asked for.
    ///
    /// # Errors
    /// If a part is missing or damaged.
    pub fn read(dir: &Path) -> Result<Self, CheckpointError> {
        Ok(Self {
            model: tensors::open(&dir.join(MODEL))?,
            optimizer: tensors::open(&dir.join(OPTIMIZER))?,
            state: Self::read_state(dir)?,
        })
    }

    /// Reads only where the run stood.
    ///
    /// # Errors
    /// If it is missing, damaged, or of a version that this one does not know.
    pub fn read_state(dir: &Path) -> Result<TrainState, CheckpointError> {
        let path = dir.join(STATE);
        let text = read_text(&path)?;
        let damaged = |reason: String| CheckpointError::Damaged { path: path.clone(), reason };
        let file: StateFile =
            serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if file.version != VERSION {
            return Err(damaged(format!("version {}, not {VERSION}", file.version)));
        }
        Ok(file.state)
    }

    /// Puts the weights of the checkpoint in `dir` into `model`.
    ///
    /// # Errors
    /// If they cannot be read, or do not fit.
    pub fn load_model(dir: &Path, model: Gpt) -> Result<Gpt, CheckpointError> {
        let path = dir.join(MODEL);
        put(&path, tensors::open(&path)?, model)
    }

    /// Puts the weights of the checkpoint in `dir` into `model`, whose context may be shorter: learned
    /// positions that it does not have are left out.
    ///
    /// # Errors
    /// If they cannot be read, or do not fit.
    pub fn load_model_shortened(dir: &Path, model: Gpt) -> Result<Gpt, CheckpointError> {
        let path = dir.join(MODEL);
        let n_positions = model.config().context_length;
        put_changed(&path, tensors::open(&path)?, model, |name, weight| {
            if name == POSITIONS
                && let [n, width] = weight.shape[..]
                && n > n_positions
            {
                weight.values.truncate(n_positions * width);
                weight.shape[0] = n_positions;
            }
        })
    }

    /// Puts the weights into `model`; `dir` is where they were read.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn into_model(self, dir: &Path, model: Gpt) -> Result<Gpt, CheckpointError> {
        put(&dir.join(MODEL), self.model, model)
    }
}

fn put(
    path: &Path,
    weights: BTreeMap<String, LazyTensor>,
    model: Gpt,
) -> Result<Gpt, CheckpointError> {
    put_changed(path, weights, model, |_, _| {})
}

/// Puts what `change` makes of the weights into `model`, one after another.
fn put_changed(
    path: &Path,
    mut weights: BTreeMap<String, LazyTensor>,
    model: Gpt,
    change: impl Fn(&str, &mut HostTensor),
) -> Result<Gpt, CheckpointError> {
    let mut unreadable = None;
    let assigned = parameters::assign(model, |name, _| match weights.remove(name)?.read() {
        Ok(mut weight) => {
            change(name, &mut weight);
            Some(weight)
        }
        Err(error) => {
            unreadable.get_or_insert(error);
            None
        }
    });
    let path = || path.to_owned();
    if let Some(source) = unreadable {
        return Err(CheckpointError::Read { path: path(), source });
    }
    let model = assigned.map_err(|source| CheckpointError::Misfit { path: path(), source })?;
    match weights.pop_first() {
        Some((name, _)) => Err(CheckpointError::Damaged {
            path: path(),
            reason: format!("the model has no `{name}`"),
        }),
        None => Ok(model),
    }
}
