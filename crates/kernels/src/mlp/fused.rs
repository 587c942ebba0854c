//! The feed-forward layer as one fused operation.
//!
//! The epilogue of the first projection computes the activation together with its derivative, which uses the same
//! exponential, from sums that are still in registers. The values between the two projections stay packed in panels.

#![allow(unsafe_code, reason = "each block says why it is sound")]

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use super::epilogue::{ActivationEpilogue, SlopeEpilogue};
use super::{Layer, Mlp};
use crate::MatmulPrecision;
use crate::activation::Activation;
use crate::flex::{from_vec, matrix, tensor, values};
use crate::gemm::{
    Bf16x2, Element, MatrixMut, Operand, Packed, PackedRef, Role, RowMajor, Scratch, StoreMode, Transposed, WIDTH,
    as_elements, multiply_all, n_panels, product, store,
};
use crate::linear::column_sums;
use crate::op::{FlexOperation, Wanted, apply_on_flex};
use crate::tasks::{assume_init, uninit};

/// [`crate::mlp`] for f32 on flex.
pub(super) fn mlp(x: Tensor<3>, mlp: Mlp) -> Tensor<3> {
    let Mlp { up, gate, down, activation, precision } = mlp;
    let has_bias = up.bias.is_some();
    let layers = [up, down].into_iter().chain(gate);
    let parts = layers.map(|Layer { weight, bias }| {
        assert_eq!(bias.is_some(), has_bias, "all projections have a bias, or none has");
        (weight.into_dispatch(), bias.map(Tensor::into_dispatch))
    });
    let (weights, biases): (Vec<_>, Vec<_>) = parts.unzip();
    let mut inputs = vec![x.into_dispatch()];
    inputs.extend(weights.into_iter().chain(biases.into_iter().flatten()));
    Tensor::from_dispatch(match precision {
        MatmulPrecision::F32 => {
            apply_on_flex(inputs, FeedForward::<f32> { activation, has_bias, elements: PhantomData })
        }
        MatmulPrecision::Bf16 => {
            apply_on_flex(inputs, FeedForward::<Bf16x2> { activation, has_bias, elements: PhantomData })
        }
    })
}

/// Inputs: x; the weights of the up and the down projection, and of the gate if there is one; then their biases, if
/// any.
///
/// `E` is the element type of the products.
#[derive(Debug)]
struct FeedForward<E> {
    activation: Activation,
    has_bias: bool,
    elements: PhantomData<E>,
}

impl<E: Element> FeedForward<E> {
    fn n_weights(&self) -> usize {
        if self.activation.is_gated() { 3 } else { 2 }
    }

    /// Whether only the gradient of x is wanted.
    fn is_frozen(&self, wanted: Wanted) -> bool {
        let n_inputs = 1 + self.n_weights() * if self.has_bias { 2 } else { 1 };
        (1..n_inputs).all(|input| !wanted.of(input))
    }

    /// The bias of a weight, given by its index; empty if there are no biases.
    fn bias<'a>(&self, inputs: &'a [FlexTensor], weight: usize) -> &'a [f32] {
        if self.has_bias { values(&inputs[1 + self.n_weights() + weight]) } else { &[] }
    }
}

/// The indices of the weights among the inputs, counted from the first weight.
const UP: usize = 0;
const DOWN: usize = 1;
const GATE: usize = 2;

