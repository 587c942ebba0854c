//! The size of checkpoints, to the byte.

use serde::Serialize;

use super::{ParameterTensor, tensors};
use crate::config::{Config, OptimizerKind};
use crate::model::parameters::is_hidden_matrix;
use crate::run;

/// The checkpoints of a run, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// `model.safetensors` of one checkpoint.
    pub model: u64,
    /// `optimizer.safetensors` of one checkpoint.
    pub optimizer: u64,
    /// How many checkpoints stay.
    pub checkpoints_kept: u64,
    /// All checkpoints that stay.
    pub total: u64,
}

impl Disk {
    /// `checkpoints` are saved in the whole run.
    pub(super) fn new(config: &Config, vocab_size: usize, checkpoints: u64) -> Self {
        let weights = tensors(&config.model, vocab_size);
        let model = file_bytes(&weights);
        let optimizer = file_bytes(&optimizer_state(config.optimizer.kind, &weights));
        // The latest ones, and the best one if it is older.
        let kept = (config.train.keep_checkpoints as u64).saturating_add(1);
        let checkpoints_kept = kept.min(checkpoints);
        Self { model, optimizer, checkpoints_kept, total: (model + optimizer).saturating_mul(checkpoints_kept) }
    }
}

/// The tensors of the optimizer's state, as it saves them.
pub(super) fn optimizer_state(kind: OptimizerKind, weights: &[ParameterTensor]) -> Vec<ParameterTensor> {
    let means = |weight: &ParameterTensor| -> &[&str] {
        match kind {
            OptimizerKind::Muon if is_hidden_matrix(&weight.name, &weight.shape) => &["momentum"],
            OptimizerKind::Adamw | OptimizerKind::Muon => &["first_moment", "second_moment"],
        }
    };
    let named = |mean: &str, weight: &ParameterTensor| ParameterTensor {
        name: format!("{mean}.{}", weight.name),
        shape: vec![weight.shape.iter().product()],
    };
    let all = weights.iter().flat_map(|weight| means(weight).iter().map(|mean| named(mean, weight)));
    all.collect()
}

fn file_bytes(tensors: &[ParameterTensor]) -> u64 {
    let shapes = tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone()));
    run::tensors::file_bytes(shapes.collect())
}
