//! The feed-forward layer as one operation: rows go through it whole, while they are in the cache.
//!
//! The activation and its derivative are computed together, once: both are made of the same exponential.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};
use pulp::{Simd, WithSimd};

use super::activation::Activation;
use super::linear::{column_sums, matrix, project, rows_per_task, transposed, weight_gradient};
use super::operation::{Operation, apply};
use super::product::{self, Matrix, MatrixMut, multiply};
use super::{assume_written, room, run, shaped, tensor, values, written};
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
    /// Keeps the inputs, what the activation gave, and its derivatives by what went into it.
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let mut inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let weights = self.weights(&inputs);
        let [c, f] = matrix(&inputs[1]);
        let x = values(&inputs[0]);
        let n = x.len() / c;
        let rows = rows_per_task(c * f);
        let gated = self.is_gated();
        let mut kept = [keep, keep, keep && gated].map(|keep| room(if keep { n * f } else { 0 }));
        let fill = |out: &mut [MaybeUninit<f32>]| {
            let [active, slope, gate] = kept.each_mut().map(|kept| parts(kept, rows * f));
            let chunks = out.chunks_mut(rows * c).zip(x.chunks(rows * c));
            run(
                n * f,
                chunks.zip(active.zip(slope).zip(gate)).map(
                    |((out, x), ((active, slope), gate))| Forward {
                        weights,
                        x: Matrix::new(x, [x.len() / c, c]),
                        out,
                        kept: [active, slope, gate],
                    },
                ),
            );
        };
        #[allow(unsafe_code)]
        // SAFETY: there are as many chunks of rows of `x` as of the output, and each task writes its own.
        let out = unsafe { written(n * c, fill) };
        let out = tensor(out, &inputs[0]);
        if !keep {
            return (out, Vec::new());
        }
        let n_kept = if gated { 3 } else { 2 };
        for kept in kept.into_iter().take(n_kept) {
            #[allow(unsafe_code)]
            // SAFETY: as the output's, these have as many chunks as there are tasks.
            let kept = unsafe { assume_written(kept) };
            inputs.push(shaped(kept, Shape::new([n, f])));
        }
        (out, inputs)
    }

    fn backward(&self, kept: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let [c, f] = matrix(&kept[1]);
        let gated = self.is_gated();
        let (inputs, kept) = kept.split_at(kept.len() - if gated { 3 } else { 2 });
        let gradient = gradient.to_contiguous();
        let (x, of_out) = (values(&inputs[0]), values(&gradient));
        let n = x.len() / c;
        let turned = |i: usize, shape| transposed(values(&inputs[i]), shape);
        let (expand, contract) = (turned(1, [c, f]), turned(2, [f, c]));
        let gate_weight = gated.then(|| turned(3, [c, f]));
        let weights = Weights {
            activation: self.activation,
            expand: Matrix::new(&expand, [f, c]),
            gate: gate_weight
                .as_ref()
                .map(|weight| Matrix::new(weight, [f, c])),
            contract: Matrix::new(&contract, [c, f]),
            biases: [&[]; 3],
        };
        let rows = rows_per_task(c * f);
        let mut of_hidden = room(n * f);
        let mut of_gate = room(if gated { n * f } else { 0 });
        let slopes = values(&kept[1]).chunks(rows * f);
        let gate_slopes = kept.get(2).map_or(&[][..], values);
        let fill = |of_x: &mut [MaybeUninit<f32>]| {
            let outer = of_x.chunks_mut(rows * c).zip(of_out.chunks(rows * c));
            let inner = of_hidden.chunks_mut(rows * f).zip(slopes);
            let of_gates = parts(&mut of_gate, rows * f);
            run(
                n * f,
                outer.zip(inner).zip(of_gates).enumerate().map(
                    |(chunk, (((of_x, of_out), (of_hidden, slope)), of_gate))| {
                        let first = (chunk * rows * f).min(gate_slopes.len());
                        BackwardPass {
                            weights,
                            of_out: Matrix::new(of_out, [of_out.len() / c, c]),
                            slope,
                            gate_slope: &gate_slopes[first..][..of_gate.len()],
                            of_x,
                            of_hidden,
                            of_gate,
                        }
                    },
                ),
            );
        };
        #[allow(unsafe_code)]
        // SAFETY: there are as many chunks of rows of the gradient as of each of these, and each task writes
        // its own.
        let (of_x, of_hidden, of_gate) = unsafe {
            let of_x = written(n * c, fill);
            (of_x, assume_written(of_hidden), assume_written(of_gate))
        };
        let weight_of = |x: &[f32], gradient: &[f32], like: &FlexTensor, [k, m]: [usize; 2]| {
            Some(tensor(weight_gradient(x, gradient, [n, k, m]), like))
        };
        let mut parts = vec![
            Some(tensor(of_x, &inputs[0])),
            weight_of(x, &of_hidden, &inputs[1], [c, f]),
            weight_of(values(&kept[0]), of_out, &inputs[2], [f, c]),
        ];
        if gated {
            parts.push(weight_of(x, &of_gate, &inputs[3], [c, f]));
        }
        if self.biased {
            let bias = |sums: Vec<f32>| {
                let shape = Shape::new([sums.len()]);
                Some(shaped(sums, shape))
            };
            parts.push(bias(column_sums(&of_hidden, f)));
            parts.push(bias(column_sums(of_out, c)));
            if gated {
                parts.push(bias(column_sums(&of_gate, f)));
            }
        }
        parts
    }
}

