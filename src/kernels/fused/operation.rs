//! One node of the autodiff graph for every operation written by hand.
//!
//! An [`Operation`] is two functions on tensors of burn's CPU backend: forward, and backward from what forward
//! kept. What burn asks around them, a route for each backend and a node for each number of inputs, stands
//! here once.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, DispatchTensor, Flex, backend_extension};
use burn::tensor::Tensor;

/// A differentiable function of a few tensors of f32 on flex.
pub(in crate::kernels) trait Operation: Debug + Send + Sync + 'static {
    /// The output, and what the backward pass will need. Nothing else keeps the inputs, so one that is not
    /// shared may be overwritten. `keep` is false where no gradient will be asked for.
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>);

    /// The gradient of each input, from that of the output; none for an input that is always a constant.
    fn backward(&self, kept: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>>;
}

/// Applies an operation to its inputs, one to five of them, or seven.
pub(in crate::kernels) fn apply<const N: usize, const D: usize>(
    inputs: [DispatchTensor; N],
    operation: impl Operation,
) -> Tensor<D> {
    let operation: Arc<dyn Operation> = Arc::new(operation);
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().expect("as many as there are");
    Tensor::from_dispatch(match N {
        1 => <Dispatch as Fused>::fused_1(next(), operation),
        2 => <Dispatch as Fused>::fused_2(next(), next(), operation),
        3 => <Dispatch as Fused>::fused_3(next(), next(), next(), operation),
        4 => <Dispatch as Fused>::fused_4(next(), next(), next(), next(), operation),
        5 => <Dispatch as Fused>::fused_5(next(), next(), next(), next(), next(), operation),
        7 => <Dispatch as Fused>::fused_7(
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            operation,
        ),
        _ => unreachable!("no operation has {N} inputs"),
    })
}

/// An operation of so many tensors, for the backends that have them.
#[allow(
    clippy::too_many_arguments,
    reason = "burn routes functions of single tensors, not of lists"
)]
#[backend_extension(Flex, Autodiff)]
trait Fused: Backend {
    fn fused_1(a: FloatTensor<Self>, operation: Arc<dyn Operation>) -> FloatTensor<Self>;
    fn fused_2(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        operation: Arc<dyn Operation>,
    ) -> FloatTensor<Self>;
    fn fused_3(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        operation: Arc<dyn Operation>,
    ) -> FloatTensor<Self>;
    fn fused_4(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        operation: Arc<dyn Operation>,
    ) -> FloatTensor<Self>;
    fn fused_5(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        operation: Arc<dyn Operation>,
    ) -> FloatTensor<Self>;
    fn fused_7(
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

impl Fused for Flex {
    forward_to! { untracked =>
        fused_1(a);
        fused_2(a, b);
        fused_3(a, b, c);
        fused_4(a, b, c, d);
        fused_5(a, b, c, d, e);
        fused_7(a, b, c, d, e, f, g);
    }
}

fn untracked<const N: usize>(inputs: [FlexTensor; N], operation: Arc<dyn Operation>) -> FlexTensor {
    operation.forward(inputs.into(), false).0
}

impl<C: CheckpointStrategy> Fused for Autodiff<Flex, C> {
    forward_to! { tracked::<C, _> =>
        fused_1(a);
        fused_2(a, b);
        fused_3(a, b, c);
        fused_4(a, b, c, d);
        fused_5(a, b, c, d, e);
        fused_7(a, b, c, d, e, f, g);
    }
}

fn tracked<C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<Flex, C>>; N],
    operation: Arc<dyn Operation>,
) -> FloatTensor<Autodiff<Flex, C>> {
    #[derive(Debug)]
    struct Node;

    impl<const N: usize> Backward<Flex, N> for Node {
        type State = (Arc<dyn Operation>, Vec<FlexTensor>);

        fn backward(
            self,
            ops: Ops<Self::State, N>,
            gradients: &mut Gradients,
            _: &mut Checkpointer,
        ) {
            let (operation, kept) = ops.state;
            let gradient = gradients.consume::<Flex>(&ops.node);
            let parts = operation.backward(kept, gradient);
            assert_eq!(parts.len(), N, "{operation:?}: a gradient for each input");
            for (parent, part) in ops.parents.into_iter().zip(parts) {
                if let Some((parent, part)) = parent.zip(part) {
                    gradients.register::<Flex>(parent.id, part);
                }
            }
        }
    }

    let nodes = inputs
        .each_ref()
        .map(<FloatTensor<Autodiff<Flex, C>>>::node);
    let inputs = inputs
        .into_iter()
        .map(<FloatTensor<Autodiff<Flex, C>>>::into_primitive);
    let node = Node.prepare::<C>(nodes).compute_bound().stateful();
    match node {
        OpsKind::Tracked(prep) => {
            let (output, kept) = operation.forward(inputs.collect(), true);
            prep.finish((operation, kept), output)
        }
        OpsKind::UnTracked(prep) => {
            let (output, _) = operation.forward(inputs.collect(), false);
            prep.finish(output)
        }
    }
}
