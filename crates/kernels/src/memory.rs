//! The bytes that operations hold in training. Each operation states its own beside its kernel.

/// The form of the operations. Forms differ in what they save for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// The fused operations of this crate, on burn's CPU backend.
    Fused,
    /// Compositions of burn's own operations, on every other backend.
    Composed,
}

/// The bytes that an operation holds in training, besides its inputs, which count for the operations that computed
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainingMemory {
    /// Saved for its backward pass or that of the operation that reads its output.
    pub saved: f64,
    /// Held while its backward pass computes, besides what was saved.
    pub temporary: f64,
}

pub(crate) fn bytes<const D: usize>(shape: [usize; D]) -> f64 {
    4.0 * shape.map(|size| size as f64).iter().product::<f64>()
}