/// A slice in parts of `size`; of an empty one, as many empty parts as are asked for.
fn parts<T>(values: &mut [T], size: usize) -> impl Iterator<Item = &mut [T]> {
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
    out: &'a mut [MaybeUninit<f32>],
    /// The activation's output, and its derivatives by its input and by the gate, `[n, F]`, if they are to be
    /// kept; else empty.
    kept: [&'a mut [MaybeUninit<f32>]; 3],
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
        let [active, slope, gate_slope] = self.kept;
        let mut own = [Vec::new(), Vec::new(), Vec::new()];
        let [own_active, own_slope, own_gate] = &mut own;
        let slope = project(
            self.x,
            expand,
            expand_bias,
            kept_or(slope, own_slope, n * f),
        );
        let gate_slope: &mut [f32] = match gate {
            None => &mut [],
            Some(weight) => {
                let gate_slope = kept_or(gate_slope, own_gate, n * f);
                project(self.x, weight, gate_bias, gate_slope)
            }
        };
        let active = kept_or(active, own_active, n * f);
        let active = activation.forward::<S>(slope, gate_slope, active);
        let active = Matrix::new(active, [n, f]);
        project(active, contract, contract_bias, self.out);
    }
}

/// Where numbers are kept, or `own` if they are not.
fn kept_or<'a>(
    kept: &'a mut [MaybeUninit<f32>],
    own: &'a mut Vec<MaybeUninit<f32>>,
    n: usize,
) -> &'a mut [MaybeUninit<f32>] {
    if kept.is_empty() {
        *own = room(n);
        own
    } else {
        kept
    }
}

/// As [`Forward`], the other way; the weights' rows are columns.
struct BackwardPass<'a> {
    weights: Weights<'a>,
    /// `[n, C]`
    of_out: Matrix<'a>,
    /// The activation's derivative, `[n, F]`.
    slope: &'a [f32],
    /// The activation's derivative by the gate, `[n, F]`; empty where there is none.
    gate_slope: &'a [f32],
    /// `[n, C]`
    of_x: &'a mut [MaybeUninit<f32>],
    /// `[n, F]`
    of_hidden: &'a mut [MaybeUninit<f32>],
    /// `[n, F]`; empty where there is no gate.
    of_gate: &'a mut [MaybeUninit<f32>],
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
            expand,
            gate: gate_weight,
            contract,
            ..
        } = self.weights;
        let [n, c] = [self.of_out.n_rows(), self.of_out.n_columns()];
        let f = contract.n_columns();
        let of_hidden = product::write(self.of_hidden, self.of_out, contract); // of the activation's output
        let gates = self.of_gate.iter_mut().zip(self.gate_slope);
        for ((of_gate, slope), of_active) in gates.zip(&*of_hidden) {
            of_gate.write(of_active * slope);
        }
        for (of_hidden, slope) in of_hidden.iter_mut().zip(self.slope) {
            *of_hidden *= slope;
        }
        let of_x = product::write(self.of_x, Matrix::new(of_hidden, [n, f]), expand);
        if let Some(weight) = gate_weight {
            #[allow(unsafe_code)]
            // SAFETY: they were written above, each of them: the gate's derivatives are as many.
            let of_gate = unsafe { self.of_gate.assume_init_ref() };
            let of_gate = Matrix::new(of_gate, [n, f]);
            multiply(MatrixMut::new(of_x, [n, c]), of_gate, weight, true);
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
            let (mut x, mut gate) = ([f32::NAN, 1.0], [1.0, f32::NAN]);
            let mut out = [std::mem::MaybeUninit::uninit(); 2];
            let out = activation.forward::<pulp::Scalar>(&mut x, &mut gate, &mut out);
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
