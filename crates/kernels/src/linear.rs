//! The linear layer, and the sums of a matrix's columns, which are the gradient of a bias here and in the feed-forward
//! layer.

use std::marker::PhantomData;

use burn::backend::DispatchTensor;
use burn::backend::flex::FlexTensor;
use burn::tensor::{Tensor, module};

use crate::flex::{self, from_vec, matrix, values};
use crate::gemm::{
    Bf16x2, Element, PackSource, Packed, PackedRef, Role, RowMajor, Transposed, WIDTH, n_panels, product,
};
use crate::memory::bytes;
use crate::op::{FlexOperation, Wanted, apply_on_flex};
use crate::tasks::each;
use crate::{MatmulPrecision, Operations, TrainingMemory};

/// `x weight + bias` over the last dimension. The matrix product and its gradients are computed in `precision`.
///
/// # Shapes
/// `x: [.., K]`, `weight: [K, M]`, `bias: [M]` -> `[.., M]`
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    precision: MatmulPrecision,
) -> Tensor<D> {
    if !flex::is_for(&x) {
        return composed_linear(x, weight, bias);
    }
    let mut inputs = vec![x.into_dispatch(), weight.into_dispatch()];
    inputs.extend(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(fused_linear(inputs, precision))
}

/// One product of all rows. Burn 0.22 multiplies the rows `[B, T]` of a batch one by one if T is a multiple of 32: B small
/// products, each of which reads the weight.
pub(crate) fn composed_linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let (mut shape, [_, m]) = (x.dims(), weight.dims());
    shape[D - 1] = m;
    module::linear(rows(x), weight, bias).reshape(shape)
}

/// All rows of a tensor, one below the other: `[.., K]` -> `[N, K]`.
pub(crate) fn rows<const D: usize>(x: Tensor<D>) -> Tensor<2> {
    let shape = x.dims();
    x.reshape([shape[..D - 1].iter().product(), shape[D - 1]])
}

/// The memory of [`linear`] in training: for `rows` `[B, T]` and a weight `[K, M]`. The backward pass holds the gradient
/// of the weight.
pub fn training_memory(operations: Operations, [b, t]: [usize; 2], [k, m]: [usize; 2]) -> TrainingMemory {
    let (x, out, weight) = (bytes([b, t, k]), bytes([b, t, m]), bytes([k, m]));
    let saved = match operations {
        Operations::Fused => out,
        Operations::Composed => 0.0, // the next operation copies the output
    };
    TrainingMemory { saved, temporary: x + out + weight }
}

/// Not generic, so that the matrix products are compiled in this crate, in the codegen unit of the functions that they
/// inline.
fn fused_linear(inputs: Vec<DispatchTensor>, precision: MatmulPrecision) -> DispatchTensor {
    let has_bias = inputs.len() > BIAS;
    match precision {
        MatmulPrecision::F32 => apply_on_flex(inputs, Linear::<f32> { has_bias, elements: PhantomData }),
        MatmulPrecision::Bf16 => apply_on_flex(inputs, Linear::<Bf16x2> { has_bias, elements: PhantomData }),
    }
}

/// Inputs: x, weight, and bias if there is one. `E` is the element type of the products.
#[derive(Debug)]
struct Linear<E> {
    has_bias: bool,
    elements: PhantomData<E>,
}

const X: usize = 0;
pub(crate) const WEIGHT: usize = 1;
const BIAS: usize = 2;

impl<E: Element> FlexOperation for Linear<E> {
    /// Saves the weight, and x if the weight is not frozen.
    fn forward(&self, mut inputs: Vec<FlexTensor>, wanted: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let bias = inputs.get(BIAS).map_or(&[][..], values);
        let out = forward::<E>(&inputs[X], &matrix(&inputs[WEIGHT]), bias);
        let x = inputs.remove(X);
        inputs.truncate(1);
        inputs.extend(wanted.of(WEIGHT).then_some(x));
        (out, inputs)
    }

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor, wanted: Wanted) -> Vec<Option<FlexTensor>> {
        let wanted = [X, WEIGHT, BIAS].map(|input| wanted.of(input));
        let mut gradients = backward::<E>(&gradient, saved.get(1), &matrix(&saved[0]).transposed(), wanted);
        gradients.truncate(if self.has_bias { 3 } else { 2 });
        gradients
    }
}

/// `x weight + bias`; the bias may be empty.
pub(crate) fn forward<E: Element>(x: &FlexTensor, weight: &dyn PackSource<E>, bias: &[f32]) -> FlexTensor {
    let mut shape = x.layout().shape().clone();
    let last = shape.num_dims() - 1;
    shape[last] = weight.shape()[1];
    let [x] = Packed::<E>::all([(matrix(x), Role::Left)]);
    from_vec(product(RowMajor(x.left()), weight, bias), shape)
}

/// The wanted gradients of [`forward`] with respect to x, the weight and the bias. That of the weight needs x.
pub(crate) fn backward<E: Element>(
    gradient: &FlexTensor,
    x: Option<&FlexTensor>,
    weight_transposed: &dyn PackSource<E>,
    [of_x, of_weight, of_bias]: [bool; 3],
) -> Vec<Option<FlexTensor>> {
    let role = if of_weight || of_bias { Role::Both } else { Role::Left };
    let x = x.map(|x| (matrix(x), Role::Right));
    let packed = Packed::<E>::all_of(&std::iter::once((matrix(gradient), role)).chain(x).collect::<Vec<_>>());
    let [grad_out, x @ ..] = &packed[..] else { unreachable!("at least the gradient was packed") };
    let grad_x = || of_x.then(|| product(RowMajor(grad_out.left()), weight_transposed, &[]));
    let grad_weight = || x.first().map(|x| product(Transposed(x.right()), grad_out.right(), &[]));
    let grad_bias = || of_bias.then(|| column_sums(grad_out.right()));
    let (grad_x, (grad_weight, grad_bias)) = rayon::join(grad_x, || rayon::join(grad_weight, grad_bias));
    let [n_outputs, n_inputs] = weight_transposed.shape();
    let mut shape = gradient.layout().shape().clone();
    let last = shape.num_dims() - 1;
    shape[last] = n_inputs;
    vec![
        grad_x.map(|grad_x| from_vec(grad_x, shape)),
        grad_weight.map(|grad_weight| from_vec(grad_weight, [n_inputs, n_outputs])),
        grad_bias.map(|grad_bias| from_vec(grad_bias, [n_outputs])),
    ]
}

/// The sum of each column of a matrix packed as a right operand.
pub(crate) fn column_sums<E: Element>(x: PackedRef<'_, E>) -> Vec<f32> {
    let mut sums = vec![0.0; n_panels(x.n_columns()) * WIDTH];
    each(
        x.n_rows() * x.n_columns(),
        sums.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate(),
        #[inline(always)]
        move |(panel, sums)| {
            for row in x.panel(panel) {
                E::add_to(row, sums);
            }
        },
    );
    sums.truncate(x.n_columns());
    sums
}
