//! The inner loops: as many sums as fit the registers, over the whole depth of a product.
//!
//! Two registers of columns and up to twelve rows: each element of the left matrix is spread over a register and
//! meets both, each register of the right matrix meets all rows. On AVX-512 the multiply-adds are then what limits,
//! not what is read.

use std::ops::Range;

use super::arithmetic::Arithmetic;
use super::element::Element;
use super::packed::{PackedRef, Row, WIDTH};

/// The left matrix of a product: its rows are those of the output.
pub(crate) trait Left: Copy {
    /// What its panels hold.
    type Element: Element;

    /// Whether its rows are columns of panels.
    const TRANSPOSED: bool;

    /// Rows that are never parted.
    const UNIT: usize;

    /// How many rows there are.
    fn n_rows(self) -> usize;

    /// How many columns of elements there are, each of which meets a row of the right matrix.
    fn depth(self) -> usize;

    /// Some of the rows, from a whole number of units on.
    fn part(self, rows: Range<usize>) -> Self;

    /// The sums of R rows from `row` on, and V registers of columns from column `column` of a panel on.
    fn micro_kernel<A: Arithmetic<Element = Self::Element>, const R: usize, const V: usize>(
        self,
        arithmetic: A,
        row: usize,
        right: &[Row<A::Element>],
        column: usize,
    ) -> [[A::Sums; V]; R];
}

/// A matrix as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain<'a, E = f32>(pub(crate) PackedRef<'a, E>);

/// A matrix whose columns are the rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transposed<'a, E = f32>(pub(crate) PackedRef<'a, E>);

impl<E: Element> Left for Plain<'_, E> {
    type Element = E;

    const TRANSPOSED: bool = false;
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
    fn micro_kernel<A: Arithmetic<Element = Self::Element>, const R: usize, const V: usize>(
        self,
        arithmetic: A,
        row: usize,
        right: &[Row<A::Element>],
        column: usize,
    ) -> [[A::Sums; V]; R] {
        let mut sums = [[arithmetic.zero(); V]; R];
        for (panel, right) in right.chunks(WIDTH).enumerate() {
            let left: &[Row<E>; R] = self.0.panel(panel)[row..row + R].try_into().expect("R rows");
            // A whole panel apart: a loop of known length is unrolled.
            match right.first_chunk::<WIDTH>() {
                Some(right) => steps::<A, R, V>(arithmetic, &mut sums, left, right, column),
                None => steps::<A, R, V>(arithmetic, &mut sums, left, right, column),
            }
        }
        sums
    }
}

impl<E: Element> Left for Transposed<'_, E> {
    type Element = E;

    const TRANSPOSED: bool = true;
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
    fn micro_kernel<A: Arithmetic<Element = Self::Element>, const R: usize, const V: usize>(
        self,
        arithmetic: A,
        row: usize,
        right: &[Row<A::Element>],
        column: usize,
    ) -> [[A::Sums; V]; R] {
        let mut sums = [[arithmetic.zero(); V]; R];
        let first = row % WIDTH;
        for (left, right) in self.0.panel(row / WIDTH).iter().zip(right) {
            let left: &[E; R] = left[first..first + R].try_into().expect("R elements");
            step::<A, R, V>(arithmetic, &mut sums, |r| left[r], right, column);
        }
        sums
    }
}

/// Adds the products of the first columns of R rows and as many rows of the right matrix.
#[inline(always)]
fn steps<A: Arithmetic, const R: usize, const V: usize>(
    arithmetic: A,
    sums: &mut [[A::Sums; V]; R],
    left: &[Row<A::Element>; R],
    right: &[Row<A::Element>],
    column: usize,
) {
    for (i, right) in right.iter().enumerate() {
        step::<A, R, V>(arithmetic, sums, |r| left[r][i], right, column);
    }
}

/// Adds the products of a column of the left matrix and a row of the right one.
#[inline(always)]
fn step<A: Arithmetic, const R: usize, const V: usize>(
    arithmetic: A,
    sums: &mut [[A::Sums; V]; R],
    left: impl Fn(usize) -> A::Element,
    right: &Row<A::Element>,
    column: usize,
) {
    let right = arithmetic.load::<V>(right, column);
    for (r, sums) in sums.iter_mut().enumerate() {
        let left = arithmetic.spread(left(r));
        for (sum, right) in sums.iter_mut().zip(right) {
            *sum = arithmetic.multiply_add(left, right, *sum);
        }
    }
}
