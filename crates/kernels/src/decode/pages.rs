//! Memory for sequential reads, in huge pages where the system provides them.
//!
//! With pages of 4 KiB a core spends a third of the time on address translation, with pages of 2 MiB almost none. A huge
//! page takes its memory as soon as any of it is touched, so all of a mapping is meant to be used.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use crate::gemm::{Row, Word};

/// The size of a huge page on x86-64 and most others; a smaller mapping holds none.
#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed rows of packed panels. The system allocates their memory when it is first touched.
pub(crate) struct Pages<W = f32> {
    map: MmapMut,
    n_rows: usize,
    elements: PhantomData<W>,
}

impl<W: Word> Pages<W> {
    /// Maps memory for `n_rows` rows.
    ///
    /// # Panics
    /// If the system has no memory left.
    pub(crate) fn zeros(n_rows: usize) -> Self {
        let n_bytes = n_rows.checked_mul(size_of::<Row<W>>()).expect("the size fits an address space");
        // The system refuses an empty mapping.
        let map =
            MmapMut::map_anon(n_bytes.max(1)).unwrap_or_else(|error| panic!("no {n_bytes} bytes of memory: {error}"));
        #[cfg(target_os = "linux")]
        if n_bytes >= HUGE_PAGE {
            map.advise(memmap2::Advice::HugePage).ok(); // if the system refuses, reading is only slower
        }
        Self { map, n_rows, elements: PhantomData }
    }
}

impl<W: Word> Deref for Pages<W> {
    type Target = [Row<W>];

    fn deref(&self) -> &[Row<W>] {
        // SAFETY: the mapping is as long as the rows and aligned to a page, every bit pattern is a valid element, and
        // it lives as long as `self`, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.n_rows) }
    }
}

impl<W: Word> DerefMut for Pages<W> {
    fn deref_mut(&mut self) -> &mut [Row<W>] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably, so there is no other reference to the mapping.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.n_rows) }
    }
}

impl<W: Word> fmt::Debug for Pages<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows", self.n_rows)
    }
}
