//! Matrices cut into panels of 32 columns, the form in which they are multiplied.
//!
//! A panel holds its columns row after row in one stretch of memory. As the right matrix of a product it is read
//! from one end to the other, as the left one a few of its rows at a time; transposed, some columns of each row.
//! So one copy of a matrix of f32 serves every product that it is part of; in pairs there are two kinds of copy.

use std::ops::Range;

use super::element::Word;
use super::matrix::prefetch;

/// Columns of a panel: two registers of AVX-512, four of AVX2, eight of NEON.
pub(crate) const WIDTH: usize = 32;

/// How many panels hold `columns` columns.
pub(crate) const fn n_panels(columns: usize) -> usize {
    columns.div_ceil(WIDTH)
}

/// A row of a panel, which need not begin where a line of the cache does.
pub(crate) type Row<E = f32> = [E; WIDTH];

/// A matrix in panels, its rows and columns counted in elements; what is beyond its last column is any number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedRef<'a, E = f32> {
    /// Row `row` of panel `panel` is number `panel * step + row`.
    rows: &'a [Row<E>],
    step: usize,
    n_rows: usize,
    n_columns: usize,
}

impl<'a, E: Word> PackedRef<'a, E> {
    /// Panels that follow one another.
    pub(crate) fn new(rows: &'a [Row<E>], [n_rows, n_columns]: [usize; 2]) -> Self {
        Self::within(rows, [n_rows, n_columns], n_rows)
    }

    /// Panels that begin `step` rows after one another.
    pub(crate) fn within(rows: &'a [Row<E>], [n_rows, n_columns]: [usize; 2], step: usize) -> Self {
        let n_panels = n_panels(n_columns);
        assert!(n_rows <= step, "panels overlap");
        assert!(
            n_panels == 0 || (n_panels - 1) * step + n_rows <= rows.len(),
            "[{n_rows}, {n_columns}] of {} rows",
            rows.len()
        );
        Self { rows, step, n_rows, n_columns }
    }

    pub(crate) fn n_rows(self) -> usize {
        self.n_rows
    }

    pub(crate) fn n_columns(self) -> usize {
        self.n_columns
    }

    /// The rows of a panel.
    #[inline(always)]
    pub(crate) fn panel(self, panel: usize) -> &'a [Row<E>] {
        &self.rows[panel * self.step..][..self.n_rows]
    }

    /// Lets the row of a panel come into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(self, row: usize, column: usize) {
        prefetch(self.panel(column / WIDTH)[row].as_ptr().cast());
    }

    pub(crate) fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.n_rows, "{range:?}");
        Self { rows: &self.rows[range.start.min(self.rows.len())..], n_rows: range.len(), ..self }
    }

    /// Some of the columns, from the first one of a panel on.
    pub(crate) fn columns(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.n_columns && range.start.is_multiple_of(WIDTH),
            "{range:?}"
        );
        Self {
            rows: &self.rows[(range.start / WIDTH * self.step).min(self.rows.len())..],
            n_columns: range.len(),
            ..self
        }
    }
}
