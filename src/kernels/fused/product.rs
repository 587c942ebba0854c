//! Products of matrices that lie in slices, in any order of rows and columns, without copying them first.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use gemm::Parallelism;

/// A matrix in a slice: number `(row, column)` stands at `row * row_step + column * column_step`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

/// A matrix that can be written, row by row: number `(row, column)` stands at `row * row_step + column`.
#[derive(Debug)]
pub(super) struct MatrixMut<'a> {
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

impl<'a> Matrix<'a> {
    /// Rows that follow one another.
    pub(super) fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::within(values, [rows, columns], columns)
    }

    /// Rows that begin `row_step` numbers after one another.
    pub(super) fn within(values: &'a [f32], [rows, columns]: [usize; 2], row_step: usize) -> Self {
        let end = last(rows, columns, row_step);
        assert!(end <= values.len(), "{end} numbers of {}", values.len());
        Self {
            values,
            rows,
            columns,
            row_step,
            column_step: 1,
        }
    }

    /// How many rows there are.
    pub(super) fn n_rows(self) -> usize {
        self.rows
    }

    /// How many columns there are.
    pub(super) fn n_columns(self) -> usize {
        self.columns
    }

    /// The first `columns` columns.
    pub(super) fn columns(self, columns: usize) -> Self {
        assert!(columns <= self.columns, "{columns} columns");
        Self { columns, ..self }
    }

    /// `rows` rows from `first` on.
    pub(super) fn rows(self, first: usize, rows: usize) -> Self {
        assert!(first + rows <= self.rows, "rows {first}..{}", first + rows);
        let start = (first * self.row_step).min(self.values.len());
        Self {
            values: &self.values[start..],
            rows,
            ..self
        }
    }

    /// One number.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    pub(super) fn at(self, row: usize, column: usize) -> f32 {
        debug_assert!(row < self.rows && column < self.columns);
        self.values[row * self.row_step + column * self.column_step]
    }

    /// One row.
    pub(super) fn row(self, row: usize) -> &'a [f32] {
        assert!(row < self.rows && self.column_step == 1, "row {row}");
        &self.values[row * self.row_step..][..self.columns]
    }

    /// Rows as columns.
    pub(super) fn transposed(self) -> Self {
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
    pub(super) fn new(values: &'a mut [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::within(values, [rows, columns], columns)
    }

    /// Rows that begin `row_step` numbers after one another.
    pub(super) fn within(
        values: &'a mut [f32],
        [rows, columns]: [usize; 2],
        row_step: usize,
    ) -> Self {
        assert!(columns <= row_step || rows <= 1, "rows overlap");
        let end = last(rows, columns, row_step);
        assert!(end <= values.len(), "{end} numbers of {}", values.len());
        Self {
            values: values.as_mut_ptr(),
            rows,
            columns,
            row_step,
            borrowed: PhantomData,
        }
    }

    /// The matrix cut between columns, into parts of these widths from the left.
    pub(super) fn split_columns(
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
            Self {
                values,
                columns,
                ..self
            }
        })
    }

    /// `rows` rows from `first` on, for as long as the whole is not used.
    pub(super) fn rows(&mut self, first: usize, rows: usize) -> MatrixMut<'_> {
        assert!(first + rows <= self.rows, "rows {first}..{}", first + rows);
        #[allow(unsafe_code)]
        // SAFETY: within the slice, or one past its end where there are no more rows to write.
        let values = match rows {
            0 => self.values,
            _ => unsafe { self.values.add(first * self.row_step) },
        };
        MatrixMut {
            values,
            rows,
            borrowed: PhantomData,
            ..*self
        }
    }

    /// One row.
    pub(super) fn row(&mut self, row: usize) -> &mut [f32] {
        let row = self.rows(row, 1);
        #[allow(unsafe_code)]
        // SAFETY: the row's columns lie within the slice, and `self` is borrowed mutably as long as they are.
        unsafe {
            std::slice::from_raw_parts_mut(row.values, row.columns)
        }
    }
}

/// How many numbers a slice must have to hold the last one of a matrix.
fn last(rows: usize, columns: usize, row_step: usize) -> usize {
    match rows.min(columns) {
        0 => 0,
        _ => (rows - 1) * row_step + columns,
    }
}

