//! Layer norm and RMS norm on burn's CPU backend: forward and backward in one pass each, on all cores.
//!
//! Burn computes and differentiates them step by step, a pass over the tensor each. Here a row is finished
//! while it is in the cache; its mean and its scale are computed again in the backward pass, which is
//! cheaper than to keep them.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use pulp::{Simd, WithSimd};

use super::operation::{Operation, apply};
use super::{map_in_place, rows_per_task, run, tensor, values};
use crate::rows::Norm;

/// A norm over the last dimension, times `weight`, plus `bias`; of f32 on flex. The sources stand with
/// [`crate::layer_norm`] and [`crate::rms_norm`].
///
/// # Shapes
/// `x: [.., C]`, `weight, bias: [C]` -> `[.., C]`
pub(crate) fn norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    norm: Norm,
) -> Tensor<D> {
    let c = x.dims()[D - 1];
    assert!(weight.dims() == [c] && bias.as_ref().is_none_or(|bias| bias.dims() == [c]));
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    match bias {
        None => apply([x, weight], norm),
        Some(bias) => apply([x, weight, bias.into_dispatch()], norm),
    }
}

/// A small number in the precision that the operations compute in.
#[allow(clippy::cast_possible_truncation, reason = "the operation computes in f32")]
pub(crate) fn in_f32(epsilon: f64) -> f32 {
    epsilon as f32
}

/// Inputs: x, weight, and bias where there is one.
impl Operation for Norm {
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let mut inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let weight = values(&inputs[1]);
        let bias = inputs.get(2).map_or(&[][..], values);
        let c = weight.len();
        let mut out = vec![0.0; inputs[0].layout().num_elements()];
        let n = out.len();
        let chunk = rows_per_task(c) * c;
        let chunks = out.chunks_mut(chunk).zip(values(&inputs[0]).chunks(chunk));
        run(n, chunks.map(|(out, x)| Forward { x, weight, bias, out, norm: *self }));
        let out = tensor(out, &inputs[0]);
        if !keep {
            inputs.clear();
        }
        (out, inputs)
    }

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let (x, weight) = (values(&saved[0]), values(&saved[1]));
        let c = weight.len();
        let width = (saved.len() - 1) * c; // of the sums: for the weight, and for the bias
        let mut sums = vec![0.0; width];
        let grad_x = map_in_place(gradient, |gradient| {
            let n = gradient.len();
            let chunk = rows_per_task(c) * c;
            // Every task sums over its own rows, and the tasks' sums are added in their order.
            let mut parts = vec![0.0; n.div_ceil(chunk) * width];
            let chunks =
                gradient.chunks_mut(chunk).zip(x.chunks(chunk)).zip(parts.chunks_mut(width));
            run(
                n,
                chunks.map(|((gradient, x), sums)| BackwardPass {
                    x,
                    weight,
                    gradient,
                    sums,
                    norm: *self,
                }),
            );
            for part in parts.chunks_exact(width) {
                for (sum, part) in sums.iter_mut().zip(part) {
                    *sum += part;
                }
            }
        });
        let sums = sums.chunks_exact(c).map(|sum| tensor(sum.to_vec(), &saved[1]));
        std::iter::once(grad_x).chain(sums).map(Some).collect()
    }
}

struct Forward<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    /// Empty where there is none.
    bias: &'a [f32],
    out: &'a mut [f32],
    norm: Norm,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.out.chunks_exact_mut(self.weight.len());
        for (out, x) in rows.zip(self.x.chunks_exact(self.weight.len())) {
            self.norm.forward(x, self.weight, out);
            for (out, bias) in out.iter_mut().zip(self.bias) {
                *out += bias;
            }
        }
    }
}

struct BackwardPass<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    gradient: &'a mut [f32],
    /// Of the weight's gradient over the task's rows, then of the bias's where there is one.
    sums: &'a mut [f32],
    norm: Norm,
}

