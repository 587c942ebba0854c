//! Layer norm and RMS norm.

use burn::backend::DispatchTensor;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

use crate::elementary::{LANES, add_to, sum, sum_in_lanes};
use crate::flex::{self, in_f32, tensor, values, values_mut};
use crate::linear::rows;
use crate::memory::bytes;
use crate::op::{FlexOperation, Operation, Wanted, apply, apply_on_flex};
use crate::tasks::{CHUNK, each};

/// `(x - mean) / sqrt(variance + epsilon) * weight + bias`, over the last dimension.
///
/// Source: Ba et al. 2016, "Layer Normalization", eq. 4.
///
/// # Shapes
/// `x: [.., C]`, `weight, bias: [C]` -> `[.., C]`
pub fn layer_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, bias: Option<Tensor<1>>, epsilon: f64) -> Tensor<D> {
    if flex::is_for(&x) {
        return fused_norm(x, weight, bias, Norm { centred: true, epsilon: in_f32(epsilon) });
    }
    composed_norm(x, weight, bias, ComposedNorm { centred: true, epsilon })
}

/// `x / sqrt(mean(x^2) + epsilon) * weight`, over the last dimension.
///
/// Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", eq. 4.
///
/// # Shapes
/// `x: [.., C]`, `weight: [C]` -> `[.., C]`
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    if flex::is_for(&x) {
        return fused_norm(x, weight, None, Norm { centred: false, epsilon: in_f32(epsilon) });
    }
    composed_norm(x, weight, None, ComposedNorm { centred: false, epsilon })
}

/// The bytes that [`layer_norm`] and [`rms_norm`] of `[B, T, C]` save in training: the output; the input, or when
/// composed the normalized input.
pub fn saved_bytes(shape: [usize; 3]) -> f64 {
    2.0 * bytes(shape)
}

/// [`layer_norm`] or [`rms_norm`] of burn's operations on any backend, with the gradient of [`Norm::backward`]: fewer
/// kernels than burn's autodiff makes of them.
fn composed_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    norm: ComposedNorm,
) -> Tensor<D> {
    let shape = x.dims();
    let mut inputs = vec![rows(x).into_dispatch(), weight.into_dispatch()];
    inputs.extend(bias.map(Tensor::into_dispatch));
    Tensor::<2>::from_dispatch(apply(inputs, norm)).reshape(shape)
}

/// Inputs: x `[N, C]`, weight, and bias if there is one. Saves the normalized rows, their factors and the weight.
#[derive(Clone, Copy, Debug)]
struct ComposedNorm {
    centred: bool,
    epsilon: f64,
}

impl Operation for ComposedNorm {
    fn forward(&self, inputs: Vec<DispatchTensor>, wanted: Wanted) -> (DispatchTensor, Vec<DispatchTensor>) {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next();
        let x = Tensor::<2>::from_dispatch(next().expect("x is the first input"));
        let weight = Tensor::<1>::from_dispatch(next().expect("the weight is the second input"));
        let bias = next().map(Tensor::<1>::from_dispatch);
        let x = if self.centred { x.clone() - x.mean_dim(1) } else { x };
        let scale = ((x.clone() * x.clone()).mean_dim(1) + self.epsilon).sqrt().recip(); // [N, 1]
        let normalized = x * scale.clone();
        let out = normalized.clone() * weight.clone().unsqueeze();
        let has_bias = bias.is_some();
        let out = match bias {
            Some(bias) => out + bias.unsqueeze(),
            None => out,
        };
        let mut saved = Vec::new();
        if wanted.any() {
            saved = vec![normalized.into_dispatch(), scale.into_dispatch(), weight.clone().into_dispatch()];
            // The bias itself is not needed: only that there is one.
            saved.extend(has_bias.then(|| weight.into_dispatch()));
        }
        (out.into_dispatch(), saved)
    }

    fn backward(
        &self,
        saved: Vec<DispatchTensor>,
        gradient: DispatchTensor,
        wanted: Wanted,
    ) -> Vec<Option<DispatchTensor>> {
        let has_bias = saved.len() > 3;
        let [normalized, scale] = [0, 1].map(|i| Tensor::<2>::from_dispatch(saved[i].clone()));
        let weight = Tensor::<1>::from_dispatch(saved[2].clone());
        let (gradient, [c]) = (Tensor::<2>::from_dispatch(gradient), weight.dims());
        let of_x = wanted.of(0).then(|| {
            let h = gradient.clone() * weight.unsqueeze();
            let delta = (h.clone() * normalized.clone()).mean_dim(1); // [N, 1]
            let centred = if self.centred { h.clone() - h.mean_dim(1) } else { h };
            ((centred - normalized.clone() * delta) * scale).into_dispatch()
        });
        let column_sums = |x: Tensor<2>| x.sum_dim(0).reshape([c]).into_dispatch();
        let of_weight = wanted.of(1).then(|| column_sums(gradient.clone() * normalized));
        let of_bias = has_bias.then(|| wanted.of(2).then(|| column_sums(gradient)));
        [of_x, of_weight].into_iter().chain(of_bias).collect()
    }
}

