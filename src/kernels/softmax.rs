//! The causal softmax on burn's CPU backend: forward and backward in one pass each, on all cores.
//!
//! Burn takes a row's future out by adding minus infinity, computes `exp` number by number on one core, and
//! differentiates every step by itself. Here a row is finished while it is in the cache, and its future,
//! half of a square of scores, is never looked at.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use pulp::{Simd, WithSimd};

use super::flex::{LANES, exp, rewrite, rows_per_task, run, sum, total, values};

/// `softmax(scale * scores)` over the keys that each query may see, 0 in its future; of f32 on flex.
///
/// Queries are the last T of the S positions: query `t` sees keys `0..=S - T + t`.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1 and section 3.2.3.
///
/// # Shapes
/// `scores: [B, H, T, S]` with S >= T -> `[B, H, T, S]`
pub(super) fn causal_softmax(scores: Tensor<4>, scale: f32) -> Tensor<4> {
    let scores = scores.into_dispatch();
    Tensor::from_dispatch(<Dispatch as SoftmaxBackend>::causal_softmax(scores, scale))
}

/// The operation, for the backends that have it.
#[backend_extension(Flex, Autodiff)]
pub(super) trait SoftmaxBackend: Backend {
    fn causal_softmax(scores: FloatTensor<Self>, scale: f32) -> FloatTensor<Self>;
    fn causal_softmax_backward(
        weights: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self>;
}

impl SoftmaxBackend for Flex {
    fn causal_softmax(scores: FlexTensor, scale: f32) -> FlexTensor {
        let [t, s] = matrix(&scores);
        rewrite(scores, |scores| {
            let n = scores.len();
            let rows = rows_per_task(s);
            let chunks = scores.chunks_mut(rows * s).enumerate();
            run(
                n,
                chunks.map(|(chunk, scores)| Forward {
                    scores,
                    rows: Rows::new(chunk * rows, t, s),
                    scale,
                }),
            );
        })
    }

    fn causal_softmax_backward(
        weights: FlexTensor,
        gradient: FlexTensor,
        scale: f32,
    ) -> FlexTensor {
        let [t, s] = matrix(&weights);
        let weights = weights.to_contiguous();
        rewrite(gradient, |gradient| {
            let n = gradient.len();
            let rows = rows_per_task(s);
            let chunks = gradient
                .chunks_mut(rows * s)
                .zip(values(&weights).chunks(rows * s))
                .enumerate();
            run(
                n,
                chunks.map(|(chunk, (gradient, weights))| BackwardPass {
                    weights,
                    gradient,
                    rows: Rows::new(chunk * rows, t, s),
                    scale,
                }),
            );
        })
    }
}

/// Which rows of scores a task has.
#[derive(Clone, Copy)]
struct Rows {
    first: usize,
    t: usize,
    s: usize,
}

impl Rows {
    fn new(first: usize, t: usize, s: usize) -> Self {
        Self { first, t, s }
    }

    /// How many keys the task's row sees.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn visible(self, row: usize) -> usize {
        self.s - self.t + (self.first + row) % self.t + 1
    }
}

struct Forward<'a> {
    scores: &'a mut [f32],
    rows: Rows,
    scale: f32,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, _: S) {
        for (row, scores) in self.scores.chunks_exact_mut(self.rows.s).enumerate() {
            softmax(scores, self.rows.visible(row), self.scale);
        }
    }
}

struct BackwardPass<'a> {
    weights: &'a [f32],
    gradient: &'a mut [f32],
    rows: Rows,
    scale: f32,
}

impl WithSimd for BackwardPass<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, _: S) {
        let gradients = self.gradient.chunks_exact_mut(self.rows.s);
        let weights = self.weights.chunks_exact(self.rows.s);
        for (row, (gradient, weights)) in gradients.zip(weights).enumerate() {
            softmax_backward(weights, gradient, self.rows.visible(row), self.scale);
        }
    }
}

impl<B: Backend + SoftmaxBackend, C: CheckpointStrategy> SoftmaxBackend for Autodiff<B, C> {
    fn causal_softmax(scores: FloatTensor<Self>, scale: f32) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct CausalSoftmax;

        impl<B: Backend + SoftmaxBackend> Backward<B, 1> for CausalSoftmax {
            type State = (FloatTensor<B>, f32);

            fn backward(
                self,
                ops: Ops<Self::State, 1>,
                gradients: &mut Gradients,
                _: &mut Checkpointer,
            ) {
                let (weights, scale) = ops.state;
                unary::<B, _>(ops.parents, ops.node, gradients, |gradient| {
                    B::causal_softmax_backward(weights, gradient, scale)
                });
            }
        }

        let node = CausalSoftmax.prepare::<C>([scores.node()]);
        // Nothing else keeps the scores, so that the weights take their place.
        let weights = B::causal_softmax(scores.into_primitive(), scale);
        match node.compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((weights.clone(), scale), weights),
            OpsKind::UnTracked(prep) => prep.finish(weights),
        }
    }

    fn causal_softmax_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: f32,
    ) -> FloatTensor<Self> {
        unimplemented!("training needs no second derivative")
    }
}

/// T and S, of scores [B, H, T, S].
fn matrix(scores: &FlexTensor) -> [usize; 2] {
    let shape = scores.layout().shape();
    let (t, s) = (shape[2], shape[3]);
    assert!(s >= t, "{t} queries of {s} positions");
    [t, s]
}

