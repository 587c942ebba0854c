//! Matrices cut into panels of 32 columns, the form in which they are multiplied.
//!
//! A panel holds its columns row after row in one stretch of memory. As the right matrix of a product it is read
//! from one end to the other, as the left one a few of its rows at a time; turned round, some columns of each row.
//! So one copy of a matrix serves every product that it is part of.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::super::{run, scratch::Scratch};
use super::matrix::{Matrix, fetch};
use super::square::{self, SIDE};

/// Columns of a panel: two registers of AVX-512, four of AVX2, eight of NEON.
pub(in crate::kernels::fused) const WIDTH: usize = 32;

/// A row of a panel.
pub(in crate::kernels::fused) type Row = [f32; WIDTH];

/// A matrix in panels; what is beyond its last column is any number.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels::fused) struct Panels<'a> {
    /// Row `row` of panel `panel` is number `panel * step + row`.
    rows: &'a [Row],
    step: usize,
    n_rows: usize,
    n_columns: usize,
}

impl<'a> Panels<'a> {
    /// Panels that follow one another.
    pub(in crate::kernels::fused) fn new(rows: &'a [Row], [n_rows, n_columns]: [usize; 2]) -> Self {
        Self::within(rows, [n_rows, n_columns], n_rows)
    }

    /// Panels that begin `step` rows after one another.
    pub(in crate::kernels::fused) fn within(
        rows: &'a [Row],
        [n_rows, n_columns]: [usize; 2],
        step: usize,
    ) -> Self {
        let n_panels = n_panels(n_columns);
        assert!(n_rows <= step, "panels overlap");
        assert!(
            n_panels == 0 || (n_panels - 1) * step + n_rows <= rows.len(),
            "[{n_rows}, {n_columns}] of {} rows",
            rows.len()
        );
        Self {
            rows,
            step,
            n_rows,
            n_columns,
        }
    }

    pub(in crate::kernels::fused) fn n_rows(self) -> usize {
        self.n_rows
    }

    pub(in crate::kernels::fused) fn n_columns(self) -> usize {
        self.n_columns
    }

    /// The rows of a panel.
    #[inline(always)]
    pub(in crate::kernels::fused) fn panel(self, panel: usize) -> &'a [Row] {
        &self.rows[panel * self.step..][..self.n_rows]
    }

    /// Lets the row of a panel come into the cache.
    #[inline(always)]
    pub(in crate::kernels::fused) fn fetch(self, row: usize, column: usize) {
        fetch(self.panel(column / WIDTH)[row].as_ptr());
    }

    /// Some of the rows.
    pub(in crate::kernels::fused) fn rows(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.n_rows,
            "{range:?}"
        );
        Self {
            rows: &self.rows[range.start.min(self.rows.len())..],
            n_rows: range.len(),
            ..self
        }
    }

    /// Some of the columns, from the first one of a panel on.
    pub(in crate::kernels::fused) fn columns(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end
                && range.end <= self.n_columns
                && range.start.is_multiple_of(WIDTH),
            "{range:?}"
        );
        Self {
            rows: &self.rows[(range.start / WIDTH * self.step).min(self.rows.len())..],
            n_columns: range.len(),
            ..self
        }
    }
}

/// How many panels hold `columns` columns.
pub(in crate::kernels::fused) const fn n_panels(columns: usize) -> usize {
    columns.div_ceil(WIDTH)
}

/// A copy of a matrix in panels.
#[derive(Debug)]
pub(in crate::kernels::fused) struct Packed {
    rows: Scratch,
    shape: [usize; 2],
}

impl Packed {
    /// Copies a matrix, in this thread.
    #[inline(always)]
    pub(in crate::kernels::fused) fn here<S: Simd>(simd: S, matrix: Matrix<'_>) -> Self {
        let shape = [matrix.n_rows(), matrix.n_columns()];
        let mut rows = Scratch::new(shape[0] * n_panels(shape[1]));
        pack(simd, matrix, &mut rows);
        Self { rows, shape }
    }

