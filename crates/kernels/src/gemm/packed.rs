//! Matrices cut into panels of 32 columns, the form in which they are multiplied.
//!
//! A panel holds its columns row after row in one stretch of memory. As the right matrix of a product it is read
//! from one end to the other, as the left one a few of its rows at a time; transposed, some columns of each row.
//! So one copy of a matrix of f32 serves every product that it is part of; in pairs there are two kinds of copy.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::arithmetic::Arithmetic;
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

    /// Some of the rows.
    pub(crate) fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.n_rows, "{range:?}");
        Self { rows: &self.rows[range.start.min(self.rows.len())..], n_rows: range.len(), ..self }
    }

    /// Some of the columns, from the first one of a panel on.
    pub(crate) fn columns(self, range: Range<usize>) -> Self {
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

/// A matrix in panels that can be written, its rows and columns counted in numbers: as the left one of a product, its
/// elements are of columns.
#[derive(Debug)]
pub(crate) struct PackedMut<'a, E = f32> {
    /// The first row of the first panel; a pointer, since tasks write between each other's rows.
    elements: *mut E,
    /// Elements from one panel to the next.
    step: usize,
    n_rows: usize,
    n_columns: usize,
    /// Where in the first panel the first column stands, in elements.
    first: usize,
    borrowed: PhantomData<&'a mut [E]>,
}

// SAFETY: as the mutable slice that it stands for; blocks that are handed out do not overlap.
#[allow(unsafe_code)]
unsafe impl<E: Word> Send for PackedMut<'_, E> {}

// SAFETY: through a shared reference nothing is written but by blocks, whose makers see to it that they do not overlap.
#[allow(unsafe_code)]
unsafe impl<E: Word> Sync for PackedMut<'_, E> {}

impl<'a, E: Word> PackedMut<'a, E> {
    /// Elements that such a matrix has room for.
    pub(crate) fn n_elements([n_rows, n_columns]: [usize; 2]) -> usize {
        n_rows * n_panels(E::count(n_columns)) * WIDTH
    }

    /// Panels that nobody has written yet; no buffer, no panels.
    ///
    /// # Safety
    /// No number is read before it was written.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn from_uninit(
        out: &'a mut [MaybeUninit<f32>],
        [n_rows, n_columns]: [usize; 2],
    ) -> Self {
        let is_empty = out.is_empty();
        assert!(
            is_empty || out.len() == Self::n_elements([n_rows, n_columns]),
            "[{n_rows}, {n_columns}] in {} elements",
            out.len()
        );
        Self {
            elements: out.as_mut_ptr().cast(),
            step: n_rows * WIDTH,
            n_rows: if is_empty { 0 } else { n_rows },
            n_columns,
            first: 0,
            borrowed: PhantomData,
        }
    }

    /// As [`PackedMut::from_uninit`], in rows of panels.
    pub(crate) fn from_rows(rows: &'a mut [Row<E>], shape: [usize; 2]) -> Self {
        let elements = rows.as_flattened_mut();
        #[allow(unsafe_code)]
        // SAFETY: they have all been written, and nothing but elements, which are as large as numbers, is ever
        // written to them.
        unsafe {
            let out = std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len());
            Self::from_uninit(out, shape)
        }
    }

    /// How many columns of numbers there are.
    pub(crate) fn n_columns(&self) -> usize {
        self.n_columns
    }

    /// Whether there are no numbers.
    pub(crate) fn is_empty(&self) -> bool {
        self.n_rows == 0
    }

    /// Some rows and columns, these of whole elements.
    ///
    /// # Safety
    /// Nobody else uses the elements of the block as long as it lives.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn block(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> PackedMut<'_, E> {
        if self.is_empty() || rows.is_empty() || columns.is_empty() {
            return PackedMut { n_rows: 0, ..*self };
        }
        assert!(rows.end <= self.n_rows && columns.end <= self.n_columns, "{rows:?}, {columns:?}");
        let is_whole =
            |column: usize| column.is_multiple_of(E::NUMBERS) || column == self.n_columns;
        assert!(
            is_whole(columns.start) && is_whole(columns.end),
            "{columns:?}: elements are never parted"
        );
        let column = self.first + columns.start / E::NUMBERS;
        // SAFETY: within the elements, as rows and columns are.
        let elements = unsafe {
            let first = column / WIDTH * self.step + rows.start * WIDTH;
            self.elements.add(first)
        };
        PackedMut {
            elements,
            n_rows: rows.len(),
            n_columns: columns.len(),
            first: column % WIDTH,
            ..*self
        }
    }

    /// Lets the row of a panel come into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: usize, column: usize) {
        let column = self.first + column / E::NUMBERS;
        let at = column / WIDTH * self.step + row * WIDTH;
        prefetch(self.elements.wrapping_add(at).cast());
    }

    /// Writes elements of some numbers of a row from `column` on, all in one panel.
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

    /// Writes the first of these elements, as many as `n` numbers are.
    #[inline(always)]
    fn write(&mut self, row: usize, column: usize, n: usize, elements: &[E]) {
        let start = self.start(row, column, n);
        let elements = &elements[..E::count(n)];
        #[allow(unsafe_code)]
        // SAFETY: within the elements, which are borrowed mutably.
        unsafe {
            let out = self.elements.add(start);
            std::ptr::copy_nonoverlapping(elements.as_ptr(), out, elements.len());
        }
    }

    /// Where numbers of a row stand.
    #[inline(always)]
    fn start(&self, row: usize, column: usize, n: usize) -> usize {
        assert!(row < self.n_rows && column + n <= self.n_columns);
        debug_assert_eq!(column % E::NUMBERS, 0, "an element is written whole");
        let column = self.first + column / E::NUMBERS;
        assert!(column % WIDTH + E::count(n) <= WIDTH, "one panel");
        column / WIDTH * self.step + row * WIDTH + column % WIDTH
    }
}

impl PackedMut<'_> {
    /// Writes some numbers of a row from `column` on, all in one panel.
    #[inline(always)]
    pub(crate) fn put(&mut self, row: usize, column: usize, values: &[f32]) {
        self.write(row, column, values.len(), values);
    }

    /// Writes some numbers of a row from `column` on, in as many panels as they reach into.
    #[inline(always)]
    pub(crate) fn put_across(&mut self, row: usize, column: usize, values: &[f32]) {
        let in_first = WIDTH - (self.first + column) % WIDTH;
        let (first, rest) = values.split_at(in_first.min(values.len()));
        self.put(row, column, first);
        for (i, values) in rest.chunks(WIDTH).enumerate() {
            self.put(row, column + in_first + i * WIDTH, values);
        }
    }

    /// `n` numbers of a row from `column` on, all in one panel, that have been written.
    #[inline(always)]
    pub(crate) fn get(&mut self, row: usize, column: usize, n: usize) -> &mut [f32] {
        let start = self.start(row, column, n);
        #[allow(unsafe_code)]
        // SAFETY: within the numbers, which are borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.elements.add(start), n)
        }
    }
}