/// Softmax of the row's first `visible` numbers times `scale`, zeros behind them.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
fn softmax(row: &mut [f32], visible: usize, scale: f32) {
    let (seen, future) = row.split_at_mut(visible);
    future.fill(0.0);
    let max = max(seen);
    let mut sums = [0.0; LANES];
    let (blocks, rest) = seen.as_chunks_mut::<LANES>();
    for block in blocks {
        exps(block, max, scale, &mut sums);
    }
    if !rest.is_empty() {
        // A whole block again, for a whole register; what fills it up adds nothing that 1 would notice.
        let mut block = [f32::NEG_INFINITY; LANES];
        block[..rest.len()].copy_from_slice(rest);
        exps(&mut block, max, scale, &mut sums);
        rest.copy_from_slice(&block[..rest.len()]);
    }
    let share = 1.0 / total(sums);
    for x in seen {
        *x *= share;
    }
}

/// Turns scores into unnormalised weights and adds them to the sums.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
fn exps(block: &mut [f32; LANES], max: f32, scale: f32, sums: &mut [f32; LANES]) {
    for (x, sum) in block.iter_mut().zip(sums) {
        *x = exp((*x - max) * scale);
        *sum += *x;
    }
}

/// Turns the gradient of the row's weights into that of its scores.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
fn softmax_backward(weights: &[f32], gradient: &mut [f32], visible: usize, scale: f32) {
    // Whole blocks: weights of the future are 0, and so is what they let through.
    let end = visible.next_multiple_of(LANES).min(weights.len());
    let (seen, future) = gradient.split_at_mut(end);
    future.fill(0.0);
    let weights = &weights[..end];
    let mean = sum(weights, seen, |weight, gradient| weight * gradient);
    for (gradient, weight) in seen.iter_mut().zip(weights) {
        *gradient = scale * weight * (*gradient - mean);
    }
}

/// The largest of some numbers.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = if *x > *lane { *x } else { *lane };
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = lanes[i].max(lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::super::attention::causal_bias;
    use super::super::flex::testing::{assert_close, constant, leaf, numbers, with_threads};
    use super::*;
    use burn::tensor::activation;

    const SCALE: f32 = 0.3;

    /// As every other backend computes it.
    fn composed(scores: Tensor<4>) -> Tensor<4> {
        let [_, _, t, s] = scores.dims();
        let scores = scores * SCALE;
        let scores = scores.clone() + causal_bias(t, s, &scores.device());
        activation::softmax(scores, 3)
    }

    fn fused(scores: Tensor<4>) -> Tensor<4> {
        causal_softmax(scores, SCALE)
    }

    /// Weights and gradient of `f`, of scores that `view` cuts out of a leaf.
    fn weights_and_gradient(
        f: fn(Tensor<4>) -> Tensor<4>,
        shape: [usize; 4],
        view: fn(Tensor<4>) -> Tensor<4>,
    ) -> Vec<Vec<f32>> {
        let leaf = leaf(shape, 1);
        let weights = f(view(leaf.clone()) * 3.0);
        let asked = constant(weights.dims(), 2);
        let gradients = (weights.clone() * asked).sum().backward();
        let gradient = leaf.grad(&gradients).expect("the leaf has one");
        vec![numbers(weights), numbers(gradient)]
    }

    #[test]
    fn equals_the_composed_operation_and_its_gradient() {
        for shape in [
            [1, 1, 1, 1],
            [2, 3, 1, 37],
            [1, 2, 5, 5],
            [2, 3, 17, 17],
            [3, 4, 64, 64],
            [1, 2, 7, 50],
            [2, 2, 33, 100],
        ] {
            let run = |f| weights_and_gradient(f, shape, |x| x);
            assert_close(&run(fused), &run(composed), &format!("{shape:?}"));
        }
    }

    #[test]
    fn reads_scores_that_do_not_lie_in_a_row() {
        type View = fn(Tensor<4>) -> Tensor<4>;
        let views: [(View, [usize; 4]); 3] = [
            (|x| x.swap_dims(2, 3), [1, 2, 20, 20]),
            (|x| x.narrow(2, 3, 9).narrow(3, 2, 11), [2, 2, 15, 15]),
            (|x| x.narrow(0, 1, 1), [2, 2, 9, 12]),
        ];
        for (view, shape) in views {
            let strided = |f| weights_and_gradient(f, shape, view);
            assert_close(&strided(fused), &strided(composed), &format!("{shape:?}"));
            // Without a step between the view and the operation: the leaf must stay as it was.
            let leaf = leaf(shape, 4);
            let before = numbers(leaf.clone());
            let (got, want) = (fused(view(leaf.clone())), composed(view(leaf.clone())));
            assert_close(&[numbers(got)], &[numbers(want)], "a bare view");
            assert_eq!(numbers(leaf), before);
        }
    }

    #[test]
    fn huge_scores_stay_finite_and_nan_stays_nan() {
        let huge = constant([1, 1, 20, 20], 5) * 1e4;
        let weights = fused(huge.clone());
        assert_close(&[numbers(weights)], &[numbers(composed(huge))], "1e4");
        let weights = numbers(fused(constant([1, 1, 2, 2], 5) * f32::NAN));
        assert!(weights[0].is_nan() && weights[2].is_nan() && weights[3].is_nan());
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        let bytes = |threads| {
            with_threads(threads, || {
                let parts = weights_and_gradient(fused, [5, 3, 50, 61], |x| x);
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
