//! The elements of packed matrices, f32 scalars or pairs of bfloat16, and rows of them.

use std::fmt::Debug;

use pulp::Simd;

/// The number of columns in a panel: two registers of AVX-512, four of AVX2, eight of NEON.
pub(crate) const WIDTH: usize = 32;

pub(crate) const fn n_panels(columns: usize) -> usize {
    columns.div_ceil(WIDTH)
}

/// A row of a panel, not necessarily aligned to a cache line.
pub(crate) type Row<E = f32> = [E; WIDTH];

/// One or more scalars, adjacent along the depth of a product, in four bytes.
///
/// # Safety
/// The type has four bytes without padding and the alignment of an f32, and every bit pattern is a valid value.
/// [`Word::count`] keeps its default.
pub(crate) unsafe trait Word: Copy + Debug + Default + Send + Sync + 'static {
    const SCALARS: usize;

    /// The number of elements for `scalars`; the last may be partial.
    fn count(scalars: usize) -> usize {
        scalars.div_ceil(Self::SCALARS)
    }
}

// SAFETY: the size and alignment are those of an f32, and every bit pattern is valid.
unsafe impl Word for f32 {
    const SCALARS: usize = 1;
}

/// Two scalars in bfloat16, the upper half of an f32, with the first in the lower 16 bits.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Bf16x2(u32);

// SAFETY: a u32 has the size and alignment of an f32, and every bit pattern is valid.
unsafe impl Word for Bf16x2 {
    const SCALARS: usize = 2;
}

impl Bf16x2 {
    #[inline(always)]
    pub(super) fn new(first: f32, second: f32) -> Self {
        Self(upper(first) >> 16 | upper(second) & 0xFFFF_0000)
    }

    /// Regroups this pair and the one below it: both first scalars, and both second ones.
    #[inline(always)]
    pub(super) fn crossed(self, below: Self) -> [Self; 2] {
        [Self(self.0 & 0xFFFF | below.0 << 16), Self(self.0 >> 16 | below.0 & 0xFFFF_0000)]
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// The first or the second scalars of a register of pairs.
    #[inline(always)]
    pub(super) fn half<S: Simd>(simd: S, pairs: S::u32s, i: usize) -> S::f32s {
        simd.transmute_f32s_u32s(match i {
            0 => simd.wrapping_dyn_shl_u32s(pairs, simd.splat_u32s(16)),
            _ => simd.and_u32s(pairs, simd.splat_u32s(0xFFFF_0000)),
        })
    }

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
    fn bf16_rounds_to_nearest_even() {
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
