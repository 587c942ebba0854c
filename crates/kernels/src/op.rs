//! Differentiable operations with handwritten gradients.
//!
//! An [`Operation`] is a pair of functions on tensors without autodiff: forward, and backward, which receives the
//! tensors that forward saved. This module dispatches them to each backend and registers a node in the autodiff graph,
//! for which burn requires a separate function for each number of inputs.

#![allow(deprecated, reason = "ndarray is kept as a numerical second opinion until burn drops it")]

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, Flex, backend_extension,
};

/// The inputs whose gradients are wanted. Constants, such as frozen weights, need none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted([bool; MAX_INPUTS]);

const MAX_INPUTS: usize = 7;

impl Wanted {
    pub(crate) const NONE: Self = Self([false; MAX_INPUTS]);

    #[cfg(test)]
    pub(crate) const ALL: Self = Self([true; MAX_INPUTS]);

    fn new(inputs: &[bool]) -> Self {
        let mut wanted = Self::NONE;
        wanted.0[..inputs.len()].copy_from_slice(inputs);
        wanted
    }

    /// Whether there will be a backward pass, which needs saved tensors.
    pub(crate) fn any(self) -> bool {
        self != Self::NONE
    }

    pub(crate) fn of(self, input: usize) -> bool {
        self.0[input]
    }
}

/// A differentiable function of a few tensors on any device, implemented on tensors without autodiff.
pub(crate) trait Operation: Debug + Send + Sync + 'static {
    /// Returns the output, and the tensors that the backward pass needs. Inputs are passed by value, so `forward` may
    /// overwrite those that are not shared.
    fn forward(&self, inputs: Vec<DispatchTensor>, wanted: Wanted) -> (DispatchTensor, Vec<DispatchTensor>);

    /// Returns the gradient of each input, given the gradient of the output; `None` for inputs that are always
    /// constants. Unwanted gradients may be left out too.
    fn backward(
        &self,
        saved: Vec<DispatchTensor>,
        gradient: DispatchTensor,
        wanted: Wanted,
    ) -> Vec<Option<DispatchTensor>>;
}

/// An [`Operation`] on f32 tensors on flex. Inputs and gradients are contiguous.
pub(crate) trait FlexOperation: Debug + Send + Sync + 'static {
    fn forward(&self, inputs: Vec<FlexTensor>, wanted: Wanted) -> (FlexTensor, Vec<FlexTensor>);

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor, wanted: Wanted) -> Vec<Option<FlexTensor>>;
}

/// Applies an operation to one to seven inputs.
pub(crate) fn apply(inputs: Vec<DispatchTensor>, operation: impl Operation) -> DispatchTensor {
    route(inputs, Arc::new(operation))
}

pub(crate) fn apply_on_flex(inputs: Vec<DispatchTensor>, operation: impl FlexOperation) -> DispatchTensor {
    apply(inputs, OnFlex(operation))
}

#[derive(Debug)]
struct OnFlex<O>(O);

impl<O: FlexOperation> Operation for OnFlex<O> {
    fn forward(&self, inputs: Vec<DispatchTensor>, wanted: Wanted) -> (DispatchTensor, Vec<DispatchTensor>) {
        let inputs = inputs.into_iter().map(contiguous).collect();
        let (output, saved) = self.0.forward(inputs, wanted);
        (Flex::wrap(output), saved.into_iter().map(Flex::wrap).collect())
    }

    fn backward(
        &self,
        saved: Vec<DispatchTensor>,
        gradient: DispatchTensor,
        wanted: Wanted,
    ) -> Vec<Option<DispatchTensor>> {
        let saved = saved.into_iter().map(Flex::unwrap).collect();
        let gradients = self.0.backward(saved, contiguous(gradient), wanted);
        gradients.into_iter().map(|gradient| gradient.map(Flex::wrap)).collect()
    }
}

fn contiguous(tensor: DispatchTensor) -> FlexTensor {
    Flex::unwrap(tensor).to_contiguous()
}

/// A backend without autodiff.
trait Concrete: Backend {
    /// Converts a tensor of this backend to a tensor of any backend.
    fn wrap(tensor: FloatTensor<Self>) -> DispatchTensor;

    /// Converts a tensor of any backend to a tensor of this backend.
    fn unwrap(tensor: DispatchTensor) -> FloatTensor<Self>;
}