    /// Copies some matrices, on all cores.
    pub(in crate::kernels::fused) fn all<const N: usize>(matrices: [Matrix<'_>; N]) -> [Self; N] {
        let packed = Self::all_of(&matrices);
        packed.try_into().expect("as many as there are matrices")
    }

    /// As [`Packed::all`].
    pub(in crate::kernels::fused) fn all_of(matrices: &[Matrix<'_>]) -> Vec<Self> {
        let shapes = matrices.iter().map(|x| [x.n_rows(), x.n_columns()]);
        let mut packed: Vec<_> = shapes
            .map(|shape| Self {
                rows: Scratch::new(shape[0] * n_panels(shape[1])),
                shape,
            })
            .collect();
        let numbers = packed.iter().map(|x| x.rows.len() * WIDTH).sum();
        let tasks = matrices.iter().zip(&mut packed);
        run(
            numbers,
            tasks.flat_map(|(matrix, packed)| Pack::tasks(*matrix, &mut packed.rows)),
        );
        packed
    }

    pub(in crate::kernels::fused) fn panels(&self) -> Panels<'_> {
        Panels::new(&self.rows, self.shape)
    }
}

/// A matrix in panels that can be written.
#[derive(Debug)]
pub(in crate::kernels::fused) struct PanelsMut<'a> {
    /// The first number; a pointer, since tasks write between each other's rows.
    numbers: *mut f32,
    /// Numbers from one panel to the next.
    step: usize,
    n_rows: usize,
    n_columns: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: as the mutable slice that it stands for; cells that are handed out do not overlap.
#[allow(unsafe_code)]
unsafe impl Send for PanelsMut<'_> {}

impl<'a> PanelsMut<'a> {
    /// Panels that nobody has written yet; in no room, panels of no numbers.
    ///
    /// # Safety
    /// No number is read before it was written.
    #[allow(unsafe_code)]
    pub(in crate::kernels::fused) unsafe fn of_room(
        room: &'a mut [MaybeUninit<f32>],
        [n_rows, n_columns]: [usize; 2],
    ) -> Self {
        let is_empty = room.is_empty();
        assert!(
            is_empty || room.len() == n_rows * n_panels(n_columns) * WIDTH,
            "[{n_rows}, {n_columns}] in {} numbers",
            room.len()
        );
        Self {
            numbers: room.as_mut_ptr().cast(),
            step: n_rows * WIDTH,
            n_rows: if is_empty { 0 } else { n_rows },
            n_columns,
            borrowed: PhantomData,
        }
    }

    /// As [`PanelsMut::of_room`], in rows of panels.
    pub(in crate::kernels::fused) fn of_rows(rows: &'a mut [Row], shape: [usize; 2]) -> Self {
        let numbers = rows.as_flattened_mut();
        #[allow(unsafe_code)]
        // SAFETY: they have all been written, and nothing but numbers is ever written to them.
        unsafe {
            let room = std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), numbers.len());
            Self::of_room(room, shape)
        }
    }

    /// Whether there are no numbers.
    pub(in crate::kernels::fused) fn is_empty(&self) -> bool {
        self.n_rows == 0
    }

    /// Some rows and columns, these from the first one of a panel on.
    ///
    /// # Safety
    /// Nobody else uses the numbers of the cell as long as it lives.
    #[allow(unsafe_code)]
    pub(in crate::kernels::fused) unsafe fn cell(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> PanelsMut<'_> {
        if self.is_empty() || rows.is_empty() || columns.is_empty() {
            return PanelsMut { n_rows: 0, ..*self };
        }
        assert!(
            rows.end <= self.n_rows && columns.end <= self.n_columns,
            "{rows:?}, {columns:?}"
        );
        assert_eq!(columns.start % WIDTH, 0, "{columns:?}");
        // SAFETY: within the numbers, as rows and columns are.
        let numbers = unsafe {
            let first = columns.start / WIDTH * self.step + rows.start * WIDTH;
            self.numbers.add(first)
        };
        PanelsMut {
            numbers,
            n_rows: rows.len(),
            n_columns: columns.len(),
            ..*self
        }
    }

    /// Lets the row of a panel come into the cache.
    #[inline(always)]
    pub(in crate::kernels::fused) fn fetch(&self, row: usize, column: usize) {
        fetch(
            self.numbers
                .wrapping_add(column / WIDTH * self.step + row * WIDTH),
        );
    }

    /// Writes some numbers of a row from `column` on, all in one panel.
    #[inline(always)]
    pub(in crate::kernels::fused) fn put(&mut self, row: usize, column: usize, values: &[f32]) {
        let start = self.start(row, column, values.len());
        #[allow(unsafe_code)]
        // SAFETY: within the numbers, which are borrowed mutably.
        unsafe {
            let out = self.numbers.add(start);
            std::ptr::copy_nonoverlapping(values.as_ptr(), out, values.len());
        }
    }

    /// `n` numbers of a row from `column` on, all in one panel, that have been written.
    #[inline(always)]
    pub(in crate::kernels::fused) fn get(
        &mut self,
        row: usize,
        column: usize,
        n: usize,
    ) -> &mut [f32] {
        let start = self.start(row, column, n);
        #[allow(unsafe_code)]
        // SAFETY: within the numbers, which are borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.numbers.add(start), n)
        }
    }

    #[inline(always)]
    fn start(&self, row: usize, column: usize, n: usize) -> usize {
        let first = column % WIDTH;
        assert!(row < self.n_rows && column + n <= self.n_columns && first + n <= WIDTH);
        column / WIDTH * self.step + row * WIDTH + first
    }
}

