//! The micro-kernels (inner loops): as many sums as fit the registers, over the whole depth of a product.
//!
//! A tile has two registers of columns and up to twelve rows, or four registers of two panels and six rows, which loads
//! less per multiply-add. On AVX2, which has half as many registers of half the size, it has four registers of columns,
//! a whole panel, and three rows. Each element of the left matrix is broadcast to a register and multiplied with all
//! columns, and each register of the right matrix is used for all rows.

use std::marker::PhantomData;
use std::ops::Range;

use pulp::Simd;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::arithmetic::{Arithmetic, Element, Exact, SumRegister};
use super::element::{Row, WIDTH, Word, n_panels};
use super::packed::{PackedRef, prefetch_line, prefetch_rows};
#[cfg(target_arch = "x86_64")]
use super::scratch::Scratch;
#[cfg(target_arch = "x86_64")]
use super::transpose::{SIDE, transposed};
use super::weight::{Weight, scales};

/// The left matrix of a product: its rows are those of the output.
pub(crate) trait LeftMatrix: Copy + Send + Sync {
    /// The elements of the product's arithmetic.
    type Element: Element;

    type RightElement: Word;

    /// Whether fewer of its rows fit the registers than of [`RowMajor`].
    const FEW_ROWS: bool;

    /// Whether the rows of a tile must be in the same panel.
    const IN_PANELS: bool = false;

    /// The rows of a unit, which blocks never split.
    const UNIT: usize;

    fn n_rows(self) -> usize;

    /// The number of rows of elements in the right matrix.
    fn depth(self) -> usize;

    /// A range of rows that begins with a whole unit.
    fn part(self, rows: Range<usize>) -> Self;

    /// The rows of the right matrix in a step of the depth, which is never split.
    const STEP: usize;

    /// The columns that are multiplied with these steps of the depth.
    fn steps(self, steps: Range<usize>) -> Self;

    /// Adds the products of R rows from `row` on, with V registers of columns from column `column` of a panel on.
    fn micro_kernel<A: Arithmetic<Element = Self::Element>, const R: usize, const V: usize>(
        self,
        arithmetic: A,
        row: usize,
        right: &[Row<Self::RightElement>],
        column: usize,
        sums: [[SumRegister<A>; V]; R],
    ) -> [[SumRegister<A>; V]; R];

    /// The matrix as [`RowMajor`], padded to whole tiles of a matrix unit: to a multiple of 32 rows with any content,
    /// and of 16 columns with zeros. It is copied to `scratch` only if needed.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn by_rows<'b, S: Simd>(self, _simd: S, _scratch: &'b mut Scratch<Self::Element>) -> PackedRef<'b, Self::Element>
    where
        Self: 'b,
    {
        unreachable!("a matrix unit does not multiply these elements")
    }

    /// Whether a tile may have columns of two panels: see [`LeftMatrix::wide_kernel`].
    const IS_WIDE: bool = false;

    /// Like [`LeftMatrix::micro_kernel`], with four registers of 16 columns from two panels.
    #[inline(always)]
    fn wide_kernel<A: Arithmetic<Element = Self::Element>, const R: usize>(
        self,
        _arithmetic: A,
        _row: usize,
        _right: [&[Row<Self::RightElement>]; 2],
        _sums: [[SumRegister<A>; 4]; R],
    ) -> [[SumRegister<A>; 4]; R] {
        unreachable!("the matrix has no wide tiles")
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RowMajor<'a, E = f32>(pub(crate) PackedRef<'a, E>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Transposed<'a, E = f32>(pub(crate) PackedRef<'a, E>);

/// A matrix of f32, to be multiplied with weights of other elements. Its padding after the last column is finite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixed<'a, W>(PackedRef<'a>, PhantomData<W>);

impl<E: Element> RowMajor<'_, E> {
    /// Prefetches the panel that follows for R rows from `row` on: their next one, or the first one of the rows below.
    /// CPUs do not foresee this jump.
    #[inline(always)]
    fn prefetch_after<const R: usize>(self, panel: usize, row: usize) {
        let is_last = panel + 1 == n_panels(self.0.n_columns());
        let (panel, row) = if is_last { (0, row + R) } else { (panel + 1, row) };
        self.0.prefetch_rows(panel, row..row + R);
    }
}