macro_rules! concrete {
    ($(#[$attribute:meta])* $backend:ident) => {
        $(#[$attribute])*
        impl Concrete for burn::backend::$backend {
            fn wrap(tensor: FloatTensor<Self>) -> DispatchTensor {
                DispatchTensor::from_backend(BackendTensor::<Self>::Float(tensor))
            }

            fn unwrap(tensor: DispatchTensor) -> FloatTensor<Self> {
                let tensor: Result<BackendTensor<Self>, _> = DispatchTensor::try_into_backend(tensor);
                tensor.expect("the tensor is on this backend, without autodiff").float()
            }
        }
    };
}

concrete! { Flex }
concrete! { #[cfg(feature = "ndarray")] NdArray }
concrete! { #[cfg(any(feature = "wgpu", feature = "cuda"))] Cube }

/// Defines a function for each number of inputs, which takes them as separate arguments: burn cannot dispatch a list of
/// tensors.
macro_rules! arities {
    ($($n:literal $name:ident($($input:ident),+);)+) => {
        fn route(inputs: Vec<DispatchTensor>, operation: Arc<dyn Operation>) -> DispatchTensor {
            match inputs.len() {
                $($n => {
                    let [$($input),+]: [DispatchTensor; $n] = inputs.try_into().expect("the length was matched");
                    <Dispatch as Differentiable>::$name($($input,)+ operation)
                })+
                n => unreachable!("an operation of {n} inputs"),
            }
        }

        #[allow(clippy::too_many_arguments, reason = "single tensors")]
        #[backend_extension(
            Flex,
            NdArray: cfg(feature = "ndarray"),
            Cube: cfg(any(feature = "wgpu", feature = "cuda")),
            Autodiff
        )]
        trait Differentiable: Backend {
            $(fn $name($($input: FloatTensor<Self>,)+ operation: Arc<dyn Operation>) -> FloatTensor<Self>;)+
        }

        impl<B: Concrete> Differentiable for B {
            $(fn $name($($input: FloatTensor<Self>,)+ operation: Arc<dyn Operation>) -> FloatTensor<Self> {
                untracked::<B, _>([$($input),+], operation)
            })+
        }

        impl<B: Concrete, C: CheckpointStrategy> Differentiable for Autodiff<B, C> {
            $(fn $name($($input: FloatTensor<Self>,)+ operation: Arc<dyn Operation>) -> FloatTensor<Self> {
                tracked::<B, C, _>([$($input),+], operation)
            })+
        }
    };
}

arities! {
    1 of_1(a);
    2 of_2(a, b);
    3 of_3(a, b, c);
    4 of_4(a, b, c, d);
    5 of_5(a, b, c, d, e);
    6 of_6(a, b, c, d, e, f);
    7 of_7(a, b, c, d, e, f, g);
}

fn untracked<B: Concrete, const N: usize>(
    inputs: [FloatTensor<B>; N],
    operation: Arc<dyn Operation>,
) -> FloatTensor<B> {
    let inputs = inputs.into_iter().map(B::wrap).collect();
    B::unwrap(operation.forward(inputs, Wanted::NONE).0)
}

fn tracked<B: Concrete, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    operation: Arc<dyn Operation>,
) -> FloatTensor<Autodiff<B, C>> {
    #[derive(Debug)]
    struct Node;

    impl<B: Concrete, const N: usize> Backward<B, N> for Node {
        type State = (Arc<dyn Operation>, Vec<DispatchTensor>, Wanted);

        fn backward(self, ops: Ops<Self::State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let (operation, saved, wanted) = ops.state;
            let gradient = B::wrap(gradients.consume::<B>(&ops.node));
            let parts = operation.backward(saved, gradient, wanted);
            assert_eq!(parts.len(), N, "{operation:?}: a gradient for each input");
            for (parent, part) in ops.parents.into_iter().zip(parts) {
                if let Some((parent, part)) = parent.zip(part) {
                    gradients.register::<B>(parent.id, B::unwrap(part));
                }
            }
        }
    }

    let wanted = Wanted::new(&inputs.each_ref().map(<FloatTensor<Autodiff<B, C>>>::is_tracked));
    let nodes = inputs.each_ref().map(<FloatTensor<Autodiff<B, C>>>::node);
    let inputs = inputs.into_iter().map(|input| B::wrap(input.into_primitive())).collect();
    let node = Backward::<B, N>::prepare::<C>(Node, nodes).compute_bound().stateful();
    match node {
        OpsKind::Tracked(prep) => {
            let (output, saved) = operation.forward(inputs, wanted);
            prep.finish((operation, saved, wanted), B::unwrap(output))
        }
        OpsKind::UnTracked(prep) => {
            let (output, _) = operation.forward(inputs, Wanted::NONE);
            prep.finish(B::unwrap(output))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{constant, scalars};
    use burn::tensor::Tensor;

    /// The sum of all inputs, where input `i` is multiplied by `i + 1`.
    #[derive(Debug)]
    struct WeightedSum;

    impl Operation for WeightedSum {
        fn forward(&self, inputs: Vec<DispatchTensor>, wanted: Wanted) -> (DispatchTensor, Vec<DispatchTensor>) {
            let terms = inputs.clone().into_iter().map(Tensor::<1>::from_dispatch);
            let sum = (1..).zip(terms).map(|(i, x)| x * i).reduce(|sum, x| sum + x);
            (sum.expect("there is an input").into_dispatch(), if wanted.any() { inputs } else { Vec::new() })
        }

        fn backward(
            &self,
            saved: Vec<DispatchTensor>,
            gradient: DispatchTensor,
            wanted: Wanted,
        ) -> Vec<Option<DispatchTensor>> {
            let gradient = Tensor::<1>::from_dispatch(gradient);
            let of = |(factor, i): (i64, usize)| wanted.of(i).then(|| (gradient.clone() * factor).into_dispatch());
            (1..).zip(0..saved.len()).map(of).collect()
        }
    }

    #[test]
    fn apply_skips_constants() {
        let leaf = constant::<1>([3], 1).require_grad();
        let inputs = [constant([3], 2), leaf.clone(), constant([3], 3)].map(Tensor::into_dispatch).into();
        let sum = Tensor::<1>::from_dispatch(apply(inputs, WeightedSum));
        let gradients = sum.sum().backward();
        assert_eq!(scalars(leaf.grad(&gradients).expect("the leaf has a gradient")), [2.0; 3]);
    }

    #[test]
    fn apply_takes_one_to_seven_inputs() {
        for n in 1..=7 {
            let inputs: Vec<Tensor<1>> = (0..n).map(|i| constant([3], i).require_grad()).collect();
            let dispatched = inputs.iter().cloned().map(Tensor::into_dispatch).collect();
            let sum = Tensor::<1>::from_dispatch(apply(dispatched, WeightedSum));
            let gradients = sum.sum().backward();
            for (i, input) in inputs.into_iter().enumerate() {
                let gradient = scalars(input.grad(&gradients).expect("the leaf has a gradient"));
                assert_eq!(gradient, [(i + 1) as f32; 3], "input {i} of {n}");
            }
        }
    }
}