#[cfg(test)]
pub(crate) fn composed_rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let mean_square = (x.clone() * x.clone()).mean_dim(D - 1); // [.., 1]
    x * (mean_square + epsilon).sqrt().recip() * weight.unsqueeze()
}

/// [`layer_norm`] or [`rms_norm`] of f32 on flex, on all cores. Forward and backward each take one pass over the data,
/// finishing a row while it is in the cache; the backward pass recomputes the row's mean and scale, which is cheaper
/// than saving them.
///
/// # Shapes
/// `x: [.., C]`, `weight, bias: [C]` -> `[.., C]`
fn fused_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, bias: Option<Tensor<1>>, norm: Norm) -> Tensor<D> {
    let c = x.dims()[D - 1];
    assert!(weight.dims() == [c] && bias.as_ref().is_none_or(|bias| bias.dims() == [c]));
    let mut inputs = vec![x.into_dispatch(), weight.into_dispatch()];
    inputs.extend(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(apply_on_flex(inputs, norm))
}

/// The normalization of a row: `(x - mean) / sqrt(variance + epsilon)`, with 0 instead of the mean in RMS norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    /// Whether the mean is subtracted first, as in layer norm but not in RMS norm.
    pub(crate) centred: bool,
    /// Added to the variance, or to the mean square.
    pub(crate) epsilon: f32,
}

impl Norm {
    /// Normalizes a row and multiplies it by the weight.
    #[inline(always)]
    pub(crate) fn forward(self, x: &[f32], weight: &[f32], out: &mut [f32]) {
        let (mean, scale) = self.mean_and_scale::<LANES>(x);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = (x - mean) * scale * weight;
        }
    }

    /// The mean of a row (0 if it is not subtracted), and the factor `1 / sqrt(variance + epsilon)`. The sums have L
    /// lanes.
    #[inline(always)]
    pub(crate) fn mean_and_scale<const L: usize>(self, x: &[f32]) -> (f32, f32) {
        let share = 1.0 / x.len() as f32;
        let mean = if self.centred { sum_in_lanes::<L>(x, x, |x, _| x) * share } else { 0.0 };
        let variance = sum_in_lanes::<L>(x, x, |x, _| (x - mean) * (x - mean)) * share;
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }

    /// Replaces the gradient of a row's output by the gradient of `x`, and adds to the gradients of weight and bias
    /// (`grad_bias` is empty if there is no bias).
    ///
    /// With `y = (x - mean) * scale` and `h = gradient * weight`, the gradient of `x` is
    /// `scale * (h - mean(h) - y * mean(h * y))`, without `mean(h)` if the mean is not subtracted.
    #[inline(always)]
    pub(crate) fn backward(
        self,
        x: &[f32],
        weight: &[f32],
        gradient: &mut [f32],
        grad_weight: &mut [f32],
        grad_bias: &mut [f32],
    ) {
        let (mean, scale) = self.mean_and_scale::<LANES>(x);
        add_to(grad_bias, gradient);
        let weights = weight.iter().zip(grad_weight);
        for ((gradient, x), (weight, sum)) in gradient.iter_mut().zip(x).zip(weights) {
            *sum += *gradient * ((x - mean) * scale);
            *gradient *= weight; // h
        }
        let share = 1.0 / x.len() as f32;
        let delta = sum(gradient, x, |h, x| h * ((x - mean) * scale)) * share;
        let level = if self.centred { sum(gradient, x, |h, _| h) * share } else { 0.0 };
        for (gradient, x) in gradient.iter_mut().zip(x) {
            *gradient = scale * (*gradient - level - (x - mean) * scale * delta);
        }
    }
}

/// The elements per task, in whole rows of `c`. They depend on the shape alone, so results do not depend on the number
/// of threads.
fn chunk(c: usize) -> usize {
    (CHUNK / c.max(1)).max(1) * c
}