impl WithSimd for BackwardPass<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let c = self.weight.len();
        let (grad_weight, grad_bias) = self.sums.split_at_mut(c);
        let rows = self.gradient.chunks_exact_mut(c);
        for (gradient, x) in rows.zip(self.x.chunks_exact(c)) {
            self.norm.backward(x, self.weight, gradient, grad_weight, grad_bias);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, constant, leaf, numbers, with_threads};
    use super::*;
    use crate::norm::{composed_layer_norm, composed_rms_norm};

    type Operation = fn(Tensor<3>, Tensor<1>, Option<Tensor<1>>) -> Tensor<3>;
    type View = fn(Tensor<3>) -> Tensor<3>;

    const LAYER_NORM: Norm = Norm { centred: true, epsilon: 1e-5 };
    const RMS_NORM: Norm = Norm { centred: false, epsilon: 1e-6 };
    /// Each fused operation and how every other backend computes it.
    const PAIRS: [[Operation; 2]; 2] = [
        [
            |x, weight, bias| norm(x, weight, bias, LAYER_NORM),
            |x, weight, bias| composed_layer_norm(x, weight, bias, 1e-5),
        ],
        [
            |x, weight, _| norm(x, weight, None, RMS_NORM),
            |x, weight, _| composed_rms_norm(x, weight, 1e-6),
        ],
    ];

    /// Output and gradients of `f`, of an input that `view` cuts out of a leaf.
    fn output_and_gradients(
        f: Operation,
        shape: [usize; 3],
        bias: bool,
        view: View,
    ) -> Vec<Vec<f32>> {
        let leaf_x = leaf(shape, 1);
        let x = view(leaf_x.clone());
        let c = x.dims()[2];
        let (weight, bias) = (leaf([c], 2), bias.then(|| leaf([c], 3)));
        let y = f(x, weight.clone(), bias.clone());
        let gradients = (y.clone() * constant(y.dims(), 4)).sum().backward();
        let mut parts = vec![numbers(y)];
        parts.push(numbers(leaf_x.grad(&gradients).expect("x has one")));
        parts.push(numbers(weight.grad(&gradients).expect("the weight too")));
        // RMS norm ignores its bias.
        let grad_bias = bias.and_then(|bias| bias.grad(&gradients));
        parts.extend(grad_bias.map(numbers));
        parts
    }

    #[test]
    fn equal_the_composed_operations_and_their_gradients() {
        for shape in [
            [1, 1, 8],
            [2, 1, 128],
            [1, 3, 5],
            [3, 7, 17],
            [12, 64, 128],
            [2, 50, 384],
            [4, 100, 32],
            [2, 301, 33],
        ] {
            for [fused, composed] in PAIRS {
                for bias in [false, true] {
                    let run = |f| output_and_gradients(f, shape, bias, |x| x);
                    let what = format!("{shape:?}, bias {bias}");
                    assert_close(&run(fused), &run(composed), &what);
                }
            }
        }
    }

    #[test]
    fn read_inputs_that_do_not_lie_in_a_row() {
        let views: [View; 3] =
            [|x| x.swap_dims(1, 2), |x| x.swap_dims(0, 1).narrow(2, 3, 9), |x| x.narrow(0, 1, 1)];
        for view in views {
            for [fused, composed] in PAIRS {
                let run = |f| output_and_gradients(f, [3, 20, 16], true, view);
                assert_close(&run(fused), &run(composed), "a view");
            }
        }
    }

    #[test]
    fn huge_inputs_stay_finite_and_nan_stays_nan() {
        for [fused, composed] in PAIRS {
            let (x, weight) = (constant([1, 3, 40], 5) * 1e4, constant([40], 6));
            let run = |f: Operation| numbers(f(x.clone(), weight.clone(), None));
            assert_close(&[run(fused)], &[run(composed)], "1e4");
            let nan = numbers(fused(x.clone() * f32::NAN, weight.clone(), None));
            assert!(nan.iter().all(|x| x.is_nan()));
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        for [fused, _] in PAIRS {
            let bytes = |threads| {
                with_threads(threads, || {
                    let parts = output_and_gradients(fused, [7, 91, 65], true, |x| x);
                    parts.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                })
            };
            assert_eq!(bytes(1), bytes(2));
        }
    }
}
