//! Rows rounded to int8, for products of integers with weights in int8 (W8A8).
//!
//! A row has a scale for each block of 32 numbers, as a weight's column has. The 32 products of a block are summed
//! exactly, in integers, so every instruction set gives the same bytes; then both scales multiply the sum.

use std::ops::Range;

use pulp::bytemuck::cast_slice_mut;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::arithmetic::{Arithmetic, Sums};
use super::element::{Row, WIDTH, n_panels};
#[cfg(target_arch = "x86_64")]
use super::int8_x86;
use super::micro_kernel::Left;
use super::packed::PackedRef;
use super::weight::{Int8x4, Weight};
use crate::simd;
use crate::tasks::CHUNK;

/// The number of words in a block: four numbers each.
pub(super) const WORDS: usize = WIDTH / 4;

/// The rows of numbers and the row of scales in a block of weights.
pub(super) type Block = [Row<Int8x4>; WORDS + 1];

/// A row's part of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quantized {
    /// Four integers from -127 to 127 each, the first in the lowest byte.
    pub(super) words: [u32; WORDS],
    /// The same integers in 16 bits: the first and the third of each word, and the second and the fourth.
    pub(super) pairs: [[u32; 2]; WORDS],
    /// What a sum of products begins with, because weights are stored with 128 added: -128 times the sum of these
    /// integers.
    pub(super) start: i32,
    /// The largest magnitude is 127 times this.
    pub(super) scale: f32,
}

/// A number this large has no digits behind the point, and its lowest bits are those of the integer added to it.
const ROUNDING: f32 = 12_582_912.0;

impl Quantized {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from -127 to 127, and its lowest byte")]
    fn new(numbers: &Row) -> Self {
        // As bits, infinity and what is no number are larger than any number.
        let mut largest = 0;
        for x in numbers {
            largest = largest.max(x.abs().to_bits());
        }
        let largest = f32::from_bits(largest);
        let scale = if largest.is_finite() { largest / 127.0 } else { f32::NAN };
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let mut integers = [0; WIDTH];
        let mut sum = 0;
        for (integer, x) in integers.iter_mut().zip(numbers) {
            // At most 127, also if the inverse is infinite, that of a subnormal number.
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

/// Rounds every row of a matrix, whose numbers behind the last column are finite: block after block, all rows of each.
pub(crate) fn quantize(rows: PackedRef<'_>, out: &mut Vec<Quantized>) {
    out.resize(n_panels(rows.n_columns()) * rows.n_rows(), Quantized::default());
    let n = rows.n_rows().max(1);
    let block = |(block, out)| simd::dispatch(Quantize { rows: rows.panel(block), out });
    if rows.n_rows() * rows.n_columns() <= CHUNK {
        out.chunks_mut(n).enumerate().for_each(block);
    } else {
        out.par_chunks_mut(n).enumerate().for_each(block);
    }
}

/// Rounds a block of each row.
struct Quantize<'a> {
    rows: &'a [Row],
    out: &'a mut [Quantized],
}

impl WithSimd for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (row, out) in self.rows.iter().zip(self.out) {
            *out = Quantized::new(row);
        }
    }
}

/// Rounded rows, to be multiplied with weights in int8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integers<'a> {
    /// Row `row` of block `block` is number `block * step + row`.
    rows: &'a [Quantized],
    step: usize,
    n_rows: usize,
    n_blocks: usize,
    #[cfg(target_arch = "x86_64")]
    instructions: int8_x86::Instructions,
}

impl<'a> Integers<'a> {
    pub(crate) fn new(rows: &'a [Quantized], n_rows: usize) -> Self {
        Self {
            rows,
            step: n_rows,
            n_rows,
            n_blocks: rows.len() / n_rows.max(1),
            #[cfg(target_arch = "x86_64")]
            instructions: int8_x86::Instructions::of_this_cpu(),
        }
    }
}

impl Left for Integers<'_> {
    type Element = f32;
    type Right = Int8x4;

    const FEW_ROWS: bool = true;
    const UNIT: usize = 8;
    const STEP: usize = Int8x4::ROWS;

    fn n_rows(self) -> usize {
        self.n_rows
    }

    fn depth(self) -> usize {
        self.n_blocks * Int8x4::ROWS
    }

    fn part(self, rows: Range<usize>) -> Self {
        Self { rows: &self.rows[rows.start.min(self.rows.len())..], n_rows: rows.len(), ..self }
    }

    fn steps(self, steps: Range<usize>) -> Self {
        Self { rows: &self.rows[steps.start * self.step..], n_blocks: steps.len(), ..self }
    }

    #[inline(always)]
    fn micro_kernel<A: Arithmetic<Element = f32>, const R: usize, const V: usize>(
        self,
        _: A,
        row: usize,
        right: &[Row<Int8x4>],
        column: usize,
        mut sums: [[Sums<A>; V]; R],
    ) -> [[Sums<A>; V]; R] {
        let product =
            Product { rows: &self.rows[row..], step: self.step, blocks: &right.as_chunks().0[..self.n_blocks], column };
        let values = cast_slice_mut(sums.as_flattened_mut());
        #[cfg(target_arch = "x86_64")]
        if const { A::Simd::F32_LANES >= 8 } {
            // SAFETY: the CPU has the instructions of the arithmetic.
            unsafe {
                int8_x86::add::<A, R, V>(self.instructions, product, values);
            }
            return sums;
        }
        product.add::<R>(V * A::Simd::F32_LANES, values);
        sums
    }
}

