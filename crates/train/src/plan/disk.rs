//! The size of checkpoints, to the byte in models of up to [`MAX_LAYERS`] layers.

use serde::Serialize;

use crate::config::{Config, ModelConfig};
use tinderbox_model::Parameter;
use tinderbox_model::tensor_file::file_bytes;

/// The layers whose names are counted one by one. Further layers count as the last of these: files of so many tensors
/// have headers that are too long to be read.
const MAX_LAYERS: usize = 1024;

/// The checkpoints of a run, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// `model.safetensors` of one checkpoint.
    pub model: u64,
    /// `optimizer.safetensors` of one checkpoint.
    pub optimizer: u64,
    /// The number of checkpoints that are kept.
    pub checkpoints_kept: u64,
    /// All checkpoints that are kept.
    pub total: u64,
}

impl Disk {
    /// `checkpoints` is the number saved in the whole run.
    pub(super) fn new(config: &Config, vocab_size: usize, checkpoints: u64) -> Self {
        let n_layers = config.model.n_layers;
        let of_layers = |n_layers: usize| {
            let parameters: Vec<_> =
                Parameter::all(&ModelConfig { n_layers, ..config.model.clone() }, vocab_size).collect();
            let optimizer = file_bytes(config.optimizer.saved_tensors(&parameters));
            let model = file_bytes(parameters.into_iter().map(|parameter| (parameter.path, parameter.shape)).collect());
            [model, optimizer]
        };
        let [mut model, mut optimizer] = of_layers(n_layers.min(MAX_LAYERS));
        if n_layers > MAX_LAYERS {
            let [one_less_of_model, one_less_of_optimizer] = of_layers(MAX_LAYERS - 1);
            let n_more = (n_layers - MAX_LAYERS) as u64;
            model = model.saturating_add((model - one_less_of_model).saturating_mul(n_more));
            optimizer = optimizer.saturating_add((optimizer - one_less_of_optimizer).saturating_mul(n_more));
        }
        // The latest, and the best if it is older.
        let kept = (config.train.keep_checkpoints.limit() as u64).saturating_add(1);
        let checkpoints_kept = kept.min(checkpoints);
        Self {
            model,
            optimizer,
            checkpoints_kept,
            total: model.saturating_add(optimizer).saturating_mul(checkpoints_kept),
        }
    }
}
