//! Matrices that lie in slices, in any order of rows and columns.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A matrix in a slice: number `(row, column)` stands at `row * row_step + column * column_step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

/// A matrix that can be written, row by row: number `(row, column)` stands at `row * row_step + column`.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a> {
    /// The slice's beginning; a pointer, since tasks write between each other's rows.
    values: *mut f32,
    rows: usize,
    columns: usize,
    row_step: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: as the mutable slice that it stands for; parts of one that are handed out do not overlap.
#[allow(unsafe_code)]
unsafe impl Send for MatrixMut<'_> {}

// SAFETY: through a shared reference nothing is written but by blocks, whose makers see to it that they do not overlap.
#[allow(unsafe_code)]
unsafe impl Sync for MatrixMut<'_> {}

impl<'a> Matrix<'a> {
    /// Rows that follow one another.
    pub(crate) fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::within(values, [rows, columns], columns)
    }

    /// Rows that begin `row_step` numbers after one another.
    pub(crate) fn within(values: &'a [f32], [rows, columns]: [usize; 2], row_step: usize) -> Self {
        let end = last(rows, columns, row_step);
        assert!(end <= values.len(), "{end} numbers of {}", values.len());
        Self { values, rows, columns, row_step, column_step: 1 }
    }

    /// How many rows there are.
    pub(crate) fn n_rows(self) -> usize {
        self.rows
    }

    /// How many columns there are.
    pub(crate) fn n_columns(self) -> usize {
        self.columns
    }

    /// Some columns.
    pub(crate) fn columns(self, range: Range<usize>) -> Self {
        let transposed = self.transposed().rows(range.start, range.len());
        transposed.transposed()
    }

    /// Whether each row lies in one stretch.
    pub(crate) fn has_rows(self) -> bool {
        self.column_step == 1
    }

    /// `rows` rows from `first` on.
    pub(crate) fn rows(self, first: usize, rows: usize) -> Self {
        assert!(first + rows <= self.rows, "rows {first}..{}", first + rows);
        let start = (first * self.row_step).min(self.values.len());
        Self { values: &self.values[start..], rows, ..self }
    }

    /// One row.
    pub(crate) fn row(self, row: usize) -> &'a [f32] {
        assert!(row < self.rows && self.column_step == 1, "row {row}");
        &self.values[row * self.row_step..][..self.columns]
    }

    /// Rows as columns.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_step: self.column_step,
            column_step: self.row_step,
            ..self
        }
    }
}

impl<'a> MatrixMut<'a> {
    /// Rows that follow one another.
    pub(crate) fn new(values: &'a mut [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::within(values, [rows, columns], columns)
    }

    /// Rows that begin `row_step` numbers after one another.
    pub(crate) fn within(
        values: &'a mut [f32],
        [rows, columns]: [usize; 2],
        row_step: usize,
    ) -> Self {
        assert!(columns <= row_step || rows <= 1, "rows overlap");
        let end = last(rows, columns, row_step);
        assert!(end <= values.len(), "{end} numbers of {}", values.len());
        Self { values: values.as_mut_ptr(), rows, columns, row_step, borrowed: PhantomData }
    }

