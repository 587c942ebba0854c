//! The feed-forward layer as one operation.
//!
//! The activation and its derivative are computed together, once, from sums that are still in registers: both are
//! made of the same exponential. What lies between the two projections stays in panels.

#![allow(unsafe_code, reason = "each block says why it is sound")]

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use burn::backend::DispatchTensor;
use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use super::linear::{column_sums, matrix};
use crate::MatmulPrecision;
use crate::flex::{from_vec, tensor, values};
use crate::gemm::{
    Activate, ActivationKind, Bf16x2, Element, Matrix, MatrixMut, Mode, Packed, PackedRef, Plain, Role, Scratch,
    Slopes, Store, Transposed, WIDTH, as_elements, multiply_all, n_panels, part_of, product, store,
};
use crate::mlp::{Layer, Mlp};
use crate::op::{FlexOperation, apply_on_flex};
use crate::tasks::{assume_init, uninit};

/// As [`crate::mlp`], of f32 on flex.
pub(crate) fn mlp(x: Tensor<3>, mlp: Mlp) -> Tensor<3> {
    let Mlp { expand, activation, contract, precision } = mlp;
    let has_bias = expand.bias.is_some();
    let (activation, gate) = match activation {
        crate::mlp::Activation::Gelu => (ActivationKind::Gelu, None),
        crate::mlp::Activation::ReluSquared => (ActivationKind::ReluSquared, None),
        crate::mlp::Activation::Swiglu(gate) => (ActivationKind::Swiglu, Some(gate)),
    };
    let layers = [expand, contract].into_iter().chain(gate);
    let parts = layers.map(|Layer { weight, bias }| {
        assert_eq!(bias.is_some(), has_bias, "all projections have a bias, or none has");
        (weight.into_dispatch(), bias.map(Tensor::into_dispatch))
    });
    let (weights, biases): (Vec<_>, Vec<_>) = parts.unzip();
    let mut inputs = vec![x.into_dispatch()];
    inputs.extend(weights.into_iter().chain(biases.into_iter().flatten()));
    match precision {
        MatmulPrecision::F32 => feed_forward::<f32>(inputs, activation, has_bias),
        MatmulPrecision::Bf16 => feed_forward::<Bf16x2>(inputs, activation, has_bias),
    }
}

fn feed_forward<E: Element>(inputs: Vec<DispatchTensor>, activation: ActivationKind, has_bias: bool) -> Tensor<3> {
    fn array<const N: usize>(inputs: Vec<DispatchTensor>) -> [DispatchTensor; N] {
        inputs.try_into().expect("N inputs")
    }
    let operation = FeedForward::<E>::new(activation, has_bias);
    match (operation.is_gated(), has_bias) {
        (false, false) => apply_on_flex(array::<3>(inputs), operation),
        (true, false) => apply_on_flex(array::<4>(inputs), operation),
        (false, true) => apply_on_flex(array::<5>(inputs), operation),
        (true, true) => apply_on_flex(array::<7>(inputs), operation),
    }
}

/// Inputs: x; the weights of expand, contract, and gate where there is one; then their biases if they have them.
///
/// Multiplies elements of `E`.
#[derive(Debug)]
struct FeedForward<E> {
    activation: ActivationKind,
    has_bias: bool,
    elements: PhantomData<E>,
}

impl<E: Element> FeedForward<E> {
    fn new(activation: ActivationKind, has_bias: bool) -> Self {
        Self { activation, has_bias, elements: PhantomData }
    }

    fn is_gated(&self) -> bool {
        self.activation == ActivationKind::Swiglu
    }

    /// How many weights there are.
    fn n_weights(&self) -> usize {
        if self.is_gated() { 3 } else { 2 }
    }

    /// The bias of a weight; an empty one is none.
    fn bias<'a>(&self, inputs: &'a [FlexTensor], weight: usize) -> &'a [f32] {
        match self.has_bias {
            true => values(&inputs[1 + self.n_weights() + weight]),
            false => &[],
        }
    }
}

/// Which of the weights is which.
const EXPAND: usize = 0;
const CONTRACT: usize = 1;
const GATE: usize = 2;

