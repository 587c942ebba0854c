//! Small numbers in a page: runs of one of them, and packed groups of eight. They are read one by one, so that a few bytes
//! which stand for billions of them take no memory.

use super::thrift::{Result, damaged, varint};

pub(super) struct Runs {
    width: usize,
    /// The place of the next run, and the numbers that are left of this one.
    position: usize,
    left: u64,
    run: Run,
}

#[derive(Clone, Copy)]
enum Run {
    Of(u32),
    /// Packed numbers, the next of which begins at this bit.
    Packed(usize),
}

impl Runs {
    /// Numbers of so many bits, from a place on; zeros without one.
    pub(super) fn new(width: u32, position: usize) -> Self {
        let left = if width == 0 { u64::MAX } else { 0 };
        Self { width: width as usize, position, left, run: Run::Of(0) }
    }

    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<u32> {
        while self.left == 0 {
            let mut rest = bytes.get(self.position..).unwrap_or_default();
            let head = varint(&mut rest)?;
            self.position = bytes.len() - rest.len();
            let n = head >> 1;
            if head & 1 == 0 {
                (self.left, self.run) = (n, Run::Of(number(bytes, self.position * 8, self.width.next_multiple_of(8))?));
                self.position += self.width.div_ceil(8);
            } else {
                (self.left, self.run) = (n.saturating_mul(8), Run::Packed(self.position * 8));
                let n_bytes = usize::try_from(n).unwrap_or(usize::MAX).saturating_mul(self.width);
                self.position = self.position.saturating_add(n_bytes).min(bytes.len());
            }
        }
        self.left -= 1;
        match &mut self.run {
            Run::Of(value) => Ok(*value),
            Run::Packed(at) => {
                *at += self.width;
                number(bytes, *at - self.width, self.width)
            }
        }
    }
}

/// So many bytes from a place on.
pub(super) fn part(bytes: &[u8], start: usize, len: usize) -> Result<&[u8]> {
    let end = start.checked_add(len);
    end.and_then(|end| bytes.get(start..end)).ok_or_else(|| damaged("a page is too short for its values"))
}

/// A number of up to 32 bits that begins at a bit, the low ones first.
pub(super) fn number(bytes: &[u8], at: usize, width: usize) -> Result<u32> {
    let width = width.min(32);
    let skipped = at % 8;
    let bytes = part(bytes, at / 8, (skipped + width).div_ceil(8))?;
    let all = bytes.iter().rev().fold(0_u64, |all, byte| (all << 8) | u64::from(*byte));
    let mask = (1_u64 << width) - 1;
    Ok(u32::try_from((all >> skipped) & mask).expect("up to 32 bits"))
}
