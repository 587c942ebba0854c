//! Softmax and norms of rows, and their gradients.

#![allow(
    clippy::inline_always,
    reason = "what is called in an inner loop must have the instructions of its caller's SIMD level"
)]

use pulp::Simd;

use crate::elementary::{LANES, exp, sum, sum_in_lanes, total};
use crate::gemm::{Arithmetic, Epilogue, Row, WIDTH};

/// Turns a row's numbers into weights: softmax of the numbers times `scale`. Returns the logarithm of the sum that
/// they were divided by.
#[inline(always)]
pub(crate) fn softmax<S: Simd>(row: &mut [f32], scale: f32) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = row.as_chunks_mut::<LANES>();
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    for block in blocks.iter() {
        larger(&mut largest, block);
    }
    larger(&mut largest, &last);
    let max = max(largest);
    let mut sums = [0.0; LANES];
    for block in blocks {
        exps::<S, LANES>(block, max, scale, &mut sums);
    }
    if !rest.is_empty() {
        // A whole block again, for a whole register; what fills it up adds nothing that 1 would notice.
        exps::<S, LANES>(&mut last, max, scale, &mut sums);
        rest.copy_from_slice(&last[..rest.len()]);
    }
    let sum = total(sums);
    let share = 1.0 / sum;
    for x in row {
        *x *= share;
    }
    max * scale + sum.ln()
}

/// As [`softmax`], of a row of scores, of which so many numbers are `visible`; behind them it writes zeros, to the end
/// of the last panel. It sums in L lanes.
#[inline(always)]
pub(crate) fn attend<S: Simd, const L: usize>(scores: &mut Scores<'_>, row: usize, visible: usize, scale: f32) -> f32 {
    let (n, end) = (visible.div_ceil(WIDTH), visible % WIDTH);
    if end > 0 {
        scores.row(n - 1, row)[end..].fill(f32::NEG_INFINITY);
    }
    let mut largest = [f32::NEG_INFINITY; L];
    for panel in 0..n {
        for block in scores.row(panel, row).as_chunks::<L>().0 {
            larger(&mut largest, block);
        }
    }
    let max = max(largest);
    let mut sums = [0.0; L];
    for panel in 0..n {
        for block in scores.row(panel, row).as_chunks_mut::<L>().0 {
            exps::<S, L>(block, max, scale, &mut sums);
        }
    }
    let sum = total(sums);
    let share = 1.0 / sum;
    for panel in 0..n {
        for x in scores.row(panel, row) {
            *x *= share;
        }
    }
    if end > 0 {
        scores.row(n - 1, row)[end..].fill(0.0);
    }
    for panel in n..scores.rows.len().div_ceil(scores.step) {
        scores.row(panel, row).fill(0.0);
    }
    max * scale + sum.ln()
}

/// Some queries' scores, or their gradients: panels of as many rows.
pub(crate) struct Scores<'a> {
    pub(crate) rows: &'a mut [Row],
    /// Rows from one panel to the next.
    pub(crate) step: usize,
}

impl Scores<'_> {
    #[inline(always)]
    fn row(&mut self, panel: usize, row: usize) -> &mut Row {
        &mut self.rows[panel * self.step + row]
    }

    /// Multiplies the first numbers of a row.
    #[inline(always)]
    pub(crate) fn multiply(&mut self, row: usize, factors: &[f32]) {
        for (panel, factors) in factors.chunks(WIDTH).enumerate() {
            for (x, factor) in self.row(panel, row).iter_mut().zip(factors) {
                *x *= factor;
            }
        }
    }
}

impl Epilogue<f32> for Scores<'_> {
    #[inline(always)]
    fn apply<A: Arithmetic<Element = f32>>(&mut self, _: A, at: [usize; 2], sums: &[f32]) {
        let [row, column] = at;
        self.row(column / WIDTH, row)[column % WIDTH..][..sums.len()].copy_from_slice(sums);
    }
}

/// What a query's gradient is made of.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    /// How many keys it sees.
    pub(crate) visible: usize,
    /// What its scores were multiplied with.
    pub(crate) scale: f32,
    /// The logarithm of its sum.
    pub(crate) lse: f32,
    /// The sum of its output times the output's gradient.
    pub(crate) delta: f32,
    /// What dropout multiplied its weights with.
    pub(crate) mask: Option<&'a [f32]>,
}