    /// A matrix of numbers that nobody has written yet.
    ///
    /// # Safety
    /// No number is read, alone or in a row, before it was written.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn from_uninit(
        out: &'a mut [MaybeUninit<f32>],
        [rows, columns]: [usize; 2],
    ) -> Self {
        assert_eq!(out.len(), rows * columns, "[{rows}, {columns}]");
        Self {
            values: out.as_mut_ptr().cast(),
            rows,
            columns,
            row_step: columns,
            borrowed: PhantomData,
        }
    }

    /// How many columns there are.
    pub(crate) fn n_columns(&self) -> usize {
        self.columns
    }

    /// Some rows and columns.
    ///
    /// # Safety
    /// Nobody else uses the numbers of the block as long as it lives.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> MatrixMut<'_> {
        assert!(rows.end <= self.rows && columns.end <= self.columns, "{rows:?}, {columns:?}");
        let empty = rows.is_empty() || columns.is_empty();
        // SAFETY: within the slice, as rows and columns are; where there are none nothing is written.
        let values = unsafe {
            let first = rows.start * self.row_step + columns.start;
            self.values.add(if empty { 0 } else { first })
        };
        MatrixMut { values, rows: rows.len(), columns: columns.len(), ..*self }
    }

    /// Some columns.
    pub(crate) fn columns(mut self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.columns, "{range:?}");
        let start = if self.rows == 0 { 0 } else { range.start };
        #[allow(unsafe_code)]
        // SAFETY: within the slice, or at its beginning where there are no rows.
        unsafe {
            self.values = self.values.add(start);
        }
        self.columns = range.len();
        self
    }

    /// Lets the numbers of a row from `column` on, as many as a panel has, come into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: usize, column: usize) {
        prefetch(self.values.wrapping_add(row * self.row_step + column));
    }

    /// Writes some numbers of a row, from `column` on.
    #[inline(always)]
    pub(crate) fn put(&mut self, row: usize, column: usize, values: &[f32]) {
        assert!(row < self.rows && column + values.len() <= self.columns);
        #[allow(unsafe_code)]
        // SAFETY: within the matrix, which is borrowed mutably; the numbers come from elsewhere.
        unsafe {
            let out = self.values.add(row * self.row_step + column);
            std::ptr::copy_nonoverlapping(values.as_ptr(), out, values.len());
        }
    }

    /// Adds to some numbers of a row, from `column` on.
    #[inline(always)]
    pub(crate) fn add(&mut self, row: usize, column: usize, values: &[f32]) {
        let out = &mut self.row(row)[column..][..values.len()];
        for (out, x) in out.iter_mut().zip(values) {
            *out += x;
        }
    }

    /// The matrix cut between columns, into parts of these widths from the left.
    pub(crate) fn split_columns(
        self,
        widths: impl IntoIterator<Item = usize>,
    ) -> impl Iterator<Item = Self> {
        let mut start = 0;
        widths.into_iter().map(move |columns| {
            let end = start + columns;
            assert!(end <= self.columns, "{end} columns of {}", self.columns);
            #[allow(unsafe_code)]
            // SAFETY: within the slice, or one past its end where there are no more columns; a matrix without
            // rows is never written.
            let values = match self.rows {
                0 => self.values,
                _ => unsafe { self.values.add(start) },
            };
            start = end;
            Self { values, columns, ..self }
        })
    }

    /// `rows` rows from `first` on, for as long as the whole is not used.
    pub(crate) fn rows(&mut self, first: usize, rows: usize) -> MatrixMut<'_> {
        assert!(first + rows <= self.rows, "rows {first}..{}", first + rows);
        #[allow(unsafe_code)]
        // SAFETY: within the slice, or one past its end where there are no more rows to write.
        let values = match rows {
            0 => self.values,
            _ => unsafe { self.values.add(first * self.row_step) },
        };
        MatrixMut { values, rows, borrowed: PhantomData, ..*self }
    }

    /// One row.
    pub(crate) fn row(&mut self, row: usize) -> &mut [f32] {
        let row = self.rows(row, 1);
        #[allow(unsafe_code)]
        // SAFETY: the row's columns lie within the slice, and `self` is borrowed mutably as long as they are.
        unsafe {
            std::slice::from_raw_parts_mut(row.values, row.columns)
        }
    }
}

/// Lets the numbers of a row of a panel, which stand there or will, come into the cache. Any address will do.
#[inline(always)]
pub(super) fn prefetch(row: *const f32) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..2 {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[allow(unsafe_code)]
        // SAFETY: nothing is read that the program could notice, and every x86-64 has the instruction.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(16 * line).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}

/// How many numbers a slice must have to hold the last one of a matrix.
fn last(rows: usize, columns: usize, row_step: usize) -> usize {
    match rows.min(columns) {
        0 => 0,
        _ => (rows - 1) * row_step + columns,
    }
}