impl<E: Element> LeftMatrix for RowMajor<'_, E> {
    type Element = E;
    type RightElement = E;

    const FEW_ROWS: bool = false;
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

    const STEP: usize = WIDTH;

    fn steps(self, steps: Range<usize>) -> Self {
        Self(self.0.columns(in_scalars(steps, self.0.n_columns())))
    }

    #[inline(always)]
    fn micro_kernel<A: Arithmetic<Element = E>, const R: usize, const V: usize>(
        self,
        arithmetic: A,
        row: usize,
        right: &[Row<E>],
        column: usize,
        mut sums: [[SumRegister<A>; V]; R],
    ) -> [[SumRegister<A>; V]; R] {
        for (panel, right) in right.chunks(WIDTH).enumerate() {
            let left: &[Row<E>; R] = self.0.panel(panel)[row..row + R].try_into().expect("R rows");
            self.prefetch_after::<R>(panel, row);
            // Whole panels are handled separately: a loop of constant length is unrolled.
            match right.first_chunk::<WIDTH>() {
                Some(right) => steps::<A, R, V>(arithmetic, &mut sums, left, right, column),
                None => steps::<A, R, V>(arithmetic, &mut sums, left, right, column),
            }
        }
        sums
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn by_rows<'b, S: Simd>(self, _: S, scratch: &'b mut Scratch<E>) -> PackedRef<'b, E>
    where
        Self: 'b,
    {
        let Self(packed) = self;
        let shape = [packed.n_rows(), packed.n_columns()];
        let whole @ [n_rows, n_columns] = whole_tiles(shape);
        if shape == whole {
            return packed;
        }
        *scratch = Scratch::new(n_rows * n_panels(n_columns));
        for (panel, out) in scratch.chunks_exact_mut(n_rows).enumerate() {
            for (out, row) in out.iter_mut().zip(packed.panel(panel)) {
                *out = *row;
                out[WIDTH.min(shape[1] - panel * WIDTH)..].fill(E::default());
            }
        }
        PackedRef::new(scratch, whole)
    }

    const IS_WIDE: bool = true;

    #[inline(always)]
    fn wide_kernel<A: Arithmetic<Element = E>, const R: usize>(
        self,
        arithmetic: A,
        row: usize,
        right: [&[Row<E>]; 2],
        mut sums: [[SumRegister<A>; 4]; R],
    ) -> [[SumRegister<A>; 4]; R] {
        let [first, second] = right.map(|right| right.chunks(WIDTH));
        for (panel, (first, second)) in first.zip(second).enumerate() {
            let left: &[Row<E>; R] = self.0.panel(panel)[row..row + R].try_into().expect("R rows");
            self.prefetch_after::<R>(panel, row);
            match (first.first_chunk::<WIDTH>(), second.first_chunk::<WIDTH>()) {
                (Some(first), Some(second)) => wide_steps(arithmetic, &mut sums, left, first, second),
                _ => wide_steps(arithmetic, &mut sums, left, first, second),
            }
        }
        sums
    }
}

