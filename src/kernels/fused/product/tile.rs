//! The inner loops: as many sums as fit the registers, over the whole depth of a product.
//!
//! Two registers of columns and up to twelve rows: each number of the left matrix is spread over a register and
//! meets both, each register of the right matrix meets all rows. On AVX-512 the multiply-adds are then what limits,
//! not what is read.

use std::ops::Range;

use pulp::Simd;

use super::panels::{Panels, Row, WIDTH};

/// The left matrix of a product: its rows are those of the output.
pub(in crate::kernels::fused) trait Left: Copy {
    /// Whether its rows are columns of panels.
    const TURNED: bool;

    /// Rows that are never parted.
    const UNIT: usize;

    /// How many rows there are.
    fn n_rows(self) -> usize;

    /// How many columns there are, each of which meets a row of the right matrix.
    fn depth(self) -> usize;

    /// Some of the rows, from a whole number of units on.
    fn part(self, rows: Range<usize>) -> Self;

    /// The sums of R rows from `row` on, and V registers of columns from number `column` of a panel on.
    fn tile<S: Simd, const R: usize, const V: usize>(
        self,
        simd: S,
        row: usize,
        right: &[Row],
        column: usize,
    ) -> [[S::f32s; V]; R];
}

/// A matrix as it is.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels::fused) struct Plain<'a>(pub(in crate::kernels::fused) Panels<'a>);

/// A matrix whose columns are the rows.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels::fused) struct Turned<'a>(pub(in crate::kernels::fused) Panels<'a>);

impl Left for Plain<'_> {
    const TURNED: bool = false;
    const UNIT: usize = 12;

    fn n_rows(self) -> usize {
        self.0.n_rows()
    }

    fn depth(self) -> usize {
        self.0.n_columns()
    }

    fn part(self, rows: Range<usize>) -> Self {
        Self(self.0.rows(rows))
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const V: usize>(
        self,
        simd: S,
        row: usize,
        right: &[Row],
        column: usize,
    ) -> [[S::f32s; V]; R] {
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        for (panel, right) in right.chunks(WIDTH).enumerate() {
            let left: &[Row; R] = self.0.panel(panel)[row..row + R]
                .try_into()
                .expect("R rows");
            // A whole panel apart: a loop of known length is unrolled.
            match right.first_chunk::<WIDTH>() {
                Some(right) => steps::<S, R, V>(simd, &mut sums, left, right, column),
                None => steps::<S, R, V>(simd, &mut sums, left, right, column),
            }
        }
        sums
    }
}

impl Left for Turned<'_> {
    const TURNED: bool = true;
    const UNIT: usize = WIDTH;

    fn n_rows(self) -> usize {
        self.0.n_columns()
    }

    fn depth(self) -> usize {
        self.0.n_rows()
    }

    fn part(self, rows: Range<usize>) -> Self {
        Self(self.0.columns(rows))
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const V: usize>(
        self,
        simd: S,
        row: usize,
        right: &[Row],
        column: usize,
    ) -> [[S::f32s; V]; R] {
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        let first = row % WIDTH;
        for (left, right) in self.0.panel(row / WIDTH).iter().zip(right) {
            let left: &[f32; R] = left[first..first + R].try_into().expect("R numbers");
            step::<S, R, V>(simd, &mut sums, |r| left[r], right, column);
        }
        sums
    }
}

/// Adds the products of the first columns of R rows and as many rows of the right matrix.
#[inline(always)]
fn steps<S: Simd, const R: usize, const V: usize>(
    simd: S,
    sums: &mut [[S::f32s; V]; R],
    left: &[Row; R],
    right: &[Row],
    column: usize,
) {
    for (i, right) in right.iter().enumerate() {
        step::<S, R, V>(simd, sums, |r| left[r][i], right, column);
    }
}

/// Adds the products of a column of the left matrix and a row of the right one.
#[inline(always)]
fn step<S: Simd, const R: usize, const V: usize>(
    simd: S,
    sums: &mut [[S::f32s; V]; R],
    left: impl Fn(usize) -> f32,
    right: &Row,
    column: usize,
) {
    let (right, _) = S::as_simd_f32s(&right[column..column + V * S::F32_LANES]);
    let right: &[S::f32s; V] = right.try_into().expect("V registers");
    for (r, sums) in sums.iter_mut().enumerate() {
        let left = simd.splat_f32s(left(r));
        for (sum, right) in sums.iter_mut().zip(right) {
            // A CPU without fused multiply-adds would call a function for each.
            *sum = if S::IS_SCALAR {
                simd.add_f32s(simd.mul_f32s(left, *right), *sum)
            } else {
                simd.mul_add_f32s(left, *right, *sum)
            };
        }
    }
}
