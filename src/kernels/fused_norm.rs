//! Layer norm and RMS norm on burn's CPU backend: forward and backward in one pass each, on all cores.
//!
//! Burn computes and differentiates them step by step, a pass over the tensor each. Here a row is finished
//! while it is in the cache; its mean and its scale are computed again in the backward pass, which is
//! cheaper than to keep them.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use pulp::{Simd, WithSimd};

use super::flex::{rewrite, rows_per_task, run, sum, tensor, values};

/// How rows are normalised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    /// Whether the mean is taken away first: layer norm does, RMS norm does not.
    pub(super) centred: bool,
    /// What is added to the variance, or to the mean square.
    pub(super) epsilon: f32,
}

/// `(x - mean) / sqrt(variance + epsilon) * weight + bias` over the last dimension, or the same about 0
/// instead of the mean; of f32 on flex. The sources stand with [`super::layer_norm`] and
/// [`super::rms_norm`].
///
/// # Shapes
/// `x: [.., C]`, `weight, bias: [C]` -> `[.., C]`
pub(super) fn norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    norm: Norm,
) -> Tensor<D> {
    // None is a bias of zeros: it costs less than a second pair of operations.
    let bias = bias.unwrap_or_else(|| Tensor::zeros(weight.dims(), &x.device()));
    assert_eq!([x.dims()[D - 1]; 2], [weight.dims()[0], bias.dims()[0]]);
    Tensor::from_dispatch(<Dispatch as NormBackend>::fused_norm(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias.into_dispatch(),
        norm,
    ))
}

/// The operation, for the backends that have it.
#[backend_extension(Flex, Autodiff)]
pub(super) trait NormBackend: Backend {
    fn fused_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: Norm,
    ) -> FloatTensor<Self>;
    /// Gradients of `x`, `weight` and `bias`.
    fn fused_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        norm: Norm,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl NormBackend for Flex {
    fn fused_norm(x: FlexTensor, weight: FlexTensor, bias: FlexTensor, norm: Norm) -> FlexTensor {
        let (x, weight, bias) = (
            x.to_contiguous(),
            weight.to_contiguous(),
            bias.to_contiguous(),
        );
        let (weight, bias) = (values(&weight), values(&bias));
        let c = weight.len();
        let mut out = vec![0.0; x.layout().num_elements()];
        let n = out.len();
        let chunk = rows_per_task(c) * c;
        let chunks = out.chunks_mut(chunk).zip(values(&x).chunks(chunk));
        run(
            n,
            chunks.map(|(out, x)| Forward {
                x,
                weight,
                bias,
                out,
                norm,
            }),
        );
        tensor(out, &x)
    }

    fn fused_norm_backward(
        x: FlexTensor,
        weight: FlexTensor,
        gradient: FlexTensor,
        norm: Norm,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (x, like) = (x.to_contiguous(), weight.to_contiguous());
        let weight = values(&like);
        let c = weight.len();
        let (mut of_weight, mut of_bias) = (vec![0.0; c], vec![0.0; c]);
        let of_x = rewrite(gradient, |gradient| {
            let n = gradient.len();
            let chunk = rows_per_task(c) * c;
            // Every task sums over its own rows, and the tasks' sums are added in their order.
            let mut sums = vec![0.0; n.div_ceil(chunk) * 2 * c];
            let chunks = gradient
                .chunks_mut(chunk)
                .zip(values(&x).chunks(chunk))
                .zip(sums.chunks_mut(2 * c));
            run(
                n,
                chunks.map(|((gradient, x), sums)| BackwardPass {
                    x,
                    weight,
                    gradient,
                    sums,
                    norm,
                }),
            );
            for sums in sums.chunks_exact(2 * c) {
                for (total, sum) in of_weight.iter_mut().chain(&mut of_bias).zip(sums) {
                    *total += sum;
                }
            }
        });
        (of_x, tensor(of_weight, &like), tensor(of_bias, &like))
    }
}

struct Forward<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    out: &'a mut [f32],
    norm: Norm,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, _: S) {
        let (weight, bias) = (self.weight, self.bias);
        let rows = self.out.chunks_exact_mut(weight.len());
        for (out, x) in rows.zip(self.x.chunks_exact(weight.len())) {
            let (mean, scale) = self.norm.mean_and_scale(x);
            for (((out, x), weight), bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                *out = (x - mean) * scale * weight + bias;
            }
        }
    }
}

struct BackwardPass<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    gradient: &'a mut [f32],
    /// Of the weight's gradient over the task's rows, then of the bias's.
    sums: &'a mut [f32],
    norm: Norm,
}

