//! Copies of matrices in panels of pairs.

use pulp::{Simd, WithSimd};

use super::element::Bf16x2;
use super::matrix::Matrix;
use super::pack::ROWS;
use super::packed::{PackedRef, Row, WIDTH, n_panels};
use super::scratch::Scratch;
use super::transpose::{self, SIDE};
use crate::tasks::run;

/// Pairs of the nearest numbers.
pub(super) trait Rounding: Copy {
    /// Of numbers that follow each other.
    fn columns(self, numbers: &[f32; WIDTH]) -> [Bf16x2; WIDTH / 2];

    /// Of numbers that stand one above the other.
    fn rows(self, above: &[f32; WIDTH], below: &[f32; WIDTH]) -> Row<Bf16x2>;
}

/// As many numbers of a row as make a panel of pairs.
const PANEL: usize = 2 * WIDTH;

/// Pairs of columns that follow each other; the last of an odd number with zero.
///
/// # Panics
/// If the matrix does not lie in rows.
#[inline(always)]
pub(super) fn round_columns(rounding: impl Rounding, matrix: Matrix<'_>, out: &mut [Row<Bf16x2>]) {
    let n_rows = matrix.n_rows();
    for first in (0..n_rows).step_by(ROWS) {
        let n = ROWS.min(n_rows - first);
        let mut rows = [&[][..]; ROWS];
        for (i, x) in rows[..n].iter_mut().enumerate() {
            let (panels, rest) = matrix.row(first + i).as_chunks::<PANEL>();
            *x = panels;
            if !rest.is_empty() {
                fill(rounding, rest, &mut out[panels.len() * n_rows + first + i]);
            }
        }
        for (panel, out) in out.chunks_exact_mut(n_rows).enumerate() {
            for (x, out) in rows.iter().zip(&mut out[first..first + n]) {
                let Some(x) = x.get(panel) else { break }; // the last one, filled above
                fill(rounding, x, out);
            }
        }
    }
}

/// Pairs of numbers that follow each other; the last of an odd number with zero.
#[inline(always)]
pub(super) fn fill(rounding: impl Rounding, numbers: &[f32], out: &mut Row<Bf16x2>) {
    let (halves, _) = out.as_chunks_mut::<{ WIDTH / 2 }>();
    let (whole, rest) = numbers.as_chunks::<WIDTH>();
    for (half, numbers) in halves.iter_mut().zip(whole) {
        *half = rounding.columns(numbers);
    }
    if !rest.is_empty() {
        halves[whole.len()] = rounding.columns(&padded(rest));
    }
}

/// With zeros behind them.
#[inline(always)]
fn padded(numbers: &[f32]) -> [f32; WIDTH] {
    let mut out = [0.0; WIDTH];
    out[..numbers.len()].copy_from_slice(numbers);
    out
}

/// Pairs of rows that follow each other; the last of an odd number with zeros.
#[inline(always)]
pub(super) fn round_rows<S: Simd>(
    rounding: impl Rounding,
    simd: S,
    matrix: Matrix<'_>,
    out: &mut [Row<Bf16x2>],
) {
    let n_pairs = matrix.n_rows().div_ceil(2);
    if !matrix.has_rows() {
        for (panel, out) in out.chunks_exact_mut(n_pairs).enumerate() {
            pack_transposed(rounding, simd, matrix.transposed(), panel * WIDTH, out);
        }
        return;
    }
    for first in (0..n_pairs).step_by(PAIRS) {
        let n = PAIRS.min(n_pairs - first);
        let mut rows = [[&[][..]; 2]; PAIRS];
        for (i, rows) in rows[..n].iter_mut().enumerate() {
            let pair = first + i;
            let (above, above_rest) = matrix.row(2 * pair).as_chunks::<WIDTH>();
            let (below, below_rest) = match 2 * pair + 1 {
                row if row < matrix.n_rows() => matrix.row(row).as_chunks(),
                _ => (&[][..], &[][..]),
            };
            // The last pair of an odd number of rows, all of it, and of every other one what fills no panel.
            for (panel, above) in above.iter().enumerate().skip(below.len()) {
                out[panel * n_pairs + pair] = rounding.rows(above, &[0.0; WIDTH]);
            }
            if !above_rest.is_empty() {
                let rest = [above_rest, below_rest].map(padded);
                out[above.len() * n_pairs + pair] = rounding.rows(&rest[0], &rest[1]);
            }
            *rows = [above, below];
        }
        for (panel, out) in out.chunks_exact_mut(n_pairs).enumerate() {
            for ([above, below], out) in rows.iter().zip(&mut out[first..first + n]) {
                let Some(below) = below.get(panel) else { break };
                *out = rounding.rows(&above[panel], below);
            }
        }
    }
}

