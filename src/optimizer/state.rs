//! What an optimiser remembers, on its way to a checkpoint and back.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};

use crate::config::OptimizerKind;
use crate::model::parameters::HostTensor;

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
}

/// The kind as a config says it.
fn key(kind: OptimizerKind) -> &'static str {
    match kind {
        OptimizerKind::Adamw => "\"adamw\"",
        OptimizerKind::Muon => "\"muon\"",
    }
}

/// Tensors on the host, by what they are and the parameter they belong to.
pub(super) type State = BTreeMap<String, HostTensor>;

/// Reads a tensor into `state`.
pub(super) fn put(state: &mut State, key: String, x: &Tensor<1>) {
    let values = x.clone().into_data().convert::<f32>().try_to_vec();
    let host = HostTensor {
        shape: x.dims().to_vec(),
        values: values.expect("converted to f32"),
    };
    state.insert(key, host);
}

/// Takes a tensor of `n` numbers out of `state`.
pub(super) fn take(
    state: &mut State,
    key: String,
    n: usize,
    device: &Device,
) -> Result<Tensor<1>, StateError> {
    match state.remove(&key) {
        Some(HostTensor { values, .. }) if values.len() == n => {
            Ok(Tensor::from_data(TensorData::new(values, [n]), device))
        }
        _ => Err(StateError::Misfit(key)),
    }
}