impl<E: Element> FlexOperation for FeedForward<E> {
    /// Keeps the inputs, and in panels what the activation gave, and its derivatives by what went into it.
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let mut inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let [c, f] = matrix(&inputs[1]);
        let n = values(&inputs[0]).len() / c;
        let mut matrices = vec![(Matrix::new(values(&inputs[0]), [n, c]), Role::Left)];
        let weights = inputs[1..=self.n_weights()].iter();
        matrices.extend(weights.map(|weight| (Matrix::new(values(weight), matrix(weight)), Role::Right)));
        let packed = Packed::<E>::all_of(&matrices);
        let x = Plain(packed[0].left());
        let weight = |i: usize| packed[1 + i].right();
        let shape = [n, f];
        let gated = self.is_gated();
        let mut active = uninit(MatrixMut::<E>::n_packed(shape));
        let [mut slope, mut gate] = [keep, gated].map(|is_kept| {
            let size = MatrixMut::<f32>::n_packed(shape);
            uninit(if is_kept { size } else { 0 })
        });
        if gated {
            // SAFETY: it is written before it is read.
            let out = unsafe { MatrixMut::packed_uninit(&mut gate, shape) };
            let bias = self.bias(&inputs, GATE);
            multiply_all(x, weight(GATE), |[rows, columns]| {
                // SAFETY: blocks do not overlap.
                let out = unsafe { out.block(rows, columns.clone()) };
                let bias = part_of(bias, columns);
                Store { mode: Mode::Put, out, bias }
            });
        }
        {
            // SAFETY: all but the gate, which was written above, are only written.
            let (active, derivatives) = unsafe {
                let derivatives = [&mut slope, &mut gate];
                (
                    MatrixMut::<E>::packed_uninit(&mut active, shape),
                    derivatives.map(|out| MatrixMut::packed_uninit(out, shape)),
                )
            };
            let bias = self.bias(&inputs, EXPAND);
            // SAFETY: blocks do not overlap.
            multiply_all(x, weight(EXPAND), |[rows, columns]| Activate {
                activation: self.activation,
                bias: part_of(bias, columns.clone()),
                active: unsafe { active.block(rows.clone(), columns.clone()) },
                derivatives: derivatives.each_ref().map(|out| unsafe { out.block(rows.clone(), columns.clone()) }),
            });
        }
        let active = whole(active, [n, E::count(f)]);
        let [slope, gate] = [slope, gate].map(|saved| whole(saved, shape));
        let out = {
            let active = PackedRef::new(as_elements::<E>(&active), [n, E::count(f)]);
            product(Plain(active), weight(CONTRACT), self.bias(&inputs, CONTRACT))
        };
        drop(packed);
        let out = tensor(out, &inputs[0]);
        if !keep {
            return (out, Vec::new());
        }
        let saved = [Some(active), Some(slope), gated.then_some(gate)];
        inputs.extend(saved.into_iter().flatten().map(|saved| {
            let size = saved.len();
            from_vec(saved, Shape::new([size]))
        }));
        (out, inputs)
    }

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let [c, f] = matrix(&saved[1]);
        let gated = self.is_gated();
        let (inputs, saved) = saved.split_at(saved.len() - if gated { 3 } else { 2 });
        let gradient = gradient.to_contiguous();
        let n = values(&gradient).len() / c;
        let mut matrices = vec![
            (Matrix::new(values(&inputs[0]), [n, c]), Role::Right),
            (Matrix::new(values(&gradient), [n, c]), Role::Both),
        ];
        let weights = inputs[1..=self.n_weights()].iter();
        matrices.extend(weights.map(|weight| {
            let weight = Matrix::new(values(weight), matrix(weight));
            (weight.transposed(), Role::Right)
        }));
        let packed = Packed::<E>::all_of(&matrices);
        let [x, grad_out] = [&packed[0], &packed[1]];
        let weight = |i: usize| packed[2 + i].right();
        let shape = [n, f];
        let rows = MatrixMut::<E>::n_packed(shape) / WIDTH;
        let [mut grad_hidden, mut grad_gate] = [true, gated].map(|is| Scratch::<E>::new(if is { rows } else { 0 }));
        {
            let outs = [&mut grad_hidden, &mut grad_gate].map(|out| MatrixMut::packed(out, shape));
            let slopes = [Some(1), gated.then_some(2)]
                .map(|slope| slope.map(|slope| PackedRef::new(as_elements(values(&saved[slope])), shape)));
            multiply_all(Plain(grad_out.left()), weight(CONTRACT), |[rows, columns]| {
                Slopes {
                    slopes: slopes.map(|slope| slope.map(|x| x.rows(rows.clone()).columns(columns.clone()))),
                    // SAFETY: blocks do not overlap.
                    outs: outs.each_ref().map(|out| unsafe { out.block(rows.clone(), columns.clone()) }),
                }
            });
        }
        let left = |rows| PackedRef::new(rows, [n, E::count(f)]);
        let grad_hidden = Operand::new(left(&grad_hidden), f);
        let grad_gate = gated.then(|| Operand::new(left(&grad_gate), f));
        let active = Operand::new(left(as_elements(values(&saved[0]))), f);
        let grad_x = || {
            let mut grad_x = product(Plain(grad_hidden.left), weight(EXPAND), &[]);
            if let Some(grad_gate) = &grad_gate {
                let grad_x = MatrixMut::new(&mut grad_x, [n, c]);
                store(Mode::Add, grad_x, Plain(grad_gate.left), weight(GATE), &[]);
            }
            grad_x
        };
        let grad_bias = |grad_out: PackedRef<'_, E>| self.has_bias.then(|| column_sums(grad_out));
        // Of a weight and its bias.
        let grad_layer = |x: PackedRef<'_, E>, grad_out: PackedRef<'_, E>| {
            rayon::join(|| product(Transposed(x), grad_out, &[]), || grad_bias(grad_out))
        };
        let (grad_x, ((expand, contract), gate)) = rayon::join(grad_x, || {
            rayon::join(
                || {
                    rayon::join(
                        || grad_layer(x.right(), grad_hidden.right()),
                        || grad_layer(active.right(), grad_out.right()),
                    )
                },
                || {
                    let grad_gate = grad_gate.as_ref();
                    grad_gate.map(|grad_gate| grad_layer(x.right(), grad_gate.right()))
                },
            )
        });
        let layers = [Some(expand), Some(contract), gate].into_iter().flatten();
        let (weights, biases): (Vec<_>, Vec<_>) = layers.unzip();
        let parts = [grad_x].into_iter().chain(weights);
        let parts = parts.chain(biases.into_iter().flatten());
        let parts = parts.zip(inputs);
        parts.map(|(part, like)| Some(tensor(part, like))).collect()
    }
}

