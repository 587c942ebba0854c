//! The size of checkpoints, to the byte.

use serde::Serialize;

use crate::config::Config;
use crate::run::tensors::file_bytes;
use tinderbox_model::Parameter;

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
    pub(super) fn new(config: &Config, parameters: Vec<Parameter>, checkpoints: u64) -> Self {
        let optimizer = file_bytes(config.optimizer.saved_tensors(&parameters));
        let model = file_bytes(parameters.into_iter().map(|parameter| (parameter.path, parameter.shape)).collect());
        // The latest, and the best if it is older.
        let kept = (config.train.keep_checkpoints.limit() as u64).saturating_add(1);
        let checkpoints_kept = kept.min(checkpoints);
        Self { model, optimizer, checkpoints_kept, total: (model + optimizer).saturating_mul(checkpoints_kept) }
    }
}
