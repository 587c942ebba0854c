//! The feed-forward layer as one operation: what is between its two projections never leaves the cache, and of
//! it only the input of the activation is kept.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};
use pulp::{Simd, WithSimd};

use super::activation::Activation;
use super::linear::{column_sums, matrix, project, rows_per_task, transposed, weight_gradient};
use super::operation::{Operation, apply};
use super::product::{Matrix, MatrixMut, multiply};
use super::{run, shaped, tensor, values};
use crate::kernels;
use crate::kernels::mlp::{Layer, Mlp};

/// As [`crate::kernels::mlp`], of f32 on flex.
pub(in crate::kernels) fn mlp(x: Tensor<3>, mlp: Mlp) -> Tensor<3> {
    let Mlp {
        expand,
        activation,
        contract,
    } = mlp;
    let biased = expand.bias.is_some();
    let (activation, gate) = match activation {
        kernels::mlp::Activation::Gelu => (Activation::Gelu, None),
        kernels::mlp::Activation::ReluSquared => (Activation::ReluSquared, None),
        kernels::mlp::Activation::Swiglu(gate) => (Activation::Swiglu, Some(gate)),
    };
    let operation = FeedForward { activation, biased };
    let part = |layer: Layer| {
        let bias = layer.bias.map(Tensor::into_dispatch);
        (layer.weight.into_dispatch(), bias)
    };
    let (x, expand, contract) = (x.into_dispatch(), part(expand), part(contract));
    match (expand, contract, gate.map(part)) {
        ((expand, None), (contract, None), None) => apply([x, expand, contract], operation),
        ((expand, Some(b)), (contract, Some(c)), None) => {
            apply([x, expand, contract, b, c], operation)
        }
        ((expand, None), (contract, None), Some((gate, None))) => {
            apply([x, expand, contract, gate], operation)
        }
        ((expand, Some(b)), (contract, Some(c)), Some((gate, Some(g)))) => {
            apply([x, expand, contract, gate, b, c, g], operation)
        }
        _ => unreachable!("all projections have a bias, or none has"),
    }
}

/// Inputs: x; the weights of expand, contract, and gate where there is one; then their biases if `biased`.
#[derive(Debug)]
struct FeedForward {
    activation: Activation,
    biased: bool,
}

/// What all tasks of one pass read.
#[derive(Clone, Copy)]
struct Weights<'a> {
    activation: Activation,
    /// `[C, F]`
    expand: Matrix<'a>,
    /// `[C, F]`
    gate: Option<Matrix<'a>>,
    /// `[F, C]`
    contract: Matrix<'a>,
    /// Of expand and gate `[F]`, and of contract `[C]`; empty where there are none.
    biases: [&'a [f32]; 3],
}

impl FeedForward {
    fn is_gated(&self) -> bool {
        self.activation == Activation::Swiglu
    }

    /// How many weights there are.
    fn n_weights(&self) -> usize {
        if self.is_gated() { 3 } else { 2 }
    }

    fn weights<'a>(&self, inputs: &'a [FlexTensor]) -> Weights<'a> {
        let weight = |i: usize| Matrix::new(values(&inputs[1 + i]), matrix(&inputs[1 + i]));
        let bias = |i: usize| match self.biased {
            true => values(&inputs[1 + self.n_weights() + i]),
            false => &[],
        };
        let gated = self.is_gated();
        Weights {
            activation: self.activation,
            expand: weight(0),
            gate: gated.then(|| weight(2)),
            contract: weight(1),
            biases: [bias(0), if gated { bias(2) } else { &[] }, bias(1)],
        }
    }
}