/// The first rows of blocks, times columns of weights.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    /// The rows of a block begin `step` after those of the block before.
    pub(super) rows: &'a [Quantized],
    pub(super) step: usize,
    pub(super) blocks: &'a [Block],
    /// The first column.
    pub(super) column: usize,
}

impl<'a> Product<'a> {
    /// Each block of weights, and R rows.
    #[inline(always)]
    pub(super) fn block<const R: usize>(self, i: usize) -> (&'a Block, &'a [Quantized; R]) {
        (&self.blocks[i], self.rows[i * self.step..].first_chunk().expect("R rows"))
    }

    /// Adds the products of R rows with `n_columns` to their sums, without instructions for them.
    #[inline(always)]
    fn add<const R: usize>(self, n_columns: usize, sums: &mut [f32]) {
        for i in 0..self.blocks.len() {
            let (block, rows) = self.block::<R>(i);
            let (words, scales) = (&block[..WORDS], &block[WORDS]);
            for (row, sums) in rows.iter().zip(sums.chunks_exact_mut(n_columns)) {
                for (column, sum) in (self.column..).zip(sums) {
                    let mut dot = row.start;
                    for (word, row) in words.iter().zip(row.words) {
                        let numbers = word[column].bytes().into_iter().zip(row.to_le_bytes());
                        dot += numbers.map(|(w, x)| i32::from(w) * i32::from(x.cast_signed())).sum::<i32>();
                    }
                    #[allow(clippy::cast_precision_loss, reason = "below 2^24")]
                    let dot = dot as f32;
                    *sum = dot.mul_add(scales[column].scale() * row.scale, *sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::{MatrixMut, Mode, Store, multiply_all};
    use crate::testing::noise;

    fn rounded(numbers: [f32; WIDTH]) -> Quantized {
        let mut out = Vec::new();
        quantize(PackedRef::new(&[numbers], [1, WIDTH]), &mut out);
        out[0]
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_of_255() {
        let mut numbers = [0.0; WIDTH];
        numbers[..6].copy_from_slice(&[254.0, -254.0, 3.0, -1.1, 0.9, 5.0]);
        let it = rounded(numbers);
        assert!((it.scale - 2.0).abs() < f32::EPSILON);
        // Ties go to the even neighbour.
        let want = [127_i8, -127, 2, -1, 0, 2, 0, 0].map(i8::cast_unsigned);
        assert_eq!(it.words[..2], [0, 1].map(|i| u32::from_le_bytes(*want.as_chunks().0[i..].first().unwrap())));
        assert_eq!(it.start, -128 * 3);
        let both = |first: i16, second: i16| u32::from(first.cast_unsigned()) | u32::from(second.cast_unsigned()) << 16;
        assert_eq!(it.pairs[..2], [[both(127, 2), both(-127, -1)], [both(0, 0), both(2, 0)]]);
    }

    #[test]
    fn zeros_subnormal_numbers_and_what_is_none_stay_what_they_are() {
        let it = rounded([0.0; WIDTH]);
        assert_eq!((it.words, it.start, it.scale.to_bits()), ([0; WORDS], 0, 0));
        let tiny = rounded([f32::from_bits(100); WIDTH]);
        assert!(tiny.scale < f32::MIN_POSITIVE && tiny.words[0] == 0x7F7F_7F7F);
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut numbers = [1.0; WIDTH];
            numbers[7] = wrong;
            assert!(rounded(numbers).scale.is_nan());
        }
    }

    /// Every instruction set has the bytes of plain Rust.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_adds_the_same() {
        let [m, k, n] = [21, 3 * WIDTH, 2 * WIDTH];
        let (x, numbers) = (noise(m * k, 1), noise(k * n, 2));
        let rows: Vec<Row> = (0..k / WIDTH)
            .flat_map(|i| (0..m).map(move |row| (row, i)))
            .map(|(row, i)| *x[row * k + i * WIDTH..].first_chunk().unwrap())
            .collect();
        let mut left = Vec::new();
        quantize(PackedRef::new(&rows, [m, k]), &mut left);
        let mut weights = vec![[Int8x4::default(); WIDTH]; 2 * 3 * Int8x4::ROWS];
        for (i, block) in weights.chunks_exact_mut(Int8x4::ROWS).enumerate() {
            let at = |row: usize, column: usize| numbers[(i % 3 * WIDTH + row) * n + i / 3 * WIDTH + column];
            Int8x4::pack(&std::array::from_fn(|row| std::array::from_fn(|column| at(row, column))), block);
        }
        let right = PackedRef::new(&weights, [3 * Int8x4::ROWS, n]);
        let all = int8_x86::Instructions::of_this_cpu();
        let results = all.subsets().map(|instructions| {
            let mut out = vec![f32::NAN; m * n];
            let left = Integers { instructions, ..Integers::new(&left, m) };
            multiply_all(left, right, Store { mode: Mode::Put, out: MatrixMut::new(&mut out, [m, n]), bias: &[] });
            out
        });
        let mut plain = vec![0.0; m * n];
        for (i, sums) in plain.chunks_exact_mut(WIDTH).enumerate() {
            let (row, panel) = (i / 2, i % 2);
            let blocks = right.panel(panel).as_chunks().0;
            Product { rows: &left[row..], step: m, blocks, column: 0 }.add::<1>(WIDTH, sums);
        }
        assert!(results.iter().all(|out| *out == plain), "instruction sets differ");
    }
}