/// Writes `a b` row by row into numbers that nobody has written yet, and returns them.
pub(super) fn write<'a>(
    out: &'a mut [MaybeUninit<f32>],
    a: Matrix<'_>,
    b: Matrix<'_>,
) -> &'a mut [f32] {
    let [rows, columns] = [a.rows, b.columns];
    assert_eq!(out.len(), rows * columns, "[{rows}, {columns}]");
    let matrix = MatrixMut {
        values: out.as_mut_ptr().cast(),
        rows,
        columns,
        row_step: columns,
        borrowed: PhantomData,
    };
    multiply(matrix, a, b, false);
    #[allow(unsafe_code)]
    // SAFETY: a product that is not added to anything writes every number of its output, and reads none.
    unsafe {
        out.assume_init_mut()
    }
}

/// `out = a b`, or `out += a b` if it is to `add`, in this thread.
///
/// The order of every sum follows from the shapes alone.
#[allow(unsafe_code)]
pub(super) fn multiply(out: MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, add: bool) {
    assert_eq!(
        (out.rows, out.columns, a.columns),
        (a.rows, b.columns, b.rows),
        "[{}, {}] = [{}, {}] [{}, {}]",
        out.rows,
        out.columns,
        a.rows,
        a.columns,
        b.rows,
        b.columns
    );
    let step = |step: usize| isize::try_from(step).expect("a slice is not longer");
    // SAFETY: each matrix lies within its slice, as was asserted when it was made; `out` borrows its numbers
    // mutably, so that nobody else reads or writes them.
    unsafe {
        gemm::gemm(
            out.rows,
            out.columns,
            a.columns,
            out.values,
            1,
            step(out.row_step),
            add,
            a.values.as_ptr(),
            step(a.column_step),
            step(a.row_step),
            b.values.as_ptr(),
            step(b.column_step),
            step(b.row_step),
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::noise;
    use super::*;

    /// The product in double precision.
    fn reference(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f64> {
        let at = |m: Matrix<'_>, row: usize, column: usize| f64::from(m.at(row, column));
        (0..a.rows)
            .flat_map(|row| {
                (0..b.columns).map(move |column| {
                    (0..a.columns)
                        .map(|i| at(a, row, i) * at(b, i, column))
                        .sum()
                })
            })
            .collect()
    }

    #[test]
    fn any_order_of_rows_and_columns_multiplies() {
        for [m, k, n] in [
            [1, 1, 1],
            [3, 5, 2],
            [17, 33, 9],
            [64, 32, 64],
            [1, 40, 70],
            [70, 3, 1],
        ] {
            let (a, b) = (noise(m * k, 1), noise(k * n, 2));
            let plain = (Matrix::new(&a, [m, k]), Matrix::new(&b, [k, n]));
            let turned = (
                Matrix::new(&a, [k, m]).transposed(),
                Matrix::new(&b, [n, k]).transposed(),
            );
            for (a, b) in [plain, turned, (plain.0, turned.1), (turned.0, plain.1)] {
                let mut out = vec![1.0; m * n];
                multiply(MatrixMut::new(&mut out, [m, n]), a, b, false);
                multiply(MatrixMut::new(&mut out, [m, n]), a, b, true);
                for (got, want) in out.iter().zip(reference(a, b)) {
                    assert!(
                        (f64::from(*got) - 2.0 * want).abs() < 1e-4,
                        "{got}, not {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn blocks_of_columns_are_the_whole() {
        let (a, b) = (noise(6 * 7, 1), noise(7 * 10, 2));
        let a = Matrix::new(&a, [6, 7]);
        let mut out = vec![f32::NAN; 6 * 12];
        let whole = MatrixMut::within(&mut out, [6, 10], 12);
        let mut start = 0;
        for mut block in whole.split_columns([4, 5, 1]) {
            let b = Matrix::within(&b[start..], [7, block.columns], 10);
            start += block.columns;
            multiply(block.rows(0, 2), a.rows(0, 2), b, false);
            multiply(block.rows(2, 4), a.rows(2, 4), b, false);
        }
        let want = reference(a, Matrix::new(&b, [7, 10]));
        for (row, want) in want.chunks(10).enumerate() {
            for (got, want) in out[row * 12..].iter().zip(want) {
                assert!((f64::from(*got) - want).abs() < 1e-5, "{got}, not {want}");
            }
            let gap = out.get(row * 12 + 10..row * 12 + 12);
            assert!(
                gap.is_none_or(|gap| gap.iter().all(|x| x.is_nan())),
                "a gap was written"
            );
        }
    }
}
