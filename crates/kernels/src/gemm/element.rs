//! The elements of packed matrices: numbers of f32, or pairs of bfloat16.

use std::fmt::Debug;

use pulp::Simd;

use super::arithmetic::{Exact, Widened, WithArithmetic};
use super::pack;
use super::packed::{PackedRef, Row, WIDTH};
use super::scratch::Scratch;
use super::transpose::SIDE;

/// One or more numbers that are adjacent along the depth of a product, in four bytes.
///
/// # Safety
/// The type has four bytes without padding and the alignment of an f32, and every bit pattern is a valid value.
/// [`Word::count`] keeps its default.
pub(crate) unsafe trait Word: Copy + Debug + Default + Send + Sync + 'static {
    /// The number of numbers.
    const NUMBERS: usize;

    /// The number of elements for `numbers`, the last of which may be partial.
    fn count(numbers: usize) -> usize {
        numbers.div_ceil(Self::NUMBERS)
    }
}

/// Elements that both factors of a product may have.
pub(crate) trait Element: Word {
    /// Whether elements are single numbers, so that a packed left matrix is also a right one.
    const LEFT_IS_RIGHT: bool = Self::NUMBERS == 1;

    /// The number of columns transposed at a time: as many elements as a square is wide, or twice as many.
    const STRIP: usize;

    /// The element of the first of these numbers, padded with zeros.
    fn first(numbers: &[f32]) -> Self;

    /// Runs an operation with the fastest instructions for these elements that the CPU has at a SIMD level, or above.
    fn run<S: Simd>(simd: S, operation: impl WithArithmetic<Element = Self>);

    /// A packed left matrix, `n_columns` numbers wide, repacked as a right one; `None` if it is one already.
    fn left_as_right(left: PackedRef<'_, Self>, n_columns: usize) -> Option<Scratch<Self>>;

    /// Adds a row of a right matrix to the sums of the columns.
    fn add_to(row: &Row<Self>, sums: &mut Row);
}

// SAFETY: the size and alignment are those of an f32, and every bit pattern is valid.
unsafe impl Word for f32 {
    const NUMBERS: usize = 1;
}

impl Element for f32 {
    const STRIP: usize = SIDE;

    fn first(numbers: &[f32]) -> Self {
        numbers[0]
    }

    #[inline(always)]
    fn run<S: Simd>(simd: S, operation: impl WithArithmetic<Element = Self>) {
        operation.with(Exact(simd));
    }

    fn left_as_right(_: PackedRef<'_, Self>, _: usize) -> Option<Scratch<Self>> {
        None
    }

    #[inline(always)]
    fn add_to(row: &Row, sums: &mut Row) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += x;
        }
    }
}

/// Two numbers in bfloat16, the upper half of an f32, with the first in the lower 16 bits.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Bf16x2(u32);

// SAFETY: a u32 has the size and alignment of an f32, and every bit pattern is valid.
unsafe impl Word for Bf16x2 {
    const NUMBERS: usize = 2;
}

impl Element for Bf16x2 {
    const STRIP: usize = 4 * SIDE;

    fn first(numbers: &[f32]) -> Self {
        Self::new(numbers[0], numbers.get(1).copied().unwrap_or_default())
    }

    #[inline(always)]
    fn run<S: Simd>(simd: S, operation: impl WithArithmetic<Element = Self>) {
        #[cfg(target_arch = "x86_64")]
        let Some(operation) = super::avx512_bf16::run(simd, operation) else {
            return;
        };
        operation.with(Widened(simd));
    }

    fn left_as_right(left: PackedRef<'_, Self>, n_columns: usize) -> Option<Scratch<Self>> {
        Some(pack::regrouped(left, n_columns))
    }

    #[inline(always)]
    fn add_to(row: &Row<Self>, sums: &mut Row) {
        for (sum, pair) in sums.iter_mut().zip(row) {
            let [first, second] = pair.widened();
            *sum += first;
            *sum += second;
        }
    }
}

impl Bf16x2 {
    /// The numbers rounded to nearest.
    #[inline(always)]
    pub(super) fn new(first: f32, second: f32) -> Self {
        Self(upper(first) >> 16 | upper(second) & 0xFFFF_0000)
    }

    /// Regroups this pair and the one below it: the first number of each, and the second number of each.
    #[inline(always)]
    pub(super) fn crossed(self, below: Self) -> [Self; 2] {
        [Self(self.0 & 0xFFFF | below.0 << 16), Self(self.0 >> 16 | below.0 & 0xFFFF_0000)]
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// The first or the second numbers of a register of pairs.
    #[inline(always)]
    pub(super) fn half<S: Simd>(simd: S, pairs: S::u32s, i: usize) -> S::f32s {
        simd.transmute_f32s_u32s(match i {
            0 => simd.wrapping_dyn_shl_u32s(pairs, simd.splat_u32s(16)),
            _ => simd.and_u32s(pairs, simd.splat_u32s(0xFFFF_0000)),
        })
    }

    /// Both as f32.
    #[inline(always)]
    pub(super) fn widened(self) -> [f32; 2] {
        [f32::from_bits(self.0 << 16), f32::from_bits(self.0 & 0xFFFF_0000)]
    }
}

/// The bits whose upper half is the nearest bfloat16, with ties to even. NaN stays NaN.
#[inline(always)]
fn upper(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_nan() {
        bits | 0x0040_0000
    } else {
        // Carries into the upper half if the lower half is above the middle, or at the middle and the upper half is
        // odd.
        bits.wrapping_add(0x7FFF + (bits >> 16 & 1))
    }
}

/// The same bytes as elements.
pub(crate) fn as_elements<E: Word>(bits: &[f32]) -> &[Row<E>] {
    let rows = bits.as_chunks::<WIDTH>().0;
    // SAFETY: elements have the size and alignment of an f32, and every bit pattern is valid.
    unsafe { std::slice::from_raw_parts(rows.as_ptr().cast(), rows.len()) }
}

/// The bits of V registers of a row, from element `column` on.
#[inline(always)]
pub(super) fn load_bits<S: Simd, W: Word, const V: usize>(row: &Row<W>, column: usize) -> [S::u32s; V] {
    let elements = &row[column..column + V * S::U32_LANES];
    // SAFETY: an element has the size and alignment of a u32, and no padding.
    let bits = unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) };
    S::as_simd_u32s(bits).0.try_into().expect("V registers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_halves_to_even() {
        for (x, want) in [
            (1.0, 1.0),
            (-2.5, -2.5),
            (1.003, 1.0),
            (1.005, 1.007_812_5),
            (1.0 + 1.0 / 256.0, 1.0),
            (1.0 + 3.0 / 256.0, 1.015_625),
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
            (0.0, 0.0),
        ] {
            let got = Bf16x2::new(x, -x).widened();
            assert_eq!(got.map(f32::to_bits), [want, -want].map(f32::to_bits), "{x}");
        }
        for nan in [f32::NAN, f32::from_bits(0x7F80_0001), f32::from_bits(u32::MAX)] {
            let both = Bf16x2::new(nan, nan).widened();
            assert!(both.iter().all(|x| x.is_nan()), "{nan}");
        }
    }
}
