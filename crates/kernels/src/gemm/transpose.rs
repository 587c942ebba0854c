//! Transposes small squares of scalars in registers.

use pulp::Simd;

use super::element::Word;

pub(super) const SIDE: usize = 8;

#[inline(always)]
pub(super) fn transposed<S: Simd, E: Word>(_: S, x: [[E; SIDE]; SIDE]) -> [[E; SIDE]; SIDE] {
    #[cfg(target_arch = "x86_64")]
    if S::F32_LANES >= SIDE {
        // SAFETY: the token of a level proves that the CPU has its instructions, and the levels with registers of eight
        // scalars or more are AVX2 and AVX-512, which include AVX.
        return unsafe { avx(x) };
    }
    let mut out = [[E::default(); SIDE]; SIDE];
    for (row, x) in x.iter().enumerate() {
        for (out, x) in out.iter_mut().zip(x) {
            out[row] = *x;
        }
    }
    out
}

/// Written with intrinsics, because compilers do not find these instructions, and copying one scalar at a time takes
/// ten times as long.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[inline]
fn avx<E: Word>(x: [[E; SIDE]; SIDE]) -> [[E; SIDE]; SIDE] {
    use std::arch::x86_64::{
        __m256, _mm256_loadu_ps, _mm256_permute2f128_ps, _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_unpackhi_ps,
        _mm256_unpacklo_ps,
    };
    // SAFETY: each row has eight elements, which have the size of an f32.
    let load = |row: usize| unsafe { _mm256_loadu_ps(x[row].as_ptr().cast()) };
    // Within each half of the registers: pairs of rows, then groups of four.
    let pairs = |a: __m256, b: __m256| [_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)];
    let [[a0, a1], [b0, b1], [c0, c1], [d0, d1]] =
        [pairs(load(0), load(1)), pairs(load(2), load(3)), pairs(load(4), load(5)), pairs(load(6), load(7))];
    let fours =
        |a: __m256, b: __m256| [_mm256_shuffle_ps::<0b01_00_01_00>(a, b), _mm256_shuffle_ps::<0b11_10_11_10>(a, b)];
    let [top, bottom] = [[fours(a0, b0), fours(a1, b1)], [fours(c0, d0), fours(c1, d1)]];
    let (top, bottom) = (top.as_flattened(), bottom.as_flattened());
    let mut out = [[E::default(); SIDE]; SIDE];
    for i in 0..SIDE / 2 {
        let low = _mm256_permute2f128_ps::<0x20>(top[i], bottom[i]);
        let high = _mm256_permute2f128_ps::<0x31>(top[i], bottom[i]);
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_ps(out[i].as_mut_ptr().cast(), low);
            _mm256_storeu_ps(out[i + SIDE / 2].as_mut_ptr().cast(), high);
        }
    }
    out
}
