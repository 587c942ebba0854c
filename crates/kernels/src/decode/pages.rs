//! Room for blocks that are read from one end to the other, in pages as large as the system gives.
//!
//! With pages of 4 KiB a core spends a third of such a reading on finding the next page; with 2 MiB next to nothing.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use super::block::Block;

/// A slice of blocks, all zeros at first, whose memory is there once it is touched.
pub(super) struct Pages<B> {
    map: MmapMut,
    len: usize,
    blocks: PhantomData<B>,
}

impl<B: Block> Pages<B> {
    /// Room for `len` blocks.
    ///
    /// # Panics
    /// If the system has no memory left.
    pub(super) fn zeros(len: usize) -> Self {
        // A mapping of nothing is refused.
        let n_bytes =
            len.checked_mul(size_of::<B>()).expect("no machine has so much memory").max(1);
        let map = MmapMut::map_anon(n_bytes)
            .unwrap_or_else(|error| panic!("no {n_bytes} bytes of memory: {error}"));
        #[cfg(target_os = "linux")]
        map.advise(memmap2::Advice::HugePage).ok(); // only slower where the system refuses
        Self { map, len, blocks: PhantomData }
    }
}

impl<B: Block> Deref for Pages<B> {
    type Target = [B];

    #[allow(unsafe_code)]
    fn deref(&self) -> &[B] {
        // SAFETY: the mapping has room for `len` blocks, was zeros at first and then written as blocks alone. A block
        // is made of f32 and u32, for which zeros are numbers, and is aligned to less than a page. The mapping lives
        // as long as `self`, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

impl<B: Block> DerefMut for Pages<B> {
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut [B] {
        // SAFETY: as above, and `self` is borrowed mutably: the mapping is nobody else's.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.len) }
    }
}

impl<B: Block> fmt::Debug for Pages<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::Whole;
    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_rest_is_zero() {
        for len in [0, 1, 1000] {
            let mut pages = Pages::<Whole>::zeros(len);
            assert_eq!(pages.len(), len);
            if let Some(last) = pages.last_mut() {
                last.0[31].0[31] = 1.5;
            }
            let sum: f32 = pages.iter().flat_map(|block| block.0).flat_map(|row| row.0).sum();
            assert!((sum - if len == 0 { 0.0 } else { 1.5 }).abs() < f32::EPSILON);
        }
    }
}
