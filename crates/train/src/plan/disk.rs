//! The size of checkpoints, to the byte.

use serde::Serialize;

use super::{NamedShape, tensors};
use crate::config::{Config, ModelConfig, OptimizerConfig, OptimizerKind};
use crate::run::tensors::file_bytes;
use tinderbox_model::parameters::hidden_widths;

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
        let weights = tensors(&config.model, vocab_size);
        let optimizer = file_bytes(optimizer_state(&config.model, &config.optimizer, &weights).into_iter().collect());
        let model = file_bytes(weights.into_iter().collect());
        // The latest, and the best if it is older.
        let kept = (config.train.keep_checkpoints.limit() as u64).saturating_add(1);
        let checkpoints_kept = kept.min(checkpoints);
        Self { model, optimizer, checkpoints_kept, total: (model + optimizer).saturating_mul(checkpoints_kept) }
    }
}

/// The tensors of the optimizer's state, as it saves them.
pub(super) fn optimizer_state(
    model: &ModelConfig,
    config: &OptimizerConfig,
    weights: &[NamedShape],
) -> Vec<NamedShape> {
    let means = |(name, shape): &NamedShape| -> Vec<(&'static str, usize)> {
        let n = shape.iter().product();
        match hidden_widths(model, name, shape).filter(|_| config.kind == OptimizerKind::Muon) {
            Some(widths) if config.normuon_beta2 > 0.0 => {
                vec![("momentum", n), ("neuron_moment", widths.into_iter().sum())]
            }
            Some(_) => vec![("momentum", n)],
            None => vec![("first_moment", n), ("second_moment", n)],
        }
    };
    let of = |weight| {
        let (name, _): &NamedShape = weight;
        means(weight).into_iter().map(move |(mean, n)| (format!("{mean}.{name}"), vec![n]))
    };
    let average = if config.ema_decay > 0.0 { weights } else { &[] };
    let learning = average.iter().map(|(name, shape)| (format!("weights.{name}"), shape.clone()));
    weights.iter().flat_map(of).chain(learning).collect()
}
