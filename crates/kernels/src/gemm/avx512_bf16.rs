//! Pairs of bfloat16 with the instructions of AVX512-BF16, which treat subnormal numbers (below 2^-126) as zero.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_permutexvar_epi16, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_si512,
};
use std::mem::transmute;

use pulp::x86::V4;
use pulp::{Simd, f32x16};

use super::arithmetic::{Arithmetic, WithArithmetic};
use super::element::{Bf16x2, Row, WIDTH};
use crate::MatmulPrecision;

/// Arithmetic with AVX512-BF16. Only [`run`] creates it.
#[derive(Clone, Copy)]
struct Avx512Bf16(V4);

/// Runs the operation if this CPU multiplies bfloat16 faster than f32 ([`MatmulPrecision::is_native`]), or else returns
/// it.
#[inline(always)]
pub(super) fn run<S: Simd, O: WithArithmetic<Element = Bf16x2>>(_: S, operation: O) -> Option<O> {
    let simd = match S::F32_LANES {
        16 if MatmulPrecision::Bf16.is_native() => V4::try_new(),
        _ => None,
    };
    let Some(simd) = simd else { return Some(operation) };
    // SAFETY: the CPU has the instructions of the level, which `simd` proves, and those for bfloat16.
    unsafe {
        compiled(Avx512Bf16(simd), operation);
    }
    None
}

/// Compiled for CPUs with the instructions of the level and those for bfloat16.
#[target_feature(enable = "sse,sse2,fxsr,sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,fma")]
#[target_feature(enable = "lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")]
fn compiled<O: WithArithmetic<Element = Bf16x2>>(native: Avx512Bf16, operation: O) {
    operation.with(native);
}

// No closures below: a closure is compiled for the baseline CPU, so that each of these would be a function call.

const LANES: usize = 16;

/// The permutation that interleaves sixteen first and sixteen second scalars to pairs.
const IN_PAIRS: [u16; 2 * LANES] = [
    0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, //
    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31,
];

impl Arithmetic for Avx512Bf16 {
    type Element = Bf16x2;
    type Simd = V4;
    type Register = __m512bh;

    #[inline(always)]
    fn simd(self) -> V4 {
        self.0
    }

    #[inline(always)]
    fn spread(self, element: Bf16x2) -> __m512bh {
        // SAFETY: the CPU has the instructions; both types are the same 64 bytes.
        unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi32(element.bits().cast_signed())) }
    }

    #[inline(always)]
    fn load<const V: usize>(self, row: &Row<Bf16x2>, column: usize) -> [__m512bh; V] {
        let (registers, _) = row[column..column + V * LANES].as_chunks::<LANES>();
        // SAFETY: the CPU has the instructions, registers of elements have this length, and both types are the same 64
        // bytes.
        unsafe {
            let mut factors = [transmute::<__m512, __m512bh>(_mm512_setzero_ps()); V];
            for (factors, register) in factors.iter_mut().zip(registers) {
                let register = _mm512_loadu_si512(register.as_ptr().cast());
                *factors = transmute::<__m512i, __m512bh>(register);
            }
            factors
        }
    }

    #[inline(always)]
    fn multiply_add(self, left: __m512bh, right: __m512bh, sum: f32x16) -> f32x16 {
        // SAFETY: the CPU has the instructions; both types of sums are the same 64 bytes.
        unsafe { transmute(_mm512_dpbf16_ps(transmute::<f32x16, __m512>(sum), left, right)) }
    }

    #[inline(always)]
    fn round(self, scalars: &[f32], out: &mut Row<Bf16x2>) {
        let (whole, rest) = scalars.as_chunks::<WIDTH>();
        let (halves, _) = out.as_chunks_mut::<LANES>();
        for (half, scalars) in halves.iter_mut().zip(whole) {
            *half = self.round_register(scalars);
        }
        if !rest.is_empty() {
            let mut padded = [0.0; WIDTH];
            padded[..rest.len()].copy_from_slice(rest);
            halves[whole.len()] = self.round_register(&padded);
        }
    }

    #[inline(always)]
    fn stack(self, above: &Row, below: &Row) -> Row<Bf16x2> {
        let mut pairs = [Bf16x2::default(); WIDTH];
        let (above, _) = above.as_chunks::<LANES>();
        let (below, _) = below.as_chunks::<LANES>();
        let (out, _) = pairs.as_chunks_mut::<LANES>();
        for ((out, above), below) in out.iter_mut().zip(above).zip(below) {
            // SAFETY: the CPU has the instructions; sources and destinations are as long as registers.
            unsafe {
                let above = _mm512_loadu_ps(above.as_ptr());
                let below = _mm512_loadu_ps(below.as_ptr());
                let both = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(below, above));
                let in_pairs = _mm512_loadu_si512(IN_PAIRS.as_ptr().cast());
                let both = _mm512_permutexvar_epi16(in_pairs, both);
                _mm512_storeu_si512(out.as_mut_ptr().cast(), both);
            }
        }
        pairs
    }
}

