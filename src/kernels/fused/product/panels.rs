//! Matrices cut into panels of 32 columns, the form in which they are multiplied.
//!
//! A panel holds its columns row after row in one stretch of memory. As the right matrix of a product it is read
//! from one end to the other, as the left one a few of its rows at a time; turned round, some columns of each row.
//! So one copy of a matrix serves every product that it is part of.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::matrix::fetch;

pub(in crate::kernels::fused) use crate::kernels::panels::{WIDTH, n_panels};

/// A row of a panel, which need not begin where a line of the cache does.
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
