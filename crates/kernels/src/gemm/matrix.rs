//! Views of matrices: read-only with any strides, or writable in rows or panels.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::arithmetic::Arithmetic;
use super::element::{Row, WIDTH, Word, n_panels};
use super::packed::prefetch;

/// A matrix in a slice: the scalar `(row, column)` is at `row * row_step + column * column_step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

impl<'a> Matrix<'a> {
    pub(crate) fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::within(values, [rows, columns], columns)
    }

    /// Rows that begin `row_step` scalars apart.
    pub(crate) fn within(values: &'a [f32], [rows, columns]: [usize; 2], row_step: usize) -> Self {
        let end = last(rows, columns, row_step);
        assert!(end <= values.len(), "{end} scalars of {}", values.len());
        Self { values, rows, columns, row_step, column_step: 1 }
    }

    pub(crate) fn n_rows(self) -> usize {
        self.rows
    }

    pub(crate) fn n_columns(self) -> usize {
        self.columns
    }

    pub(crate) fn columns(self, range: Range<usize>) -> Self {
        let transposed = self.transposed().rows(range.start, range.len());
        transposed.transposed()
    }

    pub(crate) fn has_rows(self) -> bool {
        self.column_step == 1
    }

    /// `rows` rows, starting with row `first`.
    pub(crate) fn rows(self, first: usize, rows: usize) -> Self {
        assert!(first + rows <= self.rows, "rows {first}..{}", first + rows);
        let start = (first * self.row_step).min(self.values.len());
        Self { values: &self.values[start..], rows, ..self }
    }

    pub(crate) fn row(self, row: usize) -> &'a [f32] {
        assert!(row < self.rows && self.column_step == 1, "row {row}");
        &self.values[row * self.row_step..][..self.columns]
    }

    pub(crate) fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, row_step: self.column_step, column_step: self.row_step, ..self }
    }
}

/// A writable matrix, with rows and columns counted in scalars. In panels, an element holds adjacent columns, as in the
/// left matrix of a product; in rows, the matrix is a single panel as wide as itself.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a, E = f32> {
    /// The first row of the first panel; a pointer, because the rows of different tasks are interleaved.
    elements: *mut E,
    n_rows: usize,
    n_columns: usize,
    /// The number of elements from one row of a panel to the next, and from one panel to the next.
    steps: [usize; 2],
    /// The offset of the first column in the first panel, in elements.
    first: usize,
    borrowed: PhantomData<&'a mut [E]>,
}

// SAFETY: as for the mutable slice that it was made from; the blocks taken from it do not overlap.
unsafe impl<E: Word> Send for MatrixMut<'_, E> {}

// SAFETY: through a shared reference only blocks are written, and the callers of `block` ensure that these do not
// overlap.
unsafe impl<E: Word> Sync for MatrixMut<'_, E> {}

impl<'a, E: Word> MatrixMut<'a, E> {
    /// Elements of a matrix in panels.
    pub(crate) fn n_packed([n_rows, n_columns]: [usize; 2]) -> usize {
        n_rows * n_panels(E::count(n_columns)) * WIDTH
    }

    /// Uninitialized panels. An empty slice is a matrix without rows.
    ///
    /// # Safety
    /// No scalar may be read before it is written.
    pub(crate) unsafe fn packed_uninit(
        out: &'a mut [MaybeUninit<f32>],
        shape @ [n_rows, n_columns]: [usize; 2],
    ) -> Self {
        assert!(out.is_empty() || out.len() == Self::n_packed(shape), "{shape:?}, {}", out.len());
        let shape = [if out.is_empty() { 0 } else { n_rows }, n_columns];
        Self::over(out.as_mut_ptr().cast(), shape, [WIDTH, n_rows * WIDTH])
    }

    fn over(elements: *mut E, [n_rows, n_columns]: [usize; 2], steps: [usize; 2]) -> Self {
        Self { elements, n_rows, n_columns, steps, first: 0, borrowed: PhantomData }
    }

    pub(crate) fn packed(rows: &'a mut [Row<E>], shape: [usize; 2]) -> Self {
        let elements = rows.as_flattened_mut();
        // SAFETY: all of them are initialized, and only elements, which have the size of scalars, are ever written to
        // them.
        unsafe {
            let out = std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len());
            Self::packed_uninit(out, shape)
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.n_rows == 0
    }

    /// A block of rows and columns, whose columns are whole elements.
    ///
    /// # Safety
    /// Nothing else accesses the elements of the block during its lifetime.
    pub(crate) unsafe fn block<'b>(&self, rows: Range<usize>, columns: Range<usize>) -> MatrixMut<'b, E>
    where
        'a: 'b,
    {
        let (n_rows, n_columns) = (rows.len(), columns.len());
        let block = MatrixMut { n_rows, n_columns, borrowed: PhantomData, ..*self };
        if self.is_empty() || rows.is_empty() || columns.is_empty() {
            return MatrixMut { n_rows: 0, ..block };
        }
        assert!(rows.end <= self.n_rows && columns.end <= self.n_columns, "{rows:?}, {columns:?}");
        let is_whole = |column: usize| column.is_multiple_of(E::SCALARS) || column == self.n_columns;
        assert!(is_whole(columns.start) && is_whole(columns.end), "{columns:?} split an element");
        let column = self.first + columns.start / E::SCALARS;
        let [row_step, panel_step] = self.steps;
        // SAFETY: within the elements, as rows and columns are.
        let elements = unsafe { self.elements.add(column / WIDTH * panel_step + rows.start * row_step) };
        MatrixMut { elements, first: column % WIDTH, ..block }
    }