impl<E: Element> FlexOperation for FeedForward<E> {
    /// Saves the inputs, and, packed in panels, the activations and the derivatives of the activation function. With
    /// frozen weights the activations are not needed, nor is x.
    fn forward(&self, mut inputs: Vec<FlexTensor>, wanted: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let save = wanted.any();
        let weights: Vec<_> = inputs[1..=self.n_weights()].iter().map(matrix).collect();
        let [packed] = Packed::<E>::all([(matrix(&inputs[0]), Role::Left)]);
        let x = RowMajor(packed.left());
        let shape @ [n, f] = [matrix(&inputs[0]).n_rows(), matrix(&inputs[1]).n_columns()];
        let is_gated = self.activation.is_gated();
        let mut active = uninit(MatrixMut::<E>::n_packed(shape));
        let [mut slope, mut gate] =
            [save, is_gated].map(|is_kept| uninit(if is_kept { MatrixMut::<f32>::n_packed(shape) } else { 0 }));
        if is_gated {
            // SAFETY: the gate is written before it is read.
            let out = unsafe { MatrixMut::packed_uninit(&mut gate, shape) };
            store(StoreMode::Overwrite, out, x, &weights[GATE], self.bias(&inputs, GATE));
        }
        // SAFETY: only the gate is read, which was written above.
        let epilogue = unsafe {
            ActivationEpilogue {
                activation: self.activation,
                bias: self.bias(&inputs, UP),
                active: MatrixMut::<E>::packed_uninit(&mut active, shape),
                derivatives: [&mut slope, &mut gate].map(|out| MatrixMut::packed_uninit(out, shape)),
            }
        };
        multiply_all(x, &weights[UP], epilogue);
        let active = whole(active, [n, E::count(f)]);
        let [slope, gate] = [slope, gate].map(|saved| whole(saved, shape));
        let out = {
            let active = PackedRef::new(as_elements::<E>(&active), [n, E::count(f)]);
            product(RowMajor(active), &weights[DOWN], self.bias(&inputs, DOWN))
        };
        drop(packed);
        let out = tensor(out, &inputs[0]);
        if !save {
            return (out, Vec::new());
        }
        let is_frozen = self.is_frozen(wanted);
        if is_frozen {
            inputs[0] = from_vec(Vec::new(), [0]);
        }
        let active = if is_frozen { Vec::new() } else { active };
        let saved = [Some(active), Some(slope), is_gated.then_some(gate)].into_iter().flatten();
        inputs.extend(saved.map(|saved| {
            let n = saved.len();
            from_vec(saved, [n])
        }));
        (out, inputs)
    }

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor, wanted: Wanted) -> Vec<Option<FlexTensor>> {
        let is_frozen = self.is_frozen(wanted);
        let is_gated = self.activation.is_gated();
        let (inputs, saved) = saved.split_at(saved.len() - if is_gated { 3 } else { 2 });
        let weights = inputs[1..=self.n_weights()].iter();
        let weights: Vec<_> = weights.map(|weight| matrix(weight).transposed()).collect();
        let grad_out = (matrix(&gradient), if is_frozen { Role::Left } else { Role::Both });
        let x = (!is_frozen).then(|| (matrix(&inputs[0]), Role::Right));
        let matrices: Vec<_> = std::iter::once(grad_out).chain(x).collect();
        let packed = Packed::<E>::all_of(&matrices);
        let grad_out = &packed[0];
        let [n, c] = [matrix(&gradient).n_rows(), matrix(&gradient).n_columns()];
        let shape @ [_, f] = [n, matrix(&inputs[1]).n_columns()];
        let rows = MatrixMut::<E>::n_packed(shape) / WIDTH;
        let [mut grad_hidden, mut grad_gate] = [true, is_gated].map(|is| Scratch::<E>::new(if is { rows } else { 0 }));
        let outs = [&mut grad_hidden, &mut grad_gate].map(|out| MatrixMut::packed(out, shape));
        let slopes = [Some(1), is_gated.then_some(2)]
            .map(|slope| slope.map(|slope| PackedRef::new(as_elements(values(&saved[slope])), shape)));
        multiply_all(RowMajor(grad_out.left()), &weights[DOWN], SlopeEpilogue { slopes, outs });
        let left = |rows| PackedRef::new(rows, [n, E::count(f)]);
        let grad_hidden = Operand::new(left(&grad_hidden), f);
        let grad_gate = is_gated.then(|| Operand::new(left(&grad_gate), f));
        let grad_x = || {
            let mut grad_x = product(RowMajor(grad_hidden.left()), &weights[UP], &[]);
            if let Some(grad_gate) = &grad_gate {
                let grad_x = MatrixMut::new(&mut grad_x, [n, c]);
                store(StoreMode::Accumulate, grad_x, RowMajor(grad_gate.left()), &weights[GATE], &[]);
            }
            tensor(grad_x, &gradient)
        };
        let Some(x) = packed.get(1) else {
            return std::iter::once(Some(grad_x())).chain(inputs[1..].iter().map(|_| None)).collect();
        };
        let active = Operand::new(left(as_elements(values(&saved[0]))), f);
        let grad_bias = |grad_out: PackedRef<'_, E>| self.has_bias.then(|| column_sums(grad_out));
        // The gradients of a weight and of its bias.
        let grad_layer = |(x, grad_out): (PackedRef<'_, E>, PackedRef<'_, E>)| {
            rayon::join(|| product(Transposed(x), grad_out, &[]), || grad_bias(grad_out))
        };
        let gate = grad_gate.as_ref().map(|grad_gate| (x.right(), grad_gate.right()));
        let layers = [(x.right(), grad_hidden.right()), (active.right(), grad_out.right())];
        let layers: Vec<_> = layers.into_iter().chain(gate).collect();
        let grad_layers = || layers.into_par_iter().with_max_len(1).map(grad_layer).unzip();
        let (grad_x, (weights, biases)): (_, (Vec<_>, Vec<_>)) = rayon::join(grad_x, grad_layers);
        let parts = weights.into_iter().chain(biases.into_iter().flatten());
        let parts = parts.zip(&inputs[1..]).map(|(part, like)| Some(tensor(part, like)));
        std::iter::once(Some(grad_x)).chain(parts).collect()
    }
}

/// Converts panels whose columns are all written to initialized ones, and zeroes the padding after the last column.
fn whole(mut panels: Vec<MaybeUninit<f32>>, [n_rows, n_columns]: [usize; 2]) -> Vec<f32> {
    let beyond = (n_panels(n_columns) - 1) * n_rows * WIDTH;
    let last = panels.get_mut(beyond..).unwrap_or_default(); // empty if there are no panels
    for row in last.as_chunks_mut::<WIDTH>().0 {
        for x in row.iter_mut().skip((n_columns - 1) % WIDTH + 1) {
            x.write(0.0);
        }
    }
    // SAFETY: the products wrote all columns of every row, and the loop wrote the padding.
    unsafe { assume_init(panels) }
}