/// Turns a query's scores into its weights (those of the dropout, where there is one), and the gradient of these
/// into that of the scores; writes zeros behind what it sees, to the end of the last panel that it sees any of.
///
/// With weights `p = exp(scale * score - lse)` and `delta`, the gradient of a score is
/// `scale * p * (mask * gradient - delta)`.
#[inline(always)]
pub(crate) fn attend_backward<S: Simd>(
    scores: &mut Scores<'_>,
    gradient: &mut Scores<'_>,
    row: usize,
    query: Query<'_>,
) {
    let Query { visible, scale, lse, delta, mask } = query;
    let (n, end) = (visible.div_ceil(WIDTH), visible % WIDTH);
    for panel in 0..n {
        let (scores, gradient) = (scores.row(panel, row), gradient.row(panel, row));
        match mask {
            None => {
                for (score, gradient) in scores.iter_mut().zip(gradient) {
                    let weight = exp::<S>(*score * scale - lse);
                    *gradient = scale * weight * (*gradient - delta);
                    *score = weight;
                }
            }
            Some(mask) => {
                let mask = &mask[panel * WIDTH..];
                for ((score, gradient), mask) in scores.iter_mut().zip(gradient).zip(mask) {
                    let weight = exp::<S>(*score * scale - lse);
                    *gradient = scale * weight * (mask * *gradient - delta);
                    *score = weight * mask;
                }
            }
        }
    }
    if end > 0 {
        scores.row(n - 1, row)[end..].fill(0.0);
        gradient.row(n - 1, row)[end..].fill(0.0);
    }
}

/// Turns scores into unnormalised weights and adds them to the sums.
#[inline(always)]
fn exps<S: Simd, const L: usize>(block: &mut [f32; L], max: f32, scale: f32, sums: &mut [f32; L]) {
    for (x, sum) in block.iter_mut().zip(sums) {
        *x = exp::<S>((*x - max) * scale);
        *sum += *x;
    }
}

/// Keeps the larger of each two lanes.
#[inline(always)]
fn larger<const L: usize>(lanes: &mut [f32; L], block: &[f32; L]) {
    for (lane, x) in lanes.iter_mut().zip(block) {
        *lane = if *x > *lane { *x } else { *lane };
    }
}

/// The largest of the lanes.
#[inline(always)]
fn max<const L: usize>(mut lanes: [f32; L]) -> f32 {
    let mut half = L / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = lanes[i].max(lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// How rows are normalised: `(x - mean) / sqrt(variance + epsilon)`, or the same about 0 instead of the mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    /// Whether the mean is taken away first: layer norm does, RMS norm does not.
    pub(crate) centred: bool,
    /// What is added to the variance, or to the mean square.
    pub(crate) epsilon: f32,
}

impl Norm {
    /// Norms a row and scales it.
    #[inline(always)]
    pub(crate) fn forward(self, x: &[f32], weight: &[f32], out: &mut [f32]) {
        let (mean, scale) = self.mean_and_scale::<LANES>(x);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = (x - mean) * scale * weight;
        }
    }

    /// A row's mean (0 if it is not taken away) and what the differences from it are multiplied with, by L running
    /// sums.
    #[inline(always)]
    #[allow(clippy::cast_precision_loss, reason = "a row has far fewer than 2^24 numbers")]
    pub(crate) fn mean_and_scale<const L: usize>(self, x: &[f32]) -> (f32, f32) {
        let share = 1.0 / x.len() as f32;
        let mean = if self.centred { sum_in_lanes::<L>(x, x, |x, _| x) * share } else { 0.0 };
        let variance = sum_in_lanes::<L>(x, x, |x, _| (x - mean) * (x - mean)) * share;
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }

    /// Turns a row's gradient into that of `x`, and adds to the gradients of weight and bias (an empty slice
    /// where there is none).
    ///
    /// With `y = (x - mean) * scale` and `h = gradient * weight`, the gradient of `x` is
    /// `scale * (h - mean(h) - y * mean(h * y))`; about 0, `mean(h)` falls away.
    #[inline(always)]
    #[allow(clippy::cast_precision_loss, reason = "a row has far fewer than 2^24 numbers")]
    pub(crate) fn backward(
        self,
        x: &[f32],
        weight: &[f32],
        gradient: &mut [f32],
        grad_weight: &mut [f32],
        grad_bias: &mut [f32],
    ) {
        let (mean, scale) = self.mean_and_scale::<LANES>(x);
        for (sum, gradient) in grad_bias.iter_mut().zip(&*gradient) {
            *sum += gradient;
        }
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
