//! Packed matrices: divided into panels of 32 columns, the form in which they are multiplied.
//!
//! A panel holds its columns row by row, contiguously. As the right matrix of a product it is read sequentially; as the
//! left one, a few of its rows at a time, or transposed, a few columns of each row. So in f32 one copy of a matrix
//! serves every product; pairs of bfloat16 need two kinds of copies.

use std::ops::Range;

use super::element::{Row, WIDTH, Word, n_panels};

/// A matrix in panels, with rows and columns counted in elements. Padding after its last column has any value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedRef<'a, E = f32> {
    /// Row `row` of panel `panel` is at `panel * step + row`.
    rows: &'a [Row<E>],
    step: usize,
    n_rows: usize,
    n_columns: usize,
}

impl<'a, E: Word> PackedRef<'a, E> {
    pub(crate) fn new(rows: &'a [Row<E>], [n_rows, n_columns]: [usize; 2]) -> Self {
        Self::within(rows, [n_rows, n_columns], n_rows)
    }

    /// Panels that begin `step` rows apart.
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

    /// The first row of the first panel, in the memory of all panels.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn as_ptr(self) -> *const Row<E> {
        self.rows.as_ptr()
    }

    /// The number of rows from the beginning of one panel to that of the next.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn step(self) -> usize {
        self.step
    }

    pub(crate) fn n_rows(self) -> usize {
        self.n_rows
    }

    pub(crate) fn n_columns(self) -> usize {
        self.n_columns
    }

    #[inline(always)]
    pub(crate) fn panel(self, panel: usize) -> &'a [Row<E>] {
        &self.rows[panel * self.step..][..self.n_rows]
    }

    #[inline(always)]
    pub(crate) fn prefetch(self, row: usize, column: usize) {
        prefetch(self.panel(column / WIDTH)[row].as_ptr().cast());
    }

    /// Prefetches rows of a panel, also beyond the last one.
    #[inline(always)]
    pub(super) fn prefetch_rows(self, panel: usize, rows: Range<usize>) {
        prefetch_rows(self.rows.as_ptr().wrapping_add(panel * self.step + rows.start), rows.len());
    }

    pub(crate) fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.n_rows, "{range:?}");
        Self { rows: &self.rows[range.start.min(self.rows.len())..], n_rows: range.len(), ..self }
    }

    /// A range of columns that begins with the first one of a panel.
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

#[inline(always)]
pub(super) fn prefetch_rows<E>(first: *const Row<E>, n: usize) {
    for row in 0..n {
        prefetch(first.wrapping_add(row).cast());
    }
}

/// Prefetches a row of a panel, to be read or written. Any address is allowed.
#[inline(always)]
pub(super) fn prefetch(row: *const f32) {
    for line in 0..2 {
        prefetch_line(row.wrapping_add(16 * line));
    }
}

/// Prefetches the cache line of an element. Any address is allowed.
#[inline(always)]
pub(super) fn prefetch_line<T>(element: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no visible effect, and every x86-64 has the instruction.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(element.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = element;
}