    /// Prefetches as many scalars of a row as a panel has, from `column` on.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: usize, column: usize) {
        prefetch(self.elements.wrapping_add(self.at(row, column)).cast());
    }

    /// Writes scalars to a row as elements, from `column` on.
    #[inline(always)]
    pub(crate) fn put_elements<A: Arithmetic<Element = E>>(
        &mut self,
        arithmetic: A,
        row: usize,
        column: usize,
        values: &[f32],
    ) {
        let mut out = [E::default(); WIDTH];
        arithmetic.round(values, &mut out);
        self.write(row, column, values.len(), &out);
    }

    /// Writes the first of these elements, as many as `n` scalars need.
    #[inline(always)]
    fn write(&mut self, row: usize, column: usize, n: usize, elements: &[E]) {
        let elements = &elements[..E::count(n)];
        let out = self.start(row, column, n);
        // SAFETY: `n` scalars are there, which are borrowed mutably.
        unsafe {
            std::ptr::copy_nonoverlapping(elements.as_ptr(), out, elements.len());
        }
    }

    /// A pointer to `n` scalars of a row, which in panels are all in one panel.
    #[inline(always)]
    fn start(&self, row: usize, column: usize, n: usize) -> *mut E {
        assert!(row < self.n_rows && column + n <= self.n_columns, "columns of row {row}");
        debug_assert_eq!(column % E::SCALARS, 0, "an element is written whole");
        let in_panel = (self.first + column / E::SCALARS) % WIDTH;
        assert!(self.steps[1] == WIDTH || in_panel + E::count(n) <= WIDTH, "one panel");
        // In bounds, because row and columns are.
        self.elements.wrapping_add(self.at(row, column))
    }

    /// The index of a scalar's element.
    #[inline(always)]
    fn at(&self, row: usize, column: usize) -> usize {
        let column = self.first + column / E::SCALARS;
        column / WIDTH * self.steps[1] + row * self.steps[0] + column % WIDTH
    }
}

impl<'a> MatrixMut<'a> {
    pub(crate) fn new(values: &'a mut [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::within(values, [rows, columns], columns)
    }

    /// Rows that begin `row_step` scalars apart.
    pub(crate) fn within(values: &'a mut [f32], [n_rows, n_columns]: [usize; 2], row_step: usize) -> Self {
        assert!(n_columns <= row_step || n_rows <= 1, "rows overlap");
        let end = last(n_rows, n_columns, row_step);
        assert!(end <= values.len(), "{end} scalars of {}", values.len());
        Self::over(values.as_mut_ptr(), [n_rows, n_columns], [row_step, WIDTH])
    }

    /// Uninitialized rows.
    ///
    /// # Safety
    /// No scalar is read before it is written.
    pub(crate) unsafe fn from_uninit(out: &'a mut [MaybeUninit<f32>], shape: [usize; 2]) -> Self {
        let [n_rows, n_columns] = shape;
        assert_eq!(out.len(), n_rows * n_columns, "{shape:?}");
        Self::over(out.as_mut_ptr().cast(), shape, [n_columns, WIDTH])
    }

    /// The matrix split along its columns into parts of this width, from the left.
    pub(crate) fn split_columns(self, width: usize) -> impl Iterator<Item = Self> {
        (0..self.n_columns / width).map(move |i| {
            // SAFETY: the ranges of columns do not overlap, and the whole is consumed.
            unsafe { self.block(0..self.n_rows, i * width..(i + 1) * width) }
        })
    }

    pub(crate) fn columns(self, range: Range<usize>) -> Self {
        // SAFETY: the whole is consumed.
        unsafe { self.block(0..self.n_rows, range) }
    }

    /// `n` rows from `first` on, which borrow the whole.
    pub(crate) fn rows(&mut self, first: usize, n: usize) -> MatrixMut<'_> {
        // SAFETY: the whole is borrowed mutably.
        unsafe { self.block(first..first + n, 0..self.n_columns) }
    }

    /// `n` initialized scalars of a row from `column` on, which in panels are all in one panel.
    #[inline(always)]
    pub(crate) fn get(&mut self, row: usize, column: usize, n: usize) -> &mut [f32] {
        let start = self.start(row, column, n);
        // SAFETY: `n` scalars are there, which are borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(start, n) }
    }

    pub(crate) fn row(&mut self, row: usize) -> &mut [f32] {
        self.get(row, 0, self.n_columns)
    }

    /// Writes scalars to a row from `column` on, in panels all to one panel.
    #[inline(always)]
    pub(crate) fn put(&mut self, row: usize, column: usize, values: &[f32]) {
        self.write(row, column, values.len(), values);
    }

    /// Writes scalars to a row from `column` on, in panels to as many as they span.
    #[inline(always)]
    pub(crate) fn put_across(&mut self, row: usize, column: usize, values: &[f32]) {
        let in_first = WIDTH - (self.first + column) % WIDTH;
        let (first, rest) = values.split_at(in_first.min(values.len()));
        self.put(row, column, first);
        for (i, values) in rest.chunks(WIDTH).enumerate() {
            self.put(row, column + in_first + i * WIDTH, values);
        }
    }
}

/// The length of the shortest slice that holds the matrix.
fn last(rows: usize, columns: usize, row_step: usize) -> usize {
    match rows.min(columns) {
        0 => 0,
        _ => (rows - 1) * row_step + columns,
    }
}
