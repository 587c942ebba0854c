//! The scores of a block of queries in panels, their softmax, and their gradients.

use std::ops::Range;

use pulp::Simd;

use crate::elementary::{exp, exps, larger, max, tanh, total};
use crate::gemm::{Arithmetic, Epilogue, Row, WIDTH};

/// The scores of queries, or their gradients: panels with a row for each query.
pub(super) struct Scores<'a> {
    pub(super) rows: &'a mut [Row],
    /// The number of rows from one panel to the next.
    pub(super) step: usize,
}

impl Scores<'_> {
    #[inline(always)]
    fn row(&mut self, panel: usize, row: usize) -> &mut Row {
        &mut self.rows[panel * self.step + row]
    }

    /// Fills the scalars of a row that are not `visible`, in panels that hold visible ones.
    #[inline(always)]
    fn fill_beside(&mut self, row: usize, visible: &Range<usize>, value: f32) {
        let (before, end) = (visible.start % WIDTH, visible.end % WIDTH);
        if before > 0 {
            self.row(visible.start / WIDTH, row)[..before].fill(value);
        }
        if end > 0 {
            self.row(visible.end / WIDTH, row)[end..].fill(value);
        }
    }

    /// Writes zeros before the `visible` part of a row, and after it to the end of the last panel that holds a visible
    /// scalar.
    #[inline(always)]
    fn clear_beside(&mut self, row: usize, visible: &Range<usize>) {
        self.fill_beside(row, visible, 0.0);
        for panel in 0..visible.start / WIDTH {
            self.row(panel, row).fill(0.0);
        }
    }

    /// Multiplies the `visible` part of a row of scores by `scale`, and caps it.
    #[inline(always)]
    fn cap<S: Simd>(&mut self, row: usize, visible: &Range<usize>, scale: f32, cap: f32) {
        for panel in visible.start / WIDTH..visible.end.div_ceil(WIDTH) {
            for score in self.row(panel, row) {
                *score = capped::<S>(*score * scale, cap);
            }
        }
    }

    /// Multiplies the first scalars of a row by `factors`.
    #[inline(always)]
    pub(super) fn multiply(&mut self, row: usize, factors: &[f32]) {
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

/// `cap tanh(score / cap)`: see [`crate::softcap`].
#[inline(always)]
fn capped<S: Simd>(score: f32, cap: f32) -> f32 {
    cap * tanh::<S>(score / cap)
}

/// Replaces the `visible` part of a row of scores by the softmax of the scores times `scale`, capped if there is a cap,
/// and the rest of the row, in all panels, by zeros. Sums in L lanes, and returns the logarithm of the sum of
/// exponentials.
#[inline(always)]
pub(super) fn softmax<S: Simd, const L: usize>(
    scores: &mut Scores<'_>,
    row: usize,
    visible: Range<usize>,
    scale: f32,
    softcap: Option<f32>,
) -> f32 {
    let scale = match softcap {
        None => scale,
        Some(cap) => {
            scores.cap::<S>(row, &visible, scale, cap);
            1.0
        }
    };
    let panels = visible.start / WIDTH..visible.end.div_ceil(WIDTH);
    scores.fill_beside(row, &visible, f32::NEG_INFINITY);
    let mut largest = [f32::NEG_INFINITY; L];
    for panel in panels.clone() {
        for block in scores.row(panel, row).as_chunks::<L>().0 {
            larger(&mut largest, block);
        }
    }
    let max = max(largest);
    let mut sums = [0.0; L];
    for panel in panels.clone() {
        for block in scores.row(panel, row).as_chunks_mut::<L>().0 {
            exps::<S, L>(block, max, scale, &mut sums);
        }
    }
    let sum = total(sums);
    let share = 1.0 / sum;
    for panel in panels.clone() {
        for x in scores.row(panel, row) {
            *x *= share;
        }
    }
    scores.clear_beside(row, &visible);
    for panel in panels.end..scores.rows.len().div_ceil(scores.step) {
        scores.row(panel, row).fill(0.0);
    }
    max * scale + libm::logf(sum)
}

/// The saved values for the gradient of a query's scores.
pub(super) struct Query<'a> {
    pub(super) visible: Range<usize>,
    pub(super) scale: f32,
    /// The cap of the scores, if they are CAPPED.
    pub(super) cap: f32,
    pub(super) lse: f32,
    /// The dot product of the output and its gradient.
    pub(super) delta: f32,
    pub(super) mask: Option<&'a [f32]>,
}

/// Replaces a query's scores by its weights (after dropout, if there is any), and the gradient of these by that of the
/// scores. Writes zeros before the visible part, and after it to the end of the last panel with a visible key.
///
/// With weights `p = exp(scale * score - lse)` and `delta`, the gradient of a score is
/// `scale * p * (mask * gradient - delta)`, times the slope of the cap if scores are CAPPED.
#[inline(always)]
pub(super) fn softmax_backward<S: Simd, const CAPPED: bool>(
    scores: &mut Scores<'_>,
    gradient: &mut Scores<'_>,
    row: usize,
    query: Query<'_>,
) {
    let Query { visible, scale, cap, lse, delta, mask } = query;
    let panels = visible.start / WIDTH..visible.end.div_ceil(WIDTH);
    for panel in panels {
        let (scores, gradient) = (scores.row(panel, row), gradient.row(panel, row));
        match mask {
            None => {
                for (score, gradient) in scores.iter_mut().zip(gradient) {
                    let (scaled, slope) = scaled_and_slope::<S, CAPPED>(*score, scale, cap);
                    let weight = exp::<S>(scaled - lse);
                    *gradient = slope * weight * (*gradient - delta);
                    *score = weight;
                }
            }
            Some(mask) => {
                let mask = &mask[panel * WIDTH..];
                for ((score, gradient), mask) in scores.iter_mut().zip(gradient).zip(mask) {
                    let (scaled, slope) = scaled_and_slope::<S, CAPPED>(*score, scale, cap);
                    let weight = exp::<S>(scaled - lse);
                    *gradient = slope * weight * (mask * *gradient - delta);
                    *score = weight * mask;
                }
            }
        }
    }
    scores.clear_beside(row, &visible);
    gradient.clear_beside(row, &visible);
}

/// The scaled and capped score, and its derivative.
#[inline(always)]
fn scaled_and_slope<S: Simd, const CAPPED: bool>(score: f32, scale: f32, cap: f32) -> (f32, f32) {
    if !CAPPED {
        return (score * scale, scale);
    }
    let capped = capped::<S>(score * scale, cap);
    let share = capped / cap;
    (capped, scale * (1.0 - share * share))
}
