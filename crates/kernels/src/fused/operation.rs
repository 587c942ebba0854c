//! Operations on the numbers of burn's CPU backend.

use std::fmt::Debug;

use burn::backend::flex::FlexTensor;
use burn::backend::{DispatchTensor, Flex};
use burn::tensor::Tensor;

use crate::operation::{self, Concrete};

/// A differentiable function of a few tensors of f32 on flex.
pub(crate) trait Operation: Debug + Send + Sync + 'static {
    /// The output, and what the backward pass will need. Nothing else keeps the inputs, so one that is not
    /// shared may be overwritten. `keep` is false where no gradient will be asked for.
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>);

    /// The gradient of each input, from that of the output; none for an input that is always a constant.
    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>>;
}

/// Applies an operation to its inputs, one to five of them, or seven.
pub(crate) fn apply<const D: usize>(
    inputs: impl Into<Vec<DispatchTensor>>,
    operation: impl Operation,
) -> Tensor<D> {
    operation::apply(inputs, OnFlex(operation))
}

/// An operation on flex among those on any backend.
#[derive(Debug)]
struct OnFlex<O>(O);

impl<O: Operation> operation::Operation for OnFlex<O> {
    fn forward(
        &self,
        inputs: Vec<DispatchTensor>,
        keep: bool,
    ) -> (DispatchTensor, Vec<DispatchTensor>) {
        let inputs = inputs.into_iter().map(Flex::unwrap).collect();
        let (output, saved) = self.0.forward(inputs, keep);
        (Flex::wrap(output), saved.into_iter().map(Flex::wrap).collect())
    }

    fn backward(
        &self,
        saved: Vec<DispatchTensor>,
        gradient: DispatchTensor,
    ) -> Vec<Option<DispatchTensor>> {
        let saved = saved.into_iter().map(Flex::unwrap).collect();
        let parts = self.0.backward(saved, Flex::unwrap(gradient));
        parts.into_iter().map(|part| part.map(Flex::wrap)).collect()
    }
}