impl Operation for FeedForward {
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let mut inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let weights = self.weights(&inputs);
        let [c, f] = matrix(&inputs[1]);
        let x = values(&inputs[0]);
        let n = x.len() / c;
        let mut out = vec![0.0; n * c];
        let rows = rows_per_task(c * f);
        let size = |wanted: bool| if wanted { n * f } else { 0 };
        let (mut hidden, mut gate) = (
            vec![0.0; size(keep)],
            vec![0.0; size(keep && self.is_gated())],
        );
        let chunks = out.chunks_mut(rows * c).zip(x.chunks(rows * c));
        let kept = parts(&mut hidden, rows * f).zip(parts(&mut gate, rows * f));
        run(
            n * f,
            chunks.zip(kept).map(|((out, x), kept)| Forward {
                weights,
                x: Matrix::new(x, [x.len() / c, c]),
                out,
                kept: [kept.0, kept.1],
            }),
        );
        let out = tensor(out, &inputs[0]);
        if !keep {
            return (out, Vec::new());
        }
        inputs.push(shaped(hidden, Shape::new([n, f])));
        if self.is_gated() {
            inputs.push(shaped(gate, Shape::new([n, f])));
        }
        (out, inputs)
    }

    fn backward(&self, mut kept: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let [c, f] = matrix(&kept[1]);
        let gate = self.is_gated().then(|| kept.pop().expect("it was kept"));
        let hidden = kept.pop().expect("it was kept");
        let gradient = gradient.to_contiguous();
        let (x, of_out) = (values(&kept[0]), values(&gradient));
        let n = x.len() / c;
        let turned = |i: usize, shape| transposed(values(&kept[i]), shape);
        let (expand, contract) = (turned(1, [c, f]), turned(2, [f, c]));
        let gate_weight = gate.as_ref().map(|_| turned(3, [c, f]));
        let weights = Weights {
            activation: self.activation,
            expand: Matrix::new(&expand, [f, c]),
            gate: gate_weight
                .as_ref()
                .map(|weight| Matrix::new(weight, [f, c])),
            contract: Matrix::new(&contract, [c, f]),
            biases: [&[]; 3],
        };
        let mut of_x = vec![0.0; n * c];
        // Of the activation's output, to be multiplied with; and of its inputs.
        let (mut active, mut of_hidden) = (vec![0.0; n * f], vec![0.0; n * f]);
        let mut of_gate = vec![0.0; if self.is_gated() { n * f } else { 0 }];
        let rows = rows_per_task(c * f);
        let inner = values(&hidden).chunks(rows * f);
        let outer = of_x.chunks_mut(rows * c).zip(of_out.chunks(rows * c));
        let gates = gate.as_ref().map_or(&[][..], values);
        let buffers = active
            .chunks_mut(rows * f)
            .zip(of_hidden.chunks_mut(rows * f))
            .zip(parts(&mut of_gate, rows * f));
        run(
            n * f,
            inner.zip(outer).zip(buffers).enumerate().map(
                |(chunk, ((hidden, (of_x, of_out)), ((active, of_hidden), of_gate)))| {
                    let first = (chunk * rows * f).min(gates.len());
                    BackwardPass {
                        weights,
                        hidden,
                        gate: &gates[first..][..of_gate.len()],
                        of_out: Matrix::new(of_out, [of_out.len() / c, c]),
                        of_x,
                        active,
                        of_hidden,
                        of_gate,
                    }
                },
            ),
        );
        let weight_of = |x: &[f32], gradient: &[f32], like: &FlexTensor, [k, m]: [usize; 2]| {
            let mut out = vec![0.0; k * m];
            weight_gradient(x, gradient, &mut out, [n, k, m]);
            Some(tensor(out, like))
        };
        let mut parts = vec![
            Some(tensor(of_x, &kept[0])),
            weight_of(x, &of_hidden, &kept[1], [c, f]),
            weight_of(&active, of_out, &kept[2], [f, c]),
        ];
        if self.is_gated() {
            parts.push(weight_of(x, &of_gate, &kept[3], [c, f]));
        }
        if self.biased {
            let bias = |sums: Vec<f32>| {
                let shape = Shape::new([sums.len()]);
                Some(shaped(sums, shape))
            };
            parts.push(bias(column_sums(&of_hidden, f)));
            parts.push(bias(column_sums(of_out, c)));
            if self.is_gated() {
                parts.push(bias(column_sums(&of_gate, f)));
            }
        }
        parts
    }
}

/// A slice in parts of `size`; of an empty one, as many empty parts as are asked for.
fn parts(values: &mut [f32], size: usize) -> impl Iterator<Item = &mut [f32]> {
    let endless = values.is_empty();
    values
        .chunks_mut(size)
        .chain(std::iter::repeat_with(Default::default).take(if endless { usize::MAX } else { 0 }))
}