/// What was written to panels, with zeros behind the last column.
fn whole(mut panels: Vec<MaybeUninit<f32>>, [n_rows, n_columns]: [usize; 2]) -> Vec<f32> {
    let beyond = (n_panels(n_columns) - 1) * n_rows * WIDTH;
    let last = panels.get_mut(beyond..).unwrap_or_default(); // of no room, nothing
    for row in last.as_chunks_mut::<WIDTH>().0 {
        for x in row.iter_mut().skip((n_columns - 1) % WIDTH + 1) {
            x.write(0.0);
        }
    }
    // SAFETY: the products wrote all columns of every row, and the loop what is beyond the last one.
    unsafe { assume_init(panels) }
}

/// A matrix as the left and as the right one of products.
struct Operand<'a, E> {
    left: PackedRef<'a, E>,
    right: Option<Scratch<E>>,
    n_columns: usize,
}

impl<'a, E: Element> Operand<'a, E> {
    fn new(left: PackedRef<'a, E>, n_columns: usize) -> Self {
        let right = E::left_as_right(left, n_columns);
        Self { left, right, n_columns }
    }

    fn right(&self) -> PackedRef<'_, E> {
        match &self.right {
            None => self.left,
            Some(rows) => PackedRef::new(rows, [E::count(self.left.n_rows()), self.n_columns]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MatmulPrecision::{Bf16, F32};
    use crate::flex::testing::{assert_close, assert_within, constant, leaf, numbers, with_threads};
    use crate::mlp::composed_mlp;

    type Operation = fn(Tensor<3>, Mlp) -> Tensor<3>;

    /// Output and gradients.
    fn run_with(
        f: Operation,
        [b, t, c, d_ff]: [usize; 4],
        activation: ActivationKind,
        biased: bool,
        precision: MatmulPrecision,
    ) -> Vec<Vec<f32>> {
        let x = leaf([b, t, c], 1);
        let layer = |shape: [usize; 2], seed| Layer {
            weight: leaf(shape, seed),
            bias: biased.then(|| leaf([shape[1]], seed + 10)),
        };
        let (expand, contract) = (layer([c, d_ff], 2), layer([d_ff, c], 3));
        let gate = layer([c, d_ff], 4);
        let mut layers = vec![expand.clone(), contract.clone()];
        let activation = match activation {
            ActivationKind::Gelu => crate::mlp::Activation::Gelu,
            ActivationKind::ReluSquared => crate::mlp::Activation::ReluSquared,
            ActivationKind::Swiglu => {
                layers.push(gate.clone());
                crate::mlp::Activation::Swiglu(gate)
            }
        };
        let mlp = Mlp { expand, activation, contract, precision };
        let out = f(x.clone() * 0.3, mlp);
        let asked = constant(out.dims(), 5);
        let gradients = (out.clone() * asked).sum().backward();
        let mut got = vec![numbers(out)];
        got.push(numbers(x.grad(&gradients).expect("x has one")));
        for Layer { weight, bias } in layers {
            got.push(numbers(weight.grad(&gradients).expect("weights too")));
            got.extend(bias.map(|bias| numbers(bias.grad(&gradients).expect("biases too"))));
        }
        got
    }

    const ACTIVATIONS: [ActivationKind; 3] =
        [ActivationKind::Gelu, ActivationKind::ReluSquared, ActivationKind::Swiglu];

    /// Rows of the batch, positions, width, inner width.
    const SHAPES: [[usize; 4]; 4] = [[1, 1, 1, 1], [2, 3, 5, 7], [12, 64, 64, 256], [1, 200, 33, 65]];

    #[test]
    fn equals_the_composed_operation_and_its_gradients() {
        for shape in SHAPES {
            for activation in ACTIVATIONS {
                for biased in [false, true] {
                    let [got, want] = [mlp, composed_mlp].map(|f| run_with(f, shape, activation, biased, F32));
                    let what = format!("{shape:?}, {activation:?}, bias {biased}");
                    assert_close(&got, &want, &what);
                }
            }
        }
    }

    #[test]
    fn in_bfloat16_it_is_nearly_the_same() {
        for shape in SHAPES {
            for activation in ACTIVATIONS {
                let [got, want] = [Bf16, F32].map(|precision| run_with(mlp, shape, activation, true, precision));
                let what = format!("{shape:?}, {activation:?}");
                // A factor is off by 2^-9 of itself at most; a product of products has some, and a sum with a bias
                // may be smaller than its parts.
                assert_within(&got, &want, 1.0 / 32.0, &what);
                assert_ne!(got[0], want[0], "{what}");
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        for activation in ACTIVATIONS {
            let (mut x, mut gate) = ([f32::NAN, 1.0], [1.0, f32::NAN]);
            let mut out = [std::mem::MaybeUninit::uninit(); 2];
            let out = activation.forward::<pulp::Scalar>(&mut x, &mut gate, &mut out);
            assert!(out[0].is_nan() && out[1].is_nan() == (activation == ActivationKind::Swiglu));
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        for activation in ACTIVATIONS {
            let bytes = |threads| {
                let got = with_threads(threads, || {
                    let run = |precision| run_with(mlp, [7, 91, 33, 121], activation, true, precision);
                    [F32, Bf16].map(run)
                });
                let got = got.concat().concat();
                got.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bytes(1), bytes(2));
        }
    }
}