impl<E: Element> LeftMatrix for Transposed<'_, E> {
    type Element = E;
    type RightElement = E;

    const FEW_ROWS: bool = true;
    const IN_PANELS: bool = true;
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

    const STEP: usize = WIDTH;

    fn steps(self, steps: Range<usize>) -> Self {
        Self(self.0.rows(in_scalars(steps, self.0.n_rows())))
    }

    #[inline(always)]
    fn micro_kernel<A: Arithmetic<Element = E>, const R: usize, const V: usize>(
        self,
        arithmetic: A,
        row: usize,
        right: &[Row<E>],
        column: usize,
        mut sums: [[SumRegister<A>; V]; R],
    ) -> [[SumRegister<A>; V]; R] {
        let first = row % WIDTH;
        for (left, right) in self.0.panel(row / WIDTH).iter().zip(right) {
            let left: &[E; R] = left[first..first + R].try_into().expect("R elements");
            step::<A, R, V>(
                arithmetic,
                &mut sums,
                #[inline(always)]
                |r| left[r],
                right,
                column,
            );
        }
        sums
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn by_rows<'b, S: Simd>(self, simd: S, scratch: &'b mut Scratch<E>) -> PackedRef<'b, E>
    where
        Self: 'b,
    {
        let Self(packed) = self;
        let whole @ [n_rows, n_columns] = whole_tiles([packed.n_columns(), packed.n_rows()]);
        *scratch = Scratch::new(n_rows * n_panels(n_columns));
        for first_row in (0..n_rows).step_by(WIDTH) {
            let columns = packed.panel(first_row / WIDTH);
            for first in (0..n_columns).step_by(SIDE) {
                for row in (0..WIDTH).step_by(SIDE) {
                    let mut square = [[E::default(); SIDE]; SIDE];
                    for (x, column) in square.iter_mut().zip(&columns[first.min(columns.len())..]) {
                        x.copy_from_slice(&column[row..row + SIDE]);
                    }
                    let rows = &mut scratch[first / WIDTH * n_rows + first_row + row..][..SIDE];
                    for (out, x) in rows.iter_mut().zip(transposed(simd, square)) {
                        out[first % WIDTH..][..SIDE].copy_from_slice(&x);
                    }
                }
            }
        }
        PackedRef::new(scratch, whole)
    }

    const IS_WIDE: bool = true;

    #[inline(always)]
    fn wide_kernel<A: Arithmetic<Element = E>, const R: usize>(
        self,
        arithmetic: A,
        row: usize,
        right: [&[Row<E>]; 2],
        mut sums: [[SumRegister<A>; 4]; R],
    ) -> [[SumRegister<A>; 4]; R] {
        let first = row % WIDTH;
        let left = self.0.panel(row / WIDTH).iter();
        for (left, (one, other)) in left.zip(right[0].iter().zip(right[1])) {
            prefetch_line(left.as_ptr().wrapping_add(ROWS_AHEAD * WIDTH + first));
            let left: &[E; R] = left[first..first + R].try_into().expect("R elements");
            wide_step::<A, R>(
                arithmetic,
                &mut sums,
                #[inline(always)]
                |r| left[r],
                [one, other],
            );
        }
        sums
    }
}

impl<'a, W> Mixed<'a, W> {
    pub(crate) fn new(left: PackedRef<'a>) -> Self {
        Self(left, PhantomData)
    }
}

impl<W: Weight> LeftMatrix for Mixed<'_, W> {
    type Element = f32;
    type RightElement = W;

    const FEW_ROWS: bool = true;
    const UNIT: usize = 8;

    fn n_rows(self) -> usize {
        self.0.n_rows()
    }

    fn depth(self) -> usize {
        n_panels(self.0.n_columns()) * W::ROWS
    }

    fn part(self, rows: Range<usize>) -> Self {
        Self::new(self.0.rows(rows))
    }

    const STEP: usize = W::ROWS;

    fn steps(self, steps: Range<usize>) -> Self {
        Self::new(self.0.columns(in_scalars(steps, self.0.n_columns())))
    }

    #[inline(always)]
    fn micro_kernel<A: Arithmetic<Element = f32>, const R: usize, const V: usize>(
        self,
        arithmetic: A,
        row: usize,
        right: &[Row<W>],
        column: usize,
        mut sums: [[SumRegister<A>; V]; R],
    ) -> [[SumRegister<A>; V]; R] {
        let simd = arithmetic.simd();
        let zeros = [[simd.splat_f32s(0.0); V]; R];
        for (panel, block) in right.chunks_exact(W::ROWS).enumerate() {
            let left: &[Row; R] = self.0.panel(panel)[row..row + R].try_into().expect("R rows");
            if A::Simd::F32_LANES == 8 && V == 2 {
                // Half a panel at a time is not a sequence that CPUs recognize.
                let ahead = (panel + AHEAD) * W::ROWS;
                if let Some(rows) = right.get(ahead..ahead + W::ROWS) {
                    prefetch_rows(rows.as_ptr(), rows.len());
                }
            }
            let mut part = if W::SCALED { zeros } else { sums };
            for (words, right) in block[..WIDTH / W::SCALARS].iter().enumerate() {
                for i in 0..W::SCALARS {
                    let weights = W::widen::<_, V>(simd, right, column, i);
                    for (sums, left) in part.iter_mut().zip(left) {
                        let x = simd.splat_f32s(left[W::SCALARS * words + i]);
                        for (sum, weight) in sums.iter_mut().zip(weights) {
                            *sum = Exact(simd).multiply_add(x, weight, *sum);
                        }
                    }
                }
            }
            if W::SCALED {
                let scales = scales::<_, _, V>(simd, block, column);
                for (sums, part) in sums.iter_mut().zip(part) {
                    for ((sum, part), scale) in sums.iter_mut().zip(part).zip(scales) {
                        *sum = Exact(simd).multiply_add(part, scale, *sum);
                    }
                }
            } else {
                sums = part;
            }
        }
        sums
    }
}

