//! Rows rounded to int8, for products of integers with weights in int8 (W8A8).
//!
//! Each block of 32 scalars of a row has a scale, as in a weight's column. The 32 products of a block are summed
//! exactly, in integers, so every instruction set gives the same bytes; then both scales multiply the sum.

use pulp::Simd;
use rayon::prelude::*;

use super::element::{Row, WIDTH, n_panels};
use super::packed::PackedRef;
use super::weight::Int8x4;
use crate::elementary::fused;
use crate::simd;
use crate::tasks::CHUNK;

/// The number of words in a block: four scalars each.
pub(super) const WORDS: usize = WIDTH / 4;

/// The rows of scalars and the row of scales in a block of weights.
pub(super) type WeightBlock = [Row<Int8x4>; WORDS + 1];

/// A row's part of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quantized {
    /// Four integers from -127 to 127 each, the first in the lowest byte.
    pub(super) words: [u32; WORDS],
    /// The same integers in 16 bits: the first and the third of each word, and the second and the fourth.
    pub(super) pairs: [[u32; 2]; WORDS],
    /// The start of a sum of products, -128 times the sum of these integers, because weights are stored with 128 added.
    pub(super) start: i32,
    /// The largest magnitude is 127 times this.
    pub(super) scale: f32,
}

/// Adding this rounds to an integer, which the lowest bits of the sum then hold.
const ROUNDING: f32 = 12_582_912.0;

impl Quantized {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from -127 to 127, and its lowest byte")]
    fn new(scalars: &Row) -> Self {
        // As bits, infinity and NaN are larger than any finite magnitude.
        let mut largest = 0;
        for x in scalars {
            largest = largest.max(x.abs().to_bits());
        }
        let largest = f32::from_bits(largest);
        let scale = if largest.is_finite() { largest / 127.0 } else { f32::NAN };
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let mut integers = [0; WIDTH];
        let mut sum = 0;
        for (integer, x) in integers.iter_mut().zip(scalars) {
            // Clamped, since the inverse of a subnormal number may be infinite.
            *integer = ((x * inverse).clamp(-127.0, 127.0) + ROUNDING).to_bits() as i16;
            sum += i32::from(*integer);
        }
        let mut out = Self { words: [0; WORDS], pairs: [[0; 2]; WORDS], start: -128 * sum, scale };
        for (i, [a, b, c, d]) in integers.as_chunks::<4>().0.iter().enumerate() {
            out.words[i] = u32::from_le_bytes([*a as u8, *b as u8, *c as u8, *d as u8]);
            let [a, b, c, d] = [a.cast_unsigned(), b.cast_unsigned(), c.cast_unsigned(), d.cast_unsigned()];
            out.pairs[i] = [u32::from(a) | u32::from(c) << 16, u32::from(b) | u32::from(d) << 16];
        }
        out
    }
}

/// Rounds every row of a matrix, block after block. The padding after its last column is finite.
pub(crate) fn quantize(rows: PackedRef<'_>, out: &mut Vec<Quantized>) {
    out.resize(n_panels(rows.n_columns()) * rows.n_rows(), Quantized::default());
    let n = rows.n_rows().max(1);
    let block = |(block, out): (usize, &mut [Quantized])| {
        let rows = rows.panel(block);
        simd::dispatch(
            #[inline(always)]
            move || {
                for (row, out) in rows.iter().zip(out) {
                    *out = Quantized::new(row);
                }
            },
        );
    };
    if rows.n_rows() * rows.n_columns() <= CHUNK {
        out.chunks_mut(n).enumerate().for_each(block);
    } else {
        out.par_chunks_mut(n).enumerate().for_each(block);
    }
}

/// The first rows of blocks, to be multiplied with columns of weights.
#[derive(Clone, Copy)]
pub(super) struct Int8Product<'a> {
    /// The rows of a block begin `step` after those of the previous block.
    pub(super) rows: &'a [Quantized],
    pub(super) step: usize,
    pub(super) blocks: &'a [WeightBlock],
    pub(super) column: usize,
}

impl<'a> Int8Product<'a> {
    /// Block `i` of the weights, and of R rows.
    #[inline(always)]
    pub(super) fn block<const R: usize>(self, i: usize) -> (&'a WeightBlock, &'a [Quantized; R]) {
        (&self.blocks[i], self.rows[i * self.step..].first_chunk().expect("a block has R rows from here on"))
    }

    /// Adds the products of R rows with `n_columns` to their sums, in plain Rust.
    #[inline(always)]
    pub(super) fn add<S: Simd, const R: usize>(self, n_columns: usize, sums: &mut [f32]) {
        for i in 0..self.blocks.len() {
            let (block, rows) = self.block::<R>(i);
            let (words, scales) = (&block[..WORDS], &block[WORDS]);
            for (row, sums) in rows.iter().zip(sums.chunks_exact_mut(n_columns)) {
                for (column, sum) in (self.column..).zip(sums) {
                    let mut dot = row.start;
                    for (word, row) in words.iter().zip(row.words) {
                        let scalars = word[column].bytes().into_iter().zip(row.to_le_bytes());
                        dot += scalars.map(|(w, x)| i32::from(w) * i32::from(x.cast_signed())).sum::<i32>();
                    }
                    #[allow(clippy::cast_precision_loss, reason = "below 2^24")]
                    let dot = dot as f32;
                    *sum = fused::<S>(dot, scales[column].scale() * row.scale, *sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(scalars: [f32; WIDTH]) -> Quantized {
        let mut out = Vec::new();
        quantize(PackedRef::new(&[scalars], [1, WIDTH]), &mut out);
        out[0]
    }

    #[test]
    fn rows_round_to_nearest_of_255() {
        let mut scalars = [0.0; WIDTH];
        scalars[..6].copy_from_slice(&[254.0, -254.0, 3.0, -1.1, 0.9, 5.0]);
        let it = rounded(scalars);
        assert!((it.scale - 2.0).abs() < f32::EPSILON);
        // Ties go to the even neighbour.
        let want = [127_i8, -127, 2, -1, 0, 2, 0, 0].map(i8::cast_unsigned);
        assert_eq!(it.words[..2], [0, 1].map(|i| u32::from_le_bytes(*want.as_chunks().0[i..].first().unwrap())));
        assert_eq!(it.start, -128 * 3);
        let both = |first: i16, second: i16| u32::from(first.cast_unsigned()) | u32::from(second.cast_unsigned()) << 16;
        assert_eq!(it.pairs[..2], [[both(127, 2), both(-127, -1)], [both(0, 0), both(2, 0)]]);
    }

    #[test]
    fn rows_keep_zeros_subnormals_and_nan() {
        let it = rounded([0.0; WIDTH]);
        assert_eq!((it.words, it.start, it.scale.to_bits()), ([0; WORDS], 0, 0));
        let tiny = rounded([f32::from_bits(100); WIDTH]);
        assert!(tiny.scale < f32::MIN_POSITIVE && tiny.words[0] == 0x7F7F_7F7F);
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut scalars = [1.0; WIDTH];
            scalars[7] = wrong;
            assert!(rounded(scalars).scale.is_nan());
        }
    }
}