/// Pairs of rows that are made side by side.
const PAIRS: usize = ROWS / 2;

/// Pairs of columns of `matrix`, one below another, of a panel's rows from `first` on.
#[inline(always)]
fn pack_transposed<S: Simd>(
    rounding: impl Rounding,
    simd: S,
    matrix: Matrix<'_>,
    first: usize,
    out: &mut [Row<Bf16x2>],
) {
    let n_columns = WIDTH.min(matrix.n_rows() - first);
    // Twice as many numbers as a square is wide make a row of it.
    let n_strips = match n_columns {
        WIDTH => matrix.n_columns() / WIDTH,
        _ => 0,
    };
    let (strips, rest) = out.split_at_mut(n_strips * WIDTH / 2);
    for (strip, out) in strips.as_chunks_mut::<{ WIDTH / 2 }>().0.iter_mut().enumerate() {
        for column in (0..WIDTH).step_by(SIDE) {
            let mut rows = [[Bf16x2::default(); WIDTH / 2]; SIDE];
            for (i, pairs) in rows.iter_mut().enumerate() {
                let row = &matrix.row(first + column + i)[strip * WIDTH..];
                *pairs = rounding.columns(row.first_chunk().expect("the row goes on"));
            }
            let (squares, _) = out.as_chunks_mut::<SIDE>();
            for (square, out) in squares.iter_mut().enumerate() {
                let x = rows.map(|row| *row[square * SIDE..].first_chunk().expect("two squares"));
                for (out, x) in out.iter_mut().zip(transpose::transposed(simd, x)) {
                    out[column..column + SIDE].copy_from_slice(&x);
                }
            }
        }
    }
    for (pair, out) in (n_strips * WIDTH / 2..).zip(rest) {
        for (column, out) in out[..n_columns].iter_mut().enumerate() {
            let row = &matrix.row(first + column)[2 * pair..];
            *out = Bf16x2::new(row[0], row.get(1).copied().unwrap_or_default());
        }
    }
}

/// A matrix of `n_columns` numbers a row, from pairs of columns to pairs of rows; the last of an odd number of rows
/// with zeros.
pub(super) fn regrouped(columns: PackedRef<'_, Bf16x2>, n_columns: usize) -> Scratch<Bf16x2> {
    let n_pairs = columns.n_rows().div_ceil(2);
    let mut out = Scratch::new(n_pairs * n_panels(n_columns));
    let tasks = out.chunks_exact_mut(n_pairs.max(1)).enumerate();
    let tasks = tasks.map(|(panel, out)| Regroup { columns, panel, out });
    run(columns.n_rows() * n_columns, tasks);
    out
}

/// Regroups the numbers of a panel.
struct Regroup<'a> {
    columns: PackedRef<'a, Bf16x2>,
    panel: usize,
    out: &'a mut [Row<Bf16x2>],
}

impl WithSimd for Regroup<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        const HALF: usize = WIDTH / 2;
        let first = self.panel % 2 * HALF;
        let (pairs, rest) = self.columns.panel(self.panel / 2).as_chunks::<2>();
        let last = rest.first().map(|last| [*last, [Bf16x2::default(); WIDTH]]);
        for ([above, below], out) in pairs.iter().chain(&last).zip(self.out) {
            let above: &[Bf16x2; HALF] = above[first..].first_chunk().expect("half a row");
            let below: &[Bf16x2; HALF] = below[first..].first_chunk().expect("half a row");
            let (out, _) = out.as_chunks_mut::<2>();
            for ((out, above), below) in out.iter_mut().zip(above).zip(below) {
                *out = above.crossed(*below);
            }
        }
    }
}
