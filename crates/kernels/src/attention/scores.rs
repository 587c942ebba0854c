//! Scores of some queries in panels, which become weights, and their gradients.

use std::ops::Range;

use pulp::Simd;

use crate::elementary::{exp, exps, larger, max, total};
use crate::gemm::{Arithmetic, Epilogue, Row, WIDTH};

/// Some queries' scores, or their gradients: panels of as many rows.
pub(super) struct Scores<'a> {
    pub(super) rows: &'a mut [Row],
    /// Rows from one panel to the next.
    pub(super) step: usize,
}

impl Scores<'_> {
    #[inline(always)]
    fn row(&mut self, panel: usize, row: usize) -> &mut Row {
        &mut self.rows[panel * self.step + row]
    }

    /// Fills what is not `visible` of a row in the panels that some of it is in.
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

    /// Writes zeros before what is `visible` of a row, and behind it to the end of the last panel that some of it is
    /// in.
    #[inline(always)]
    fn clear_beside(&mut self, row: usize, visible: &Range<usize>) {
        self.fill_beside(row, visible, 0.0);
        for panel in 0..visible.start / WIDTH {
            self.row(panel, row).fill(0.0);
        }
    }

    /// Multiplies the first numbers of a row.
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

/// Turns a row of scores, of which these are `visible`, into weights: softmax of the scores times `scale`, and zeros
/// before and behind them in all panels. Sums in L lanes, and returns the logarithm of the sum.
#[inline(always)]
pub(super) fn softmax<S: Simd, const L: usize>(
    scores: &mut Scores<'_>,
    row: usize,
    visible: Range<usize>,
    scale: f32,
) -> f32 {
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
    max * scale + sum.ln()
}

/// The saved values that a query's gradient needs.
pub(super) struct Query<'a> {
    /// The keys that it sees.
    pub(super) visible: Range<usize>,
    /// The factor of its scores.
    pub(super) scale: f32,
    /// The logarithm of its sum.
    pub(super) lse: f32,
    /// The sum of its output times the output's gradient.
    pub(super) delta: f32,
    /// Dropout's factors of its weights.
    pub(super) mask: Option<&'a [f32]>,
}

/// Turns a query's scores into its weights (those of the dropout, where there is one), and the gradient of these
/// into that of the scores; writes zeros before what it sees, and behind it to the end of the last panel that it sees
/// any of.
///
/// With weights `p = exp(scale * score - lse)` and `delta`, the gradient of a score is
/// `scale * p * (mask * gradient - delta)`.
#[inline(always)]
pub(super) fn softmax_backward<S: Simd>(
    scores: &mut Scores<'_>,
    gradient: &mut Scores<'_>,
    row: usize,
    query: Query<'_>,
) {
    let Query { visible, scale, lse, delta, mask } = query;
    let panels = visible.start / WIDTH..visible.end.div_ceil(WIDTH);
    for panel in panels {
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
    scores.clear_beside(row, &visible);
    gradient.clear_beside(row, &visible);
}
