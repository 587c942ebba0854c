//! A long run of token ids: a part of a mapped file, or in memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use memmap2::Mmap;

/// The ids of a split, one after another. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokens {
    ids: Arc<Ids>,
    /// Which of the ids are this split's.
    range: Range<usize>,
    bytes: u64,
}

#[derive(Debug)]
enum Ids {
    Memory(Vec<u32>),
    Mapped {
        map: Mmap,
        header_bytes: usize,
        width: Width,
        /// Keeps the lock by which others know that the file is in use.
        _file: File,
    },
}

/// How many bytes a token takes in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Two,
    Four,
}

impl Width {
    /// The narrowest that has room for every id.
    pub(super) fn of_vocabulary(vocab_size: usize) -> Self {
        if vocab_size <= 1 << 16 { Self::Two } else { Self::Four }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// The bytes of ids in a file.
    ///
    /// # Panics
    /// If an id does not fit.
    pub(super) fn encode(self, ids: &[u32]) -> Vec<u8> {
        let narrow = |&id: &u32| u16::try_from(id).expect("the vocabulary has at most 65,536 ids");
        match self {
            Self::Two => ids.iter().flat_map(|id| narrow(id).to_le_bytes()).collect(),
            Self::Four => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        }
    }
}

impl Tokens {
    /// Ids in memory; `bytes` is the length of the text that they stand for.
    #[must_use]
    pub fn from_ids(ids: &[u32], bytes: u64) -> Self {
        Self { range: 0..ids.len(), ids: Arc::new(Ids::Memory(ids.to_vec())), bytes }
    }

    /// `n` ids that look random and are always the same ones, below `vocab_size`: a text to measure with.
    #[must_use]
    pub fn made_up(n: usize, vocab_size: usize) -> Self {
        let vocab_size = u64::try_from(vocab_size).unwrap_or(u64::MAX);
        let ids: Vec<u32> = (0..n as u64)
            .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32)
            .map(|noise| u32::try_from(noise % vocab_size).unwrap_or(0))
            .collect();
        Self::from_ids(&ids, n as u64)
    }

    /// All ids of a token file, behind its header. They stand for `bytes` bytes of text.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub(super) fn map(
        file: File,
        header_bytes: usize,
        width: Width,
        bytes: u64,
    ) -> io::Result<Self> {
        let map = map_whole_file(&file)?;
        let n_tokens = (map.len() - header_bytes) / width.bytes();
        let ids = Arc::new(Ids::Mapped { map, header_bytes, width, _file: file });
        Ok(Self { ids, range: 0..n_tokens, bytes })
    }

    /// Two halves: the first `n_first` tokens, which stand for `first_bytes`, and the others.
    pub(super) fn split_at(self, n_first: usize, first_bytes: u64) -> (Self, Self) {
        let middle = self.range.start + n_first;
        assert!(middle <= self.range.end && first_bytes <= self.bytes);
        let rest_bytes = self.bytes - first_bytes;
        let rest = middle..self.range.end;
        let first = Self { range: self.range.start..middle, bytes: first_bytes, ..self.clone() };
        (first, Self { range: rest, bytes: rest_bytes, ..self })
    }

    /// How many tokens there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// How many bytes of text the tokens stand for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies the ids from position `start` on, as many as `out` holds.
    ///
    /// # Panics
    /// If there are fewer than that.
    pub fn read(&self, start: usize, out: &mut [i32]) {
        let end = start.checked_add(out.len()).filter(|end| *end <= self.len());
        assert!(end.is_some(), "{} ids from {start} on, out of {}", out.len(), self.len());
        let start = self.range.start + start;
        match &*self.ids {
            Ids::Memory(ids) => {
                for (out, &id) in out.iter_mut().zip(&ids[start..]) {
                    *out = id.cast_signed();
                }
            }
            Ids::Mapped { map, header_bytes, width: Width::Two, .. } => {
                let (ids, _) = map[header_bytes + 2 * start..].as_chunks();
                for (out, &id) in out.iter_mut().zip(ids) {
                    *out = i32::from(u16::from_le_bytes(id));
                }
            }
            Ids::Mapped { map, header_bytes, width: Width::Four, .. } => {
                let (ids, _) = map[header_bytes + 4 * start..].as_chunks();
                for (out, &id) in out.iter_mut().zip(ids) {
                    *out = i32::from_le_bytes(id);
                }
            }
        }
    }
}

/// Maps a file, so that the operating system reads what is used and drops what is not.
#[allow(unsafe_code, reason = "mapping a file is unsafe, and memory stays flat only with a map")]
fn map_whole_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes must not change while they are mapped. A token file is written under a name
    // of its own and then renamed; no code here opens one for writing under its final name, and
    // replacing one leaves the mapped file as it is. Someone else who cuts it off while it is in
    // use stops the process, and does no worse: every bit pattern is an integer.
    unsafe { Mmap::map(file) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read_all(tokens: &Tokens) -> Vec<i32> {
        let mut ids = vec![-1; tokens.len()];
        tokens.read(0, &mut ids);
        ids
    }

    #[test]
    fn ids_come_back_from_memory_and_from_files() {
        let mut narrow = tempfile::tempfile().unwrap();
        narrow.write_all(&[9, 9, 9, 0, 0, 1, 0, 255, 255]).unwrap();
        let narrow = Tokens::map(narrow, 3, Width::Two, 5).unwrap();
        assert_eq!(read_all(&narrow), [0, 1, 65535]);
        let mut wide = tempfile::tempfile().unwrap();
        wide.write_all(&[9, 1, 0, 1, 0, 2, 0, 0, 0]).unwrap();
        let wide = Tokens::map(wide, 1, Width::Four, 5).unwrap();
        assert_eq!(read_all(&wide), [65537, 2]);
        assert_eq!(read_all(&Tokens::from_ids(&[3, 70000], 2)), [3, 70000]);
    }

    #[test]
    fn splits_share_the_ids_and_the_bytes() {
        let tokens = Tokens::from_ids(&[1, 2, 3, 4, 5], 9);
        let (first, rest) = tokens.split_at(3, 4);
        assert_eq!((read_all(&first), first.bytes()), (vec![1, 2, 3], 4));
        assert_eq!((read_all(&rest), rest.bytes()), (vec![4, 5], 5));
        let mut one = [0];
        rest.read(1, &mut one);
        assert_eq!(one, [5]);
    }

    #[test]
    #[should_panic(expected = "2 ids from 2 on, out of 3")]
    fn a_split_is_not_read_beyond_its_end() {
        let (first, _) = Tokens::from_ids(&[1, 2, 3, 4, 5], 5).split_at(3, 3);
        first.read(2, &mut [0; 2]);
    }
}
