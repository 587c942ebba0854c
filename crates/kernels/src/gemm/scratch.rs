//! Reused memory for panels: fresh pages from the system cost as much time as a product on them.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::element::{Row, WIDTH, Word};

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Aligned([f32; WIDTH]);

/// The most buffers kept, per thread and shared.
const KEPT: usize = 16;

/// Buffers of at least this many rows, 1 MiB, are shared by all threads; otherwise each thread would end up with its
/// own.
const LARGE: usize = 1 << 13;

thread_local! {
    static SMALL: RefCell<Vec<Vec<Aligned>>> = const { RefCell::new(Vec::new()) };
}

static SHARED: Mutex<Vec<Vec<Aligned>>> = Mutex::new(Vec::new());

/// Rows of panels with arbitrary content.
#[derive(Debug)]
pub(crate) struct Scratch<E = f32> {
    buffer: Vec<Aligned>,
    n_rows: usize,
    elements: PhantomData<E>,
}

impl<E> Scratch<E> {
    /// A buffer of `n_rows` rows: the smallest returned one that is large enough, or a new one.
    pub(crate) fn new(n_rows: usize) -> Self {
        let fitting = match n_rows {
            0 => None,
            LARGE.. => take(&mut shared(), n_rows),
            _ => SMALL.with_borrow_mut(|free| take(free, n_rows)),
        };
        let buffer = fitting.unwrap_or_else(|| vec![Aligned([FRESH; WIDTH]); n_rows]);
        Self { buffer, n_rows, elements: PhantomData }
    }
}

/// The content of new rows. In tests it spoils every result that depends on it.
const FRESH: f32 = if cfg!(test) { f32::NAN } else { 0.0 };

/// Locks the list, also after a panic: buffers have no invariants.
fn shared() -> MutexGuard<'static, Vec<Vec<Aligned>>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(free: &mut Vec<Vec<Aligned>>, n_rows: usize) -> Option<Vec<Aligned>> {
    let sizes = free.iter().map(Vec::len).enumerate();
    let fitting = sizes.filter(|(_, size)| *size >= n_rows);
    let (smallest, _) = fitting.min_by_key(|(_, size)| *size)?;
    Some(free.swap_remove(smallest))
}

fn give_back(free: &mut Vec<Vec<Aligned>>, buffer: Vec<Aligned>) {
    free.push(buffer);
    if free.len() > KEPT {
        let smallest = (0..free.len()).min_by_key(|i| free[*i].len());
        free.swap_remove(smallest.expect("the list holds more than the limit"));
    }
}

impl<E> Drop for Scratch<E> {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        match buffer.len() {
            0 => {}
            LARGE.. => give_back(&mut shared(), buffer),
            // A thread that is ending has no list any more, and the buffer is freed.
            _ => {
                let _ = SMALL.try_with(|free| give_back(&mut free.borrow_mut(), buffer));
            }
        }
    }
}

impl<E: Word> Deref for Scratch<E> {
    type Target = [Row<E>];

    fn deref(&self) -> &[Row<E>] {
        // SAFETY: the buffer has at least this many rows, an aligned row has the size of a row, and an element has the
        // size of an f32 and may have any bits.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast(), self.n_rows) }
    }
}

impl<E: Word> DerefMut for Scratch<E> {
    fn deref_mut(&mut self) -> &mut [Row<E>] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.as_mut_ptr().cast(), self.n_rows) }
    }
}