/// Copies some panels of a matrix.
struct Pack<'a> {
    matrix: Matrix<'a>,
    out: &'a mut [Row],
}

impl<'a> Pack<'a> {
    /// The tasks that copy a whole matrix.
    fn tasks(matrix: Matrix<'a>, out: &'a mut [Row]) -> impl Iterator<Item = Self> {
        let n_rows = matrix.n_rows().max(1);
        let panels = (NUMBERS / (n_rows * WIDTH)).max(n_panels(matrix.n_columns()).div_ceil(TASKS));
        let panels = panels.max(1);
        out.chunks_mut(panels * n_rows)
            .enumerate()
            .map(move |(i, out)| {
                let first = i * panels * WIDTH;
                let n = (panels * WIDTH).min(matrix.n_columns() - first);
                let matrix = matrix.columns(first..first + n);
                Self { matrix, out }
            })
    }
}

impl WithSimd for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        pack(simd, self.matrix, self.out);
    }
}

/// Numbers that one task copies at least.
const NUMBERS: usize = 1 << 15;

/// Tasks of one matrix at most: the wider its part, the longer the stretches that a task reads.
const TASKS: usize = 8;

/// Rows that are copied side by side.
const ROWS: usize = 8;

/// Copies a matrix into panels that follow one another.
#[inline(always)]
fn pack<S: Simd>(simd: S, matrix: Matrix<'_>, out: &mut [Row]) {
    let [n_rows, n_columns] = [matrix.n_rows(), matrix.n_columns()];
    if n_rows == 0 {
        return;
    }
    assert_eq!(
        out.len(),
        n_rows * n_panels(n_columns),
        "[{n_rows}, {n_columns}]"
    );
    if !matrix.has_rows() {
        for (panel, out) in out.chunks_exact_mut(n_rows).enumerate() {
            turn(simd, matrix.transposed(), panel * WIDTH, out);
        }
        return;
    }
    for first in (0..n_rows).step_by(ROWS) {
        let rows = first..n_rows.min(first + ROWS);
        for (panel, out) in out.chunks_exact_mut(n_rows).enumerate() {
            for row in rows.clone() {
                let x = &matrix.row(row)[panel * WIDTH..];
                // A whole panel apart: a copy of known length is made of registers.
                match x.first_chunk::<WIDTH>() {
                    Some(x) => out[row] = *x,
                    None => out[row][..x.len()].copy_from_slice(x),
                }
            }
        }
    }
}

/// Copies rows of `matrix`, from `first` on, into the columns of a panel.
#[inline(always)]
fn turn<S: Simd>(simd: S, matrix: Matrix<'_>, first: usize, out: &mut [Row]) {
    let n_columns = WIDTH.min(matrix.n_rows() - first);
    let (blocks, rest) = out.as_chunks_mut::<SIDE>();
    let whole = if n_columns == WIDTH { blocks.len() } else { 0 };
    for (block, out) in blocks[..whole].iter_mut().enumerate() {
        for column in (0..WIDTH).step_by(SIDE) {
            let mut x = [[0.0; SIDE]; SIDE];
            for (i, x) in x.iter_mut().enumerate() {
                let row = &matrix.row(first + column + i)[block * SIDE..];
                *x = *row.first_chunk().expect("the row goes on");
            }
            for (out, x) in out.iter_mut().zip(square::transposed(simd, x)) {
                out[column..column + SIDE].copy_from_slice(&x);
            }
        }
    }
    let rest = blocks[whole..].as_flattened_mut().iter_mut().chain(rest);
    for (row, out) in (whole * SIDE..).zip(rest) {
        for (column, out) in out[..n_columns].iter_mut().enumerate() {
            *out = matrix.row(first + column)[row];
        }
    }
}