impl Avx512Bf16 {
    /// Pairs of consecutive scalars.
    #[inline(always)]
    #[allow(clippy::unused_self, reason = "holding one proves that the CPU has the instructions")]
    fn round_register(self, scalars: &Row) -> [Bf16x2; LANES] {
        let (registers, _) = scalars.as_chunks::<LANES>();
        let mut pairs = [Bf16x2::default(); LANES];
        // SAFETY: as above.
        unsafe {
            let first = _mm512_loadu_ps(registers[0].as_ptr());
            let second = _mm512_loadu_ps(registers[1].as_ptr());
            let both = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
            _mm512_storeu_si512(pairs.as_mut_ptr().cast(), both);
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::super::arithmetic::Widened;
    use super::*;

    /// Elements of the first `n` scalars: of consecutive ones, and of one half stacked on the other.
    struct Round<'a> {
        scalars: &'a [f32; 2 * WIDTH],
        n: usize,
        out: &'a mut [Row<Bf16x2>; 2],
    }

    impl WithArithmetic for Round<'_> {
        type Element = Bf16x2;

        #[inline(always)]
        fn with(self, arithmetic: impl Arithmetic<Element = Bf16x2>) {
            let [rounded, stacked] = self.out;
            arithmetic.round(&self.scalars[..self.n], rounded);
            let rows = self.scalars.as_chunks().0;
            *stacked = arithmetic.stack(&rows[0], &rows[1]);
        }
    }

    #[test]
    fn native_rounding_equals_widened() {
        let Some(simd) = V4::try_new().filter(|_| MatmulPrecision::Bf16.is_native()) else {
            let is_required = std::env::var_os("TINDERBOX_REQUIRE_AVX512_BF16").is_some();
            assert!(!is_required, "this CPU has no AVX512-BF16");
            eprintln!("skipped: this CPU has no AVX512-BF16");
            return;
        };
        let mut scalars: Vec<f32> = (0..54_u32).map(|i| f32::from_bits(0x3F80_7FF0 + 7 * i)).collect();
        scalars.extend([0.0, -0.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY]);
        scalars.extend([f32::NAN, -f32::NAN, 1.0 + 1.0 / 256.0, 1e-30]);
        let scalars = scalars.first_chunk().expect("the scalars fill two rows");
        for n in [64, 61] {
            let mut outs = [[[Bf16x2::default(); WIDTH]; 2]; 2];
            let [native, widened] = &mut outs;
            assert!(run(simd, Round { scalars, n, out: native }).is_none());
            Round { scalars, n, out: widened }.with(Widened(simd));
            for (native, widened) in native.as_flattened().iter().zip(widened.as_flattened()) {
                for (native, widened) in native.widened().into_iter().zip(widened.widened()) {
                    let both_nan = native.is_nan() && widened.is_nan();
                    let same = both_nan || native.to_bits() == widened.to_bits();
                    assert!(same, "{native}, {widened}");
                }
            }
        }
    }
}
