//! The size of checkpoints, to the byte.

use serde::Serialize;

use crate::config::{Config, OptimizerConfig, OptimizerKind};
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
    pub(super) fn new(config: &Config, vocab_size: usize, checkpoints: u64) -> Self {
        let weights: Vec<_> = Parameter::all(&config.model, vocab_size).collect();
        let optimizer = file_bytes(optimizer_state(&config.optimizer, &weights).collect());
        let model = file_bytes(weights.into_iter().map(|weight| (weight.path, weight.shape)).collect());
        // The latest, and the best if it is older.
        let kept = (config.train.keep_checkpoints.limit() as u64).saturating_add(1);
        let checkpoints_kept = kept.min(checkpoints);
        Self { model, optimizer, checkpoints_kept, total: (model + optimizer).saturating_mul(checkpoints_kept) }
    }
}

/// The tensors of the optimizer's state, as it saves them, by name and shape.
pub(super) fn optimizer_state(
    config: &OptimizerConfig,
    weights: &[Parameter],
) -> impl Iterator<Item = (String, Vec<usize>)> {
    let trained = weights.iter().filter(|weight| weight.is_trained);
    trained.flat_map(|weight| {
        let state = state_of(config, weight).into_iter();
        state.map(|(kind, shape)| (format!("{kind}.{}", weight.path), shape))
    })
}

/// The kinds of tensors that the optimizer keeps for a parameter, with their shapes.
fn state_of(config: &OptimizerConfig, weight: &Parameter) -> Vec<(&'static str, Vec<usize>)> {
    let n: usize = weight.shape.iter().product();
    let mut state = match weight.hidden_widths().filter(|_| config.kind == OptimizerKind::Muon) {
        Some(widths) if config.normuon_beta2 > 0.0 => {
            vec![("momentum", vec![n]), ("neuron_moment", vec![widths.into_iter().sum()])]
        }
        Some(_) => vec![("momentum", vec![n])],
        None => vec![("first_moment", vec![n]), ("second_moment", vec![n])],
    };
    if config.ema_decay > 0.0 {
        state.push(("weights", weight.shape.clone()));
    }
    state
}
