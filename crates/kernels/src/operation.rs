//! One node of the autodiff graph for every operation written by hand.
//!
//! An [`Operation`] is two functions on tensors without gradients: forward, and backward from what forward
//! saved. What burn asks around them, a route for each backend and a node for each number of inputs, stands
//! here once. Of the kernels, only this file names all backends.

#![allow(deprecated, reason = "ndarray is kept as a numerical second opinion until burn drops it")]

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor,
    DispatchTensorKind, backend_extension,
};
use burn::tensor::Tensor;

/// A differentiable function of a few tensors. It sees them without gradients, on whatever device they are.
pub(super) trait Operation: Debug + Send + Sync + 'static {
    /// The output, and what the backward pass will need. Nothing else keeps the inputs, so one that is not
    /// shared may be overwritten. `keep` is false where no gradient will be asked for.
    fn forward(
        &self,
        inputs: Vec<DispatchTensor>,
        keep: bool,
    ) -> (DispatchTensor, Vec<DispatchTensor>);

    /// The gradient of each input, from that of the output; none for an input that is always a constant.
    fn backward(
        &self,
        saved: Vec<DispatchTensor>,
        gradient: DispatchTensor,
    ) -> Vec<Option<DispatchTensor>>;
}

/// Applies an operation to its inputs, one to five of them, or seven.
pub(super) fn apply<const D: usize>(
    inputs: impl Into<Vec<DispatchTensor>>,
    operation: impl Operation,
) -> Tensor<D> {
    let operation: Arc<dyn Operation> = Arc::new(operation);
    let inputs = inputs.into();
    let n = inputs.len();
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().expect("as many as there are");
    Tensor::from_dispatch(match n {
        1 => <Dispatch as Differentiable>::of_1(next(), operation),
        2 => <Dispatch as Differentiable>::of_2(next(), next(), operation),
        3 => <Dispatch as Differentiable>::of_3(next(), next(), next(), operation),
        4 => <Dispatch as Differentiable>::of_4(next(), next(), next(), next(), operation),
        5 => <Dispatch as Differentiable>::of_5(next(), next(), next(), next(), next(), operation),
        7 => <Dispatch as Differentiable>::of_7(
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            operation,
        ),
        _ => unreachable!("no operation has {n} inputs"),
    })
}

/// A backend that computes. Its tensors know no gradients.
pub(super) trait Concrete: Backend {
    /// The same tensor, as one of any backend.
    fn wrap(tensor: FloatTensor<Self>) -> DispatchTensor;

    /// The same tensor, as one of this backend.
    ///
    /// # Panics
    /// If it is one of another.
    fn unwrap(tensor: DispatchTensor) -> FloatTensor<Self>;
}

macro_rules! concrete {
    ($(#[$attribute:meta])* $backend:ident) => {
        $(#[$attribute])*
        impl Concrete for burn::backend::$backend {
            fn wrap(tensor: FloatTensor<Self>) -> DispatchTensor {
                DispatchTensor {
                    kind: DispatchTensorKind::$backend(BackendTensor::Float(tensor)),
                    autodiff: DispatchAutodiffContext::Disabled,
                }
            }

            fn unwrap(tensor: DispatchTensor) -> FloatTensor<Self> {
                match tensor.kind {
                    DispatchTensorKind::$backend(tensor) => tensor.float(),
                    #[allow(unreachable_patterns, reason = "where only one backend is compiled in")]
                    other => unreachable!("a tensor of another backend: {other:?}"),
                }
            }
        }
    };
}

concrete! { #[cfg(feature = "flex")] Flex }
concrete! { #[cfg(feature = "ndarray")] NdArray }
concrete! { #[cfg(any(feature = "wgpu", feature = "cuda"))] Cube }

/// An operation of so many tensors, for the backends that have them.
#[allow(
    clippy::too_many_arguments,
    reason = "burn routes functions of single tensors, not of lists"
)]
#[backend_extension(
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Autodiff
)]
trait Differentiable: Backend {
    fn of_1(a: FloatTensor<Self>, operation: Arc<dyn Operation>) -> FloatTensor<Self>;
    fn of_2(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        operation: Arc<dyn Operation>,
    ) -> FloatTensor<Self>;
    fn of_3(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        operation: Arc<dyn Operation>,
    ) -> FloatTensor<Self>;
    fn of_4(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        operation: Arc<dyn Operation>,
    ) -> FloatTensor<Self>;
    fn of_5(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        operation: Arc<dyn Operation>,
    ) -> FloatTensor<Self>;
    fn of_7(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        g: FloatTensor<Self>,
        operation: Arc<dyn Operation>,
    ) -> FloatTensor<Self>;
}

/// Implements the trait's functions of `a`, `b`, .. by handing all of them to one function.
macro_rules! forward_to {
    ($all:expr => $($name:ident($($input:ident),+);)+) => {
        $(fn $name($($input: FloatTensor<Self>,)+ operation: Arc<dyn Operation>) -> FloatTensor<Self> {
            ($all)([$($input),+], operation)
        })+
    };
}

impl<B: Concrete> Differentiable for B {
    forward_to! { untracked::<B, _> =>
        of_1(a);
        of_2(a, b);
        of_3(a, b, c);
        of_4(a, b, c, d);
        of_5(a, b, c, d, e);
        of_7(a, b, c, d, e, f, g);
    }
}

fn untracked<B: Concrete, const N: usize>(
    inputs: [FloatTensor<B>; N],
    operation: Arc<dyn Operation>,
) -> FloatTensor<B> {
    let inputs = inputs.into_iter().map(B::wrap).collect();
    B::unwrap(operation.forward(inputs, false).0)
}

impl<B: Concrete, C: CheckpointStrategy> Differentiable for Autodiff<B, C> {
    forward_to! { tracked::<B, C, _> =>
        of_1(a);
        of_2(a, b);
        of_3(a, b, c);
        of_4(a, b, c, d);
        of_5(a, b, c, d, e);
        of_7(a, b, c, d, e, f, g);
    }
}

fn tracked<B: Concrete, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    operation: Arc<dyn Operation>,
) -> FloatTensor<Autodiff<B, C>> {
    #[derive(Debug)]
    struct Node;

    impl<B: Concrete, const N: usize> Backward<B, N> for Node {
        type State = (Arc<dyn Operation>, Vec<DispatchTensor>);

        fn backward(
            self,
            ops: Ops<Self::State, N>,
            gradients: &mut Gradients,
            _: &mut Checkpointer,
        ) {
            let (operation, saved) = ops.state;
            let gradient = B::wrap(gradients.consume::<B>(&ops.node));
            let parts = operation.backward(saved, gradient);
            assert_eq!(parts.len(), N, "{operation:?}: a gradient for each input");
            for (parent, part) in ops.parents.into_iter().zip(parts) {
                if let Some((parent, part)) = parent.zip(part) {
                    gradients.register::<B>(parent.id, B::unwrap(part));
                }
            }
        }
    }

    let nodes = inputs.each_ref().map(<FloatTensor<Autodiff<B, C>>>::node);
    let inputs = inputs.into_iter().map(|input| B::wrap(input.into_primitive())).collect();
    let node = Backward::<B, N>::prepare::<C>(Node, nodes).compute_bound().stateful();
    match node {
        OpsKind::Tracked(prep) => {
            let (output, saved) = operation.forward(inputs, true);
            prep.finish((operation, saved), B::unwrap(output))
        }
        OpsKind::UnTracked(prep) => {
            let (output, _) = operation.forward(inputs, false);
            prep.finish(B::unwrap(output))
        }
    }
}
