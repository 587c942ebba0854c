//! Normalisation of every position's vector.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Tensor, module};
use pulp::{Simd, WithSimd};

use crate::flex::{self, in_f32, map_in_place, rows_per_task, tensor, values};
use crate::op::{FlexOperation, apply_on_flex};
use crate::rows::Norm;
use crate::tasks::run;

/// `(x - mean) / sqrt(variance + epsilon) * weight + bias`, over the last dimension.
///
/// Source: Ba et al. 2016, "Layer Normalization", eq. 4.
///
/// # Shapes
/// `x: [.., C]`, `weight, bias: [C]` -> `[.., C]`
#[must_use]
pub fn layer_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, bias: Option<Tensor<1>>, epsilon: f64) -> Tensor<D> {
    if flex::is_for(&x) {
        let norm = Norm { centred: true, epsilon: in_f32(epsilon) };
        return fused_norm(x, weight, bias, norm);
    }
    composed_layer_norm(x, weight, bias, epsilon)
}

/// `x / sqrt(mean(x^2) + epsilon) * weight`, over the last dimension.
///
/// Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", eq. 4.
///
/// # Shapes
/// `x: [.., C]`, `weight: [C]` -> `[.., C]`
#[must_use]
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    if flex::is_for(&x) {
        let norm = Norm { centred: false, epsilon: in_f32(epsilon) };
        return fused_norm(x, weight, None, norm);
    }
    composed_rms_norm(x, weight, epsilon)
}

/// Layer norm by burn's own operations.
fn composed_layer_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    module::layer_norm(x, weight, bias, epsilon)
}

/// RMS norm by burn's own operations.
fn composed_rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let mean_square = (x.clone() * x.clone()).mean_dim(D - 1); // [.., 1]
    x * (mean_square + epsilon).sqrt().recip() * weight.unsqueeze()
}

/// [`layer_norm`] or [`rms_norm`] of f32 on flex: forward and backward in one pass each, on all cores. A row is finished
/// while it is in the cache; the backward pass computes its mean and scale again, which is cheaper than saving them.
///
/// # Shapes
/// `x: [.., C]`, `weight, bias: [C]` -> `[.., C]`
fn fused_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, bias: Option<Tensor<1>>, norm: Norm) -> Tensor<D> {
    let c = x.dims()[D - 1];
    assert!(weight.dims() == [c] && bias.as_ref().is_none_or(|bias| bias.dims() == [c]));
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    match bias {
        None => apply_on_flex([x, weight], norm),
        Some(bias) => apply_on_flex([x, weight, bias.into_dispatch()], norm),
    }
}

/// Inputs: x, weight, and bias where there is one.
impl FlexOperation for Norm {
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
            let chunks = gradient.chunks_mut(chunk).zip(x.chunks(chunk)).zip(parts.chunks_mut(width));
            run(n, chunks.map(|((gradient, x), sums)| BackwardPass { x, weight, gradient, sums, norm: *self }));
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
    use super::*;
    use crate::flex::testing::{assert_close, constant, leaf, numbers, with_threads};
    use burn::tensor::Device;

    type Operation = fn(Tensor<3>, Tensor<1>, Option<Tensor<1>>) -> Tensor<3>;
    type View = fn(Tensor<3>) -> Tensor<3>;

    const LAYER_NORM: Norm = Norm { centred: true, epsilon: 1e-5 };
    const RMS_NORM: Norm = Norm { centred: false, epsilon: 1e-6 };
    /// Each fused operation and how every other backend computes it.
    const PAIRS: [[Operation; 2]; 2] = [
        [
            |x, weight, bias| fused_norm(x, weight, bias, LAYER_NORM),
            |x, weight, bias| composed_layer_norm(x, weight, bias, 1e-5),
        ],
        [|x, weight, _| fused_norm(x, weight, None, RMS_NORM), |x, weight, _| composed_rms_norm(x, weight, 1e-6)],
    ];

    /// Output and gradients of `f`, of an input that `view` cuts out of a leaf.
    fn output_and_gradients(f: Operation, shape: [usize; 3], bias: bool, view: View) -> Vec<Vec<f32>> {
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
        for shape in
            [[1, 1, 8], [2, 1, 128], [1, 3, 5], [3, 7, 17], [12, 64, 128], [2, 50, 384], [4, 100, 32], [2, 301, 33]]
        {
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
        let views: [View; 3] = [|x| x.swap_dims(1, 2), |x| x.swap_dims(0, 1).narrow(2, 3, 9), |x| x.narrow(0, 1, 1)];
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

    #[test]
    fn layer_norm_centres_and_scales_and_rms_norm_only_scales() {
        let device = Device::flex();
        let x = Tensor::<2>::from_data([[1.0, 2.0, 3.0, 4.0]], &device);
        let weight = Tensor::<1>::from_data([1.0, 1.0, 1.0, 2.0], &device);
        let bias = Tensor::<1>::from_data([0.0, 0.0, 0.5, 0.0], &device);
        let close = |got: Tensor<2>, want: [f32; 4]| {
            let got: Vec<f32> = got.into_data().try_to_vec().expect("f32");
            assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-5), "{got:?} {want:?}");
        };
        let s = 1.25_f32.sqrt(); // of mean 2.5 and variance 1.25
        close(layer_norm(x.clone(), weight.clone(), Some(bias), 0.0), [-1.5 / s, -0.5 / s, 0.5 / s + 0.5, 3.0 / s]);
        let r = 7.5_f32.sqrt(); // of mean square 7.5
        close(rms_norm(x, weight, 0.0), [1.0 / r, 2.0 / r, 3.0 / r, 8.0 / r]);
    }
}