/// Inputs: x, weight, and bias if there is one.
impl FlexOperation for Norm {
    fn forward(&self, inputs: Vec<FlexTensor>, _: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let weight = values(&inputs[1]);
        let bias = inputs.get(2).map_or(&[][..], values);
        let x = values(&inputs[0]);
        let mut out = vec![0.0; x.len()];
        let (norm, chunk) = (*self, chunk(weight.len()));
        each(
            x.len(),
            out.chunks_mut(chunk).zip(x.chunks(chunk)),
            #[inline(always)]
            move |(out, x)| {
                for (out, x) in out.chunks_exact_mut(weight.len()).zip(x.chunks_exact(weight.len())) {
                    norm.forward(x, weight, out);
                    add_to(out, bias);
                }
            },
        );
        (tensor(out, &inputs[0]), inputs)
    }

    fn backward(&self, saved: Vec<FlexTensor>, mut gradient: FlexTensor, _: Wanted) -> Vec<Option<FlexTensor>> {
        let (x, weight) = (values(&saved[0]), values(&saved[1]));
        let c = weight.len();
        let width = (saved.len() - 1) * c; // the gradients of the weight and of the bias
        let mut sums = vec![0.0; width];
        // Each task sums these gradients over its rows; the sums of the tasks are then added in order.
        let mut parts = vec![0.0; x.len().div_ceil(chunk(c)) * width];
        let chunks = values_mut(&mut gradient).chunks_mut(chunk(c)).zip(x.chunks(chunk(c)));
        let norm = *self;
        each(
            x.len(),
            chunks.zip(parts.chunks_mut(width)),
            #[inline(always)]
            move |((gradient, x), sums)| {
                let (grad_weight, grad_bias) = sums.split_at_mut(c);
                for (gradient, x) in gradient.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
                    norm.backward(x, weight, gradient, grad_weight, grad_bias);
                }
            },
        );
        parts.chunks_exact(width).for_each(|part| add_to(&mut sums, part));
        let sums = sums.chunks_exact(c).map(|sum| tensor(sum.to_vec(), &saved[1]));
        std::iter::once(gradient).chain(sums).map(Some).collect()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::module;

    use super::*;
    use crate::testing::{assert_close, assert_within, constant, output_and_gradients, scalars};

    #[test]
    fn composed_norms_equal_burns_operations() {
        type ByBurn = fn(Tensor<3>, Tensor<1>, Option<Tensor<1>>) -> Tensor<3>;
        let layer: ByBurn = |x, weight, bias| module::layer_norm(x, weight, bias, 1e-5);
        let rms: ByBurn = |x, weight, _| composed_rms_norm(x, weight, 1e-5);
        for (shape, centred, has_bias, by_burn) in [
            ([1, 1, 8], true, false, layer),
            ([2, 3, 5], true, true, layer),
            ([2, 7, 33], false, false, rms),
            ([3, 1, 4], false, false, rms),
        ] {
            let run = |norm: &dyn Fn(Tensor<3>, Tensor<1>, Option<Tensor<1>>) -> Tensor<3>| {
                output_and_gradients(|leaves| {
                    let (x, weight) = (leaves.next(shape), leaves.next([shape[2]]));
                    norm(x, weight, has_bias.then(|| leaves.next([shape[2]])))
                })
            };
            let got = run(&|x, weight, bias| composed_norm(x, weight, bias, ComposedNorm { centred, epsilon: 1e-5 }));
            assert_within(&got, &run(&by_burn), 1e-5, &format!("{shape:?}, centred {centred}"));
        }
    }

    #[test]
    fn norms_keep_huge_inputs_finite_and_nan() {
        let (x, weight) = (constant([1, 3, 40], 5), constant::<1>([40], 6));
        let layer = |x: Tensor<3>| scalars(layer_norm(x, weight.clone(), None, 1e-5));
        let rms = |x: Tensor<3>| scalars(rms_norm(x, weight.clone(), 1e-6));
        let huge = x.clone() * 1e4;
        assert_close(
            &[layer(huge.clone())],
            &[scalars(module::layer_norm(huge.clone(), weight.clone(), None, 1e-5))],
            "1e4",
        );
        assert_close(&[rms(huge.clone())], &[scalars(composed_rms_norm(huge, weight.clone(), 1e-6))], "1e4");
        let nan = x * f32::NAN;
        assert!(layer(nan.clone()).into_iter().chain(rms(nan)).all(f32::is_nan));
    }
}
