//! Memory for panels that is used again and again: what is fresh from the system costs as much as a product of it.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use super::product::{Row, WIDTH};

/// Buffers that a thread keeps at most.
const KEPT: usize = 16;

thread_local! {
    static FREE: RefCell<Vec<Vec<Aligned>>> = const { RefCell::new(Vec::new()) };
}

/// A row that begins where a line of the cache does.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Aligned(Row);

/// Rows of panels that hold whatever they held before.
#[derive(Debug)]
pub(super) struct Scratch {
    buffer: Vec<Aligned>,
    n_rows: usize,
}

impl Scratch {
    /// Room for `n_rows` rows: the smallest that this thread gave back and that holds them, or new.
    pub(super) fn new(n_rows: usize) -> Self {
        let fitting = FREE.with_borrow_mut(|free| {
            let sizes = free.iter().map(Vec::len).enumerate();
            let fitting = sizes.filter(|(_, size)| *size >= n_rows);
            let (smallest, _) = fitting.min_by_key(|(_, size)| *size)?;
            Some(free.swap_remove(smallest))
        });
        let buffer = fitting.unwrap_or_else(|| vec![Aligned([0.0; WIDTH]); n_rows]);
        Self { buffer, n_rows }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        // A thread that ends has no list any more, and lets the buffer go.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            free.push(buffer);
            if free.len() > KEPT {
                let smallest = (0..free.len()).min_by_key(|i| free[*i].len());
                free.swap_remove(smallest.expect("there are some"));
            }
        });
    }
}

impl Deref for Scratch {
    type Target = [Row];

    #[allow(unsafe_code)]
    fn deref(&self) -> &[Row] {
        // SAFETY: the buffer has at least so many rows, and one that is aligned is as large as the row alone.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast(), self.n_rows) }
    }
}

impl DerefMut for Scratch {
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut [Row] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.as_mut_ptr().cast(), self.n_rows) }
    }
}