const ROWS_AHEAD: usize = 16;

const AHEAD: usize = 4;

/// The rows and columns of a left matrix, rounded up to whole tiles of a matrix unit.
#[cfg(target_arch = "x86_64")]
fn whole_tiles([n_rows, n_columns]: [usize; 2]) -> [usize; 2] {
    [n_rows.next_multiple_of(amx::ROWS), n_columns.next_multiple_of(amx::TILE)]
}

/// The range of these steps, each as wide as a panel, of `n` scalars.
fn in_scalars(steps: Range<usize>, n: usize) -> Range<usize> {
    steps.start * WIDTH..n.min(steps.end * WIDTH)
}

/// Adds the products of the first columns of R rows with as many rows of the right matrix.
#[inline(always)]
fn steps<A: Arithmetic, const R: usize, const V: usize>(
    arithmetic: A,
    sums: &mut [[SumRegister<A>; V]; R],
    left: &[Row<A::Element>; R],
    right: &[Row<A::Element>],
    column: usize,
) {
    for (i, right) in right.iter().enumerate() {
        step::<A, R, V>(
            arithmetic,
            sums,
            #[inline(always)]
            |r| left[r][i],
            right,
            column,
        );
    }
}

/// Adds the outer product of a column of the left matrix and a row of the right one.
#[inline(always)]
fn step<A: Arithmetic, const R: usize, const V: usize>(
    arithmetic: A,
    sums: &mut [[SumRegister<A>; V]; R],
    left: impl Fn(usize) -> A::Element,
    right: &Row<A::Element>,
    column: usize,
) {
    // The shorter side of a tile stays in registers: on AVX2, sums take all but four.
    if const { R < V } {
        let mut lefts = [arithmetic.spread(left(0)); R];
        for (r, spread) in lefts.iter_mut().enumerate().skip(1) {
            *spread = arithmetic.spread(left(r));
        }
        for v in 0..V {
            let [right] = arithmetic.load::<1>(right, column + v * A::Simd::F32_LANES);
            for (sums, left) in sums.iter_mut().zip(lefts) {
                sums[v] = arithmetic.multiply_add(left, right, sums[v]);
            }
        }
        return;
    }
    let right = arithmetic.load::<V>(right, column);
    for (r, sums) in sums.iter_mut().enumerate() {
        let left = arithmetic.spread(left(r));
        for (sum, right) in sums.iter_mut().zip(right) {
            *sum = arithmetic.multiply_add(left, right, *sum);
        }
    }
}

/// Like [`steps`], with two panels.
#[inline(always)]
fn wide_steps<A: Arithmetic, const R: usize>(
    arithmetic: A,
    sums: &mut [[SumRegister<A>; 4]; R],
    left: &[Row<A::Element>; R],
    first: &[Row<A::Element>],
    second: &[Row<A::Element>],
) {
    for (i, right) in first.iter().zip(second).enumerate() {
        wide_step::<A, R>(
            arithmetic,
            sums,
            #[inline(always)]
            |r| left[r][i],
            [right.0, right.1],
        );
    }
}

/// Like [`step`], with rows of two panels.
#[inline(always)]
fn wide_step<A: Arithmetic, const R: usize>(
    arithmetic: A,
    sums: &mut [[SumRegister<A>; 4]; R],
    left: impl Fn(usize) -> A::Element,
    [first, second]: [&Row<A::Element>; 2],
) {
    let ([a, b], [c, d]) = (arithmetic.load::<2>(first, 0), arithmetic.load::<2>(second, 0));
    for (r, sums) in sums.iter_mut().enumerate() {
        let left = arithmetic.spread(left(r));
        for (sum, right) in sums.iter_mut().zip([a, b, c, d]) {
            *sum = arithmetic.multiply_add(left, right, *sum);
        }
    }
}
