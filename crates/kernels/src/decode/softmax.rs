//! Softmax over rows of scores.

use pulp::{Arch, Simd, WithSimd};

use super::{Row, WIDTH};
use crate::elementary::{LANES, exp, total};

/// Turns the first `visible` scores of a row into weights that sum to 1, and the others into zeros.
///
/// The sum takes every 32nd number in a lane of its own, and does not depend on how many others follow.
#[inline(always)]
pub(super) fn softmax<S: Simd>(scores: &mut [Row], n_rows: usize, row: usize, visible: usize) {
    let n_seen = visible.div_ceil(WIDTH);
    let (seen, future) = scores.split_at_mut(n_seen * n_rows);
    for row in future.iter_mut().skip(row).step_by(n_rows) {
        *row = Row::ZERO;
    }
    let in_last = visible - (n_seen - 1) * WIDTH;
    seen[(n_seen - 1) * n_rows + row].0[in_last..].fill(f32::NEG_INFINITY);
    let mut lanes = [f32::NEG_INFINITY; WIDTH];
    for row in seen.iter().skip(row).step_by(n_rows) {
        for (lane, x) in lanes.iter_mut().zip(row.0) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    let max = lanes.iter().fold(f32::NEG_INFINITY, |max, x| max.max(*x));
    let mut lanes = [0.0; WIDTH];
    for row in seen.iter_mut().skip(row).step_by(n_rows) {
        for (x, lane) in row.0.iter_mut().zip(&mut lanes) {
            *x = exp::<S>(*x - max);
            *lane += *x;
        }
    }
    // What stands for minus infinity is next to nothing, and should be nothing.
    seen[(n_seen - 1) * n_rows + row].0[in_last..].fill(0.0);
    let mut half = WIDTH / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    let share = 1.0 / lanes[0];
    for row in seen.iter_mut().skip(row).step_by(n_rows) {
        row.0.iter_mut().for_each(|x| *x *= share);
    }
}

/// The logarithm of the sum of `e^x` over some numbers.
#[must_use]
pub fn log_sum_exp(x: &[f32]) -> f32 {
    Arch::new().dispatch(LogSumExp(x))
}

struct LogSumExp<'a>(&'a [f32]);

impl WithSimd for LogSumExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        let (blocks, rest) = self.0.as_chunks::<LANES>();
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for block in blocks {
            for (lane, x) in lanes.iter_mut().zip(block) {
                *lane = if *x > *lane { *x } else { *lane };
            }
        }
        let max = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, x| max.max(*x));
        let mut lanes = [0.0; LANES];
        for block in blocks {
            for (lane, x) in lanes.iter_mut().zip(block) {
                *lane += exp::<S>(*x - max);
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane += exp::<S>(*x - max);
        }
        max + total(lanes).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_visible_scores_become_weights_and_the_rest_nothing() {
        let n_rows = 2;
        let score = |i: usize| ((i * 37) % 17) as f32 - 8.0;
        for (n_panels, visible) in [(1, 1), (1, 5), (1, 32), (2, 33), (3, 40), (3, 96)] {
            let mut scores = vec![Row([f32::NAN; WIDTH]); n_panels * n_rows];
            for i in 0..n_panels * WIDTH {
                scores[i / WIDTH * n_rows + 1].0[i % WIDTH] = score(i);
            }
            softmax::<pulp::Scalar>(&mut scores, n_rows, 1, visible);
            let sum: f64 = (0..visible).map(|i| f64::from(score(i)).exp()).sum();
            for i in 0..n_panels * WIDTH {
                let got = f64::from(scores[i / WIDTH * n_rows + 1].0[i % WIDTH]);
                let want = if i < visible { f64::from(score(i)).exp() / sum } else { 0.0 };
                assert!((got - want).abs() < 1e-6, "{i} of {visible}: {got}, not {want}");
                assert!(i < visible || got == 0.0);
            }
            assert!(scores[0].0[0].is_nan(), "another row was written");
        }
    }

    #[test]
    fn log_sum_exp_is_exact_for_large_numbers_too() {
        for n in [1, 7, 16, 65] {
            let x: Vec<f32> = (0..n).map(|i| (i % 9) as f32 + 1000.0).collect();
            let want = x.iter().map(|x| (f64::from(*x) - 1000.0).exp()).sum::<f64>().ln() + 1000.0;
            assert!((f64::from(log_sum_exp(&x)) - want).abs() < 1e-4);
        }
    }
}
