//! Softmax over one row of causal attention's scores, and its gradient.

use pulp::Simd;

use super::{LANES, exp, total};

/// Turns a query's scores into weights: softmax of the first `visible` numbers times `scale`, zeros behind them.
/// Returns the logarithm of the sum that they were divided by.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
pub(super) fn attend<S: Simd>(row: &mut [f32], visible: usize, scale: f32) -> f32 {
    let (seen, future) = row.split_at_mut(visible);
    future.fill(0.0);
    let max = max(seen);
    let mut sums = [0.0; LANES];
    let (blocks, rest) = seen.as_chunks_mut::<LANES>();
    for block in blocks {
        exps::<S>(block, max, scale, &mut sums);
    }
    if !rest.is_empty() {
        // A whole block again, for a whole register; what fills it up adds nothing that 1 would notice.
        let mut block = [f32::NEG_INFINITY; LANES];
        block[..rest.len()].copy_from_slice(rest);
        exps::<S>(&mut block, max, scale, &mut sums);
        rest.copy_from_slice(&block[..rest.len()]);
    }
    let sum = total(sums);
    let share = 1.0 / sum;
    for x in seen {
        *x *= share;
    }
    max * scale + sum.ln()
}

/// Turns a query's scores into its weights (those of the dropout, where there is one), and the gradient of these
/// into that of the scores.
///
/// With weights `p = exp(scale * score - log_sum)` and `along`, the sum of the output times its gradient, the
/// gradient of a score is `scale * p * (kept * gradient - along)`.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
pub(super) fn attend_backward<S: Simd>(
    scores: &mut [f32],
    gradient: &mut [f32],
    kept: Option<&[f32]>,
    visible: usize,
    scale: f32,
    log_sum: f32,
    along: f32,
) {
    scores[visible..].fill(0.0);
    gradient[visible..].fill(0.0);
    let (scores, gradient) = (&mut scores[..visible], &mut gradient[..visible]);
    match kept {
        None => {
            for (score, gradient) in scores.iter_mut().zip(gradient) {
                let weight = exp::<S>(*score * scale - log_sum);
                *gradient = scale * weight * (*gradient - along);
                *score = weight;
            }
        }
        Some(kept) => {
            for ((score, gradient), kept) in scores.iter_mut().zip(gradient).zip(kept) {
                let weight = exp::<S>(*score * scale - log_sum);
                *gradient = scale * weight * (kept * *gradient - along);
                *score = weight * kept;
            }
        }
    }
}

/// Turns scores into unnormalised weights and adds them to the sums.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
fn exps<S: Simd>(block: &mut [f32; LANES], max: f32, scale: f32, sums: &mut [f32; LANES]) {
    for (x, sum) in block.iter_mut().zip(sums) {
        *x = exp::<S>((*x - max) * scale);
        *sum += *x;
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