/// Some rows.
struct Forward<'a> {
    weights: Weights<'a>,
    /// `[n, C]`
    x: Matrix<'a>,
    /// `[n, C]`
    out: &'a mut [f32],
    /// The activation's input and the gate's, `[n, F]`, if they are to be kept; else empty.
    kept: [&'a mut [f32]; 2],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, _: S) {
        let Weights {
            activation,
            expand,
            gate,
            contract,
            biases: [expand_bias, gate_bias, contract_bias],
        } = self.weights;
        let (n, f) = (self.x.n_rows(), contract.n_rows());
        let [kept_hidden, kept_gate] = self.kept;
        let (mut hidden, mut gated) = (Vec::new(), Vec::new());
        let hidden = buffer(kept_hidden, &mut hidden, n * f);
        project(self.x, expand, expand_bias, hidden);
        let gated: &[f32] = match gate {
            None => &[],
            Some(weight) => {
                let gated = buffer(kept_gate, &mut gated, n * f);
                project(self.x, weight, gate_bias, gated);
                gated
            }
        };
        let mut active = vec![0.0; n * f];
        activation.forward(hidden, gated, &mut active);
        project(
            Matrix::new(&active, [n, f]),
            contract,
            contract_bias,
            self.out,
        );
    }
}

/// Where numbers are kept, or `own` if they are not.
fn buffer<'a>(kept: &'a mut [f32], own: &'a mut Vec<f32>, size: usize) -> &'a mut [f32] {
    if kept.is_empty() {
        own.resize(size, 0.0);
        own
    } else {
        kept
    }
}

/// As [`Forward`], the other way; the weights' rows are columns.
struct BackwardPass<'a> {
    weights: Weights<'a>,
    /// `[n, F]`
    hidden: &'a [f32],
    /// `[n, F]`; empty where there is none.
    gate: &'a [f32],
    /// `[n, C]`
    of_out: Matrix<'a>,
    /// `[n, C]`
    of_x: &'a mut [f32],
    /// The activation's output again, `[n, F]`.
    active: &'a mut [f32],
    /// `[n, F]`
    of_hidden: &'a mut [f32],
    /// `[n, F]`; empty where there is no gate.
    of_gate: &'a mut [f32],
}

impl WithSimd for BackwardPass<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, _: S) {
        let Weights {
            activation,
            expand,
            gate: gate_weight,
            contract,
            ..
        } = self.weights;
        let (n, f) = (self.of_out.n_rows(), contract.n_columns());
        let of_active = MatrixMut::new(self.of_hidden, [n, f]);
        multiply(of_active, self.of_out, contract, false);
        activation.backward(
            self.hidden,
            self.gate,
            self.active,
            self.of_hidden,
            self.of_gate,
        );
        let c = self.of_out.n_columns();
        multiply(
            MatrixMut::new(self.of_x, [n, c]),
            Matrix::new(self.of_hidden, [n, f]),
            expand,
            false,
        );
        if let Some(weight) = gate_weight {
            let of_x = MatrixMut::new(self.of_x, [n, c]);
            multiply(of_x, Matrix::new(self.of_gate, [n, f]), weight, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, constant, leaf, numbers, with_threads};
    use super::*;
    use crate::kernels::mlp::composed_mlp;

    type Operation = fn(Tensor<3>, Mlp) -> Tensor<3>;

    /// Output and gradients.
    fn run_with(
        f: Operation,
        [b, t, c, d_ff]: [usize; 4],
        activation: Activation,
        biased: bool,
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
            Activation::Gelu => kernels::mlp::Activation::Gelu,
            Activation::ReluSquared => kernels::mlp::Activation::ReluSquared,
            Activation::Swiglu => {
                layers.push(gate.clone());
                kernels::mlp::Activation::Swiglu(gate)
            }
        };
        let mlp = Mlp {
            expand,
            activation,
            contract,
        };
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

    const ACTIVATIONS: [Activation; 3] = [
        Activation::Gelu,
        Activation::ReluSquared,
        Activation::Swiglu,
    ];

    #[test]
    fn equals_the_composed_operation_and_its_gradients() {
        for shape in [
            [1, 1, 1, 1],
            [2, 3, 5, 7],
            [12, 64, 64, 256],
            [1, 200, 33, 65],
        ] {
            for activation in ACTIVATIONS {
                for biased in [false, true] {
                    let [got, want] =
                        [mlp, composed_mlp].map(|f| run_with(f, shape, activation, biased));
                    let what = format!("{shape:?}, {activation:?}, bias {biased}");
                    assert_close(&got, &want, &what);
                }
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        for activation in ACTIVATIONS {
            let mut out = [0.0; 2];
            activation.forward(&[f32::NAN, 1.0], &[1.0, f32::NAN], &mut out);
            assert!(out[0].is_nan() && out[1].is_nan() == (activation == Activation::Swiglu));
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        for activation in ACTIVATIONS {
            let bytes = |threads| {
                let got = with_threads(threads, || {
                    run_with(mlp, [7, 91, 33, 120], activation, true)
                });
                got.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bytes(1), bytes(2));
        }
    }
}
