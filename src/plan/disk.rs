//! How large checkpoints are, to the byte.

use std::collections::HashMap;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Serialize;

use crate::config::{Config, OptimizerKind};
use crate::model::cost::{self, ParameterTensor};
use crate::model::parameters::is_hidden_matrix;

/// What a run writes to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// `model.safetensors` of one checkpoint.
    pub model: u64,
    /// `optimizer.safetensors` of one checkpoint.
    pub optimizer: u64,
    /// How many checkpoints stay.
    pub checkpoints_kept: u64,
    /// All of them.
    pub total: u64,
}

impl Disk {
    /// `checkpoints` are saved in the whole run.
    pub(super) fn new(config: &Config, vocab_size: usize, checkpoints: u64) -> Self {
        let weights = cost::tensors(&config.model, vocab_size);
        let model = file_bytes(&weights);
        let optimizer = file_bytes(&running_means(config.optimizer.kind, &weights));
        // The latest ones, and the best one where it is none of them.
        let kept = (config.train.keep_checkpoints as u64).saturating_add(1);
        let checkpoints_kept = kept.min(checkpoints);
        Self {
            model,
            optimizer,
            checkpoints_kept,
            total: (model + optimizer).saturating_mul(checkpoints_kept),
        }
    }
}

/// What the optimiser keeps for the parameters, as it saves it.
pub(super) fn running_means(
    kind: OptimizerKind,
    weights: &[ParameterTensor],
) -> Vec<ParameterTensor> {
    let named = |mean: &str, weight: &ParameterTensor| ParameterTensor {
        name: format!("{mean}.{}", weight.name),
        shape: vec![weight.shape.iter().product()],
    };
    let means = |weight: &ParameterTensor| -> &[&str] {
        match kind {
            OptimizerKind::Muon if is_hidden_matrix(&weight.name, &weight.shape) => &["momentum"],
            OptimizerKind::Adamw | OptimizerKind::Muon => &["first_moment", "second_moment"],
        }
    };
    weights
        .iter()
        .flat_map(|weight| means(weight).iter().map(move |mean| named(mean, weight)))
        .collect()
}

/// The length of a safetensors file with these tensors of f32.
fn file_bytes(tensors: &[ParameterTensor]) -> u64 {
    let mut sorted: Vec<&ParameterTensor> = tensors.iter().collect();
    sorted.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let mut end = 0;
    let described = sorted.into_iter().map(|tensor| {
        let start = end;
        end += 4 * tensor.shape.iter().product::<usize>();
        let info = TensorInfo {
            dtype: Dtype::F32,
            shape: tensor.shape.clone(),
            data_offsets: (start, end),
        };
        (tensor.name.clone(), info)
    });
    let described = described.collect();
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let header = Metadata::new(Some(format), described).expect("one tensor follows the other");
    let header = serde_json::to_string(&header).expect("plain data");
    // The header's length, and the header, filled up to whole words.
    (8 + header.len().next_multiple_of(8) + end) as u64
}
