//! What an optimiser remembers, on its way to a checkpoint and back.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};

use crate::config::OptimizerKind;
use crate::model::LazyTensor;

/// Why the state in a checkpoint cannot be taken up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A running mean does not fit the model.
    #[error("`{0}` is missing, of another size, or of no parameter")]
    Misfit(String),
    /// Another optimiser wrote it.
    #[error("{} wrote it, and optimizer.kind is {}", key(*.written), key(*.configured))]
    OtherKind {
        /// Whose state it is.
        written: OptimizerKind,
        /// Which one is to go on.
        configured: OptimizerKind,
    },
    /// A running mean cannot be read.
    #[error("`{key}` cannot be read: {reason}")]
    Unreadable {
        /// What it is, and the parameter that it belongs to.
        key: String,
        /// What the system says.
        reason: String,
    },
}

/// The kind as a config says it.
fn key(kind: OptimizerKind) -> &'static str {
    match kind {
        OptimizerKind::Adamw => "\"adamw\"",
        OptimizerKind::Muon => "\"muon\"",
    }
}

/// Running means, by what they are and the parameter they belong to.
pub(super) type State = BTreeMap<String, LazyTensor>;

/// Puts a tensor into `state`.
pub(super) fn put(state: &mut State, key: String, x: &Tensor<1>) {
    state.insert(key, LazyTensor::on_device(x.clone()));
}

/// Takes a tensor of `n` numbers out of `state`, to the device.
pub(super) fn take(
    state: &mut State,
    key: String,
    n: usize,
    device: &Device,
) -> Result<Tensor<1>, StateError> {
    let Some(tensor) = state.remove(&key).filter(|tensor| tensor.n_numbers() == n) else {
        return Err(StateError::Misfit(key));
    };
    match tensor.read() {
        Ok(host) => Ok(Tensor::from_data(TensorData::new(host.values, [n]), device)),
        Err(error) => Err(StateError::Unreadable { key, reason: error.to_string() }),
    }
}