impl WithSimd for BackwardPass<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, _: S) {
        let c = self.weight.len();
        let (of_weight, of_bias) = self.sums.split_at_mut(c);
        let rows = self.gradient.chunks_exact_mut(c);
        for (gradient, x) in rows.zip(self.x.chunks_exact(c)) {
            self.norm
                .backward(x, self.weight, gradient, of_weight, of_bias);
        }
    }
}

impl Norm {
    /// A row's mean (0 if it is not taken away) and what the differences from it are multiplied with.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    #[allow(
        clippy::cast_precision_loss,
        reason = "a row has far fewer than 2^24 numbers"
    )]
    fn mean_and_scale(self, x: &[f32]) -> (f32, f32) {
        let share = 1.0 / x.len() as f32;
        let mean = if self.centred {
            sum(x, x, |x, _| x) * share
        } else {
            0.0
        };
        let variance = sum(x, x, |x, _| (x - mean) * (x - mean)) * share;
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }

    /// Turns a row's gradient into that of `x`, and adds to the gradients of weight and bias.
    ///
    /// With `y = (x - mean) * scale` and `h = gradient * weight`, the gradient of `x` is
    /// `scale * (h - mean(h) - y * mean(h * y))`; about 0, `mean(h)` falls away.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    #[allow(
        clippy::cast_precision_loss,
        reason = "a row has far fewer than 2^24 numbers"
    )]
    fn backward(
        self,
        x: &[f32],
        weight: &[f32],
        gradient: &mut [f32],
        of_weight: &mut [f32],
        of_bias: &mut [f32],
    ) {
        let (mean, scale) = self.mean_and_scale(x);
        let sums = of_weight.iter_mut().zip(of_bias);
        for (((gradient, x), weight), sums) in gradient.iter_mut().zip(x).zip(weight).zip(sums) {
            *sums.0 += *gradient * ((x - mean) * scale);
            *sums.1 += *gradient;
            *gradient *= weight; // h
        }
        let share = 1.0 / x.len() as f32;
        let along = sum(gradient, x, |h, x| h * ((x - mean) * scale)) * share;
        let level = if self.centred {
            sum(gradient, x, |h, _| h) * share
        } else {
            0.0
        };
        for (gradient, x) in gradient.iter_mut().zip(x) {
            *gradient = scale * (*gradient - level - (x - mean) * scale * along);
        }
    }
}

impl<B: Backend + NormBackend, C: CheckpointStrategy> NormBackend for Autodiff<B, C> {
    fn fused_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: Norm,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct FusedNorm;

        impl<B: Backend + NormBackend> Backward<B, 3> for FusedNorm {
            type State = (FloatTensor<B>, FloatTensor<B>, Norm);

            fn backward(
                self,
                ops: Ops<Self::State, 3>,
                gradients: &mut Gradients,
                _: &mut Checkpointer,
            ) {
                let (x, weight, norm) = ops.state;
                let gradient = gradients.consume::<B>(&ops.node);
                let parts = B::fused_norm_backward(x, weight, gradient, norm);
                for (parent, part) in ops.parents.into_iter().zip([parts.0, parts.1, parts.2]) {
                    if let Some(parent) = parent {
                        gradients.register::<B>(parent.id, part);
                    }
                }
            }
        }

        let node = FusedNorm.prepare::<C>([x.node(), weight.node(), bias.node()]);
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let bias = bias.into_primitive();
        match node.compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(
                (x.clone(), weight.clone(), norm),
                B::fused_norm(x, weight, bias, norm),
            ),
            OpsKind::UnTracked(prep) => prep.finish(B::fused_norm(x, weight, bias, norm)),
        }
    }

    fn fused_norm_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: Norm,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unimplemented!("training needs no second derivative")
    }
}

#[cfg(test)]
mod tests {
    use super::super::flex::testing::{assert_close, constant, leaf, numbers, with_threads};
    use super::super::norm::{composed_layer_norm, composed_rms_norm};
    use super::*;

    type Operation = fn(Tensor<3>, Tensor<1>, Option<Tensor<1>>) -> Tensor<3>;
    type View = fn(Tensor<3>) -> Tensor<3>;

    const LAYER_NORM: Norm = Norm {
        centred: true,
        epsilon: 1e-5,
    };
    const RMS_NORM: Norm = Norm {
        centred: false,
        epsilon: 1e-6,
    };
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
        let of_bias = bias.and_then(|bias| bias.grad(&gradients));
        parts.extend(of_bias.map(numbers));
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
        let views: [View; 3] = [
            |x| x.swap_dims(1, 2),
            |x| x.swap_dims(0, 1).narrow(2, 3, 9),
            |x| x.narrow(0, 1, 1),
        ];
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
                    parts
                        .concat()
                        .iter()
                        .map(|x| x.to_bits())
                        .collect::<Vec<_>>()
                })
            };
            assert_eq!(bytes(1), bytes(2));
        }
    }
}
