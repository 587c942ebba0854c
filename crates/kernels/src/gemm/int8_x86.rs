//! Products of integers with the instructions of x86-64: one function for each instruction set, and what they share.

use std::arch::x86_64::{
    __m256i, __m512i, _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi32_ps, _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_srli_epi16, _mm256_storeu_ps, _mm512_add_epi32, _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_madd_epi16, _mm512_mul_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_srli_epi16, _mm512_storeu_ps,
};

use pulp::Simd;

use super::arithmetic::Arithmetic;
use super::element::WIDTH;
use super::int8::{Product, Quantized, WORDS};

/// What this CPU has beyond the instructions of the SIMD levels. Only [`Instructions::of_this_cpu`] creates it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instructions {
    avx_vnni: bool,
    avx512_vnni: bool,
}

impl Instructions {
    pub(super) fn of_this_cpu() -> Self {
        Self { avx_vnni: is_x86_feature_detected!("avxvnni"), avx512_vnni: is_x86_feature_detected!("avx512vnni") }
    }

    /// These, and without each of them.
    #[cfg(test)]
    pub(super) fn subsets(self) -> [Self; 3] {
        [self, Self { avx_vnni: false, ..self }, Self { avx512_vnni: false, ..self }]
    }
}

/// Adds the products of R rows with V registers of columns to their sums, with the instructions of a level that has
/// registers of this many lanes. Only AVX2 has 8, and only AVX-512 has 16.
///
/// # Safety
/// The CPU has that level.
#[inline(always)]
pub(super) unsafe fn add<A: Arithmetic, const R: usize, const V: usize>(
    instructions: Instructions,
    product: Product<'_>,
    sums: &mut [f32],
) {
    let n = V * A::Simd::F32_LANES;
    assert!(sums.len() == R * n && product.column + n <= WIDTH, "R rows of V registers");
    // SAFETY: this CPU has the level, and the other instructions were detected. There are as many sums and columns as
    // the functions require.
    unsafe {
        if const { A::Simd::F32_LANES == 16 } {
            match instructions.avx512_vnni {
                true => avx512_vnni::<R, V>(product, sums),
                false => avx512::<R, V>(product, sums),
            }
        } else {
            match instructions.avx_vnni {
                true => avx_vnni::<R, V>(product, sums),
                false => avx2::<R, V>(product, sums),
            }
        }
    }
}

/// AVX512-VNNI: four products at once.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline(never)]
fn avx512_vnni<const R: usize, const V: usize>(product: Product<'_>, sums: &mut [f32]) {
    // SAFETY: the CPU has the instructions, and the caller has counted sums and columns.
    unsafe { add_by::<Avx512<true>, R, V>(product, sums) }
}

/// AVX-512 without VNNI: two products at once, of numbers in 16 bits.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline(never)]
fn avx512<const R: usize, const V: usize>(product: Product<'_>, sums: &mut [f32]) {
    // SAFETY: as above.
    unsafe { add_by::<Avx512<false>, R, V>(product, sums) }
}

/// AVX-VNNI: four products at once.
#[target_feature(enable = "avx2,fma,avxvnni")]
#[inline(never)]
fn avx_vnni<const R: usize, const V: usize>(product: Product<'_>, sums: &mut [f32]) {
    // SAFETY: as above.
    unsafe { add_by::<Avx2<true>, R, V>(product, sums) }
}

/// AVX2: two products at once, of numbers in 16 bits.
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn avx2<const R: usize, const V: usize>(product: Product<'_>, sums: &mut [f32]) {
    // SAFETY: as above.
    unsafe { add_by::<Avx2<false>, R, V>(product, sums) }
}

/// Registers of integers.
trait Registers {
    const LANES: usize;

    /// A register of sums.
    type Sums: Copy;

    /// A register of words of weights.
    type Weights: Copy;

    unsafe fn splat(value: i32) -> Self::Sums;

    unsafe fn load(words: *const i32) -> Self::Weights;

    /// Word `i` of a row, for all columns.
    unsafe fn quad(row: &Quantized, i: usize) -> Self::Weights;

    /// Adds the products of a word with these weights.
    unsafe fn dot(sums: Self::Sums, weights: Self::Weights, quad: Self::Weights) -> Self::Sums;

    /// Adds the sums, scaled, to those in f32.
    unsafe fn add(sums: Self::Sums, scales: *const f32, scale: f32, out: *mut f32);
}

/// The sums stay in registers for a block, and in memory from one block to the next.
#[allow(clippy::needless_range_loop, reason = "loops over numbers of registers are unrolled for certain")]
#[inline(always)]
unsafe fn add_by<K: Registers, const R: usize, const V: usize>(product: Product<'_>, sums: &mut [f32]) {
    for i in 0..product.blocks.len() {
        let (block, rows) = product.block::<R>(i);
        // SAFETY: the caller has the instructions, and R rows of V registers of columns.
        unsafe {
            let mut dots = [[K::splat(0); V]; R];
            for r in 0..R {
                dots[r] = [K::splat(rows[r].start); V];
            }
            for word in 0..WORDS {
                let weights: *const i32 = block[word].as_ptr().add(product.column).cast();
                let mut registers = [K::load(weights); V];
                for v in 1..V {
                    registers[v] = K::load(weights.add(v * K::LANES));
                }
                for r in 0..R {
                    let quad = K::quad(&rows[r], word);
                    for v in 0..V {
                        dots[r][v] = K::dot(dots[r][v], registers[v], quad);
                    }
                }
            }
            let scales: *const f32 = block[WORDS].as_ptr().add(product.column).cast();
            for r in 0..R {
                for v in 0..V {
                    let out = sums.as_mut_ptr().add((r * V + v) * K::LANES);
                    K::add(dots[r][v], scales.add(v * K::LANES), rows[r].scale, out);
                }
            }
        }
    }
}

/// The lowest byte of each number in 16 bits.
const LOW: i32 = 0x00FF_00FF;

struct Avx512<const VNNI: bool>;

impl<const VNNI: bool> Registers for Avx512<VNNI> {
    const LANES: usize = 16;

    type Sums = __m512i;
    /// With VNNI the words twice; else the first and third, and the second and fourth numbers in 16 bits.
    type Weights = [__m512i; 2];

    #[inline(always)]
    unsafe fn splat(value: i32) -> __m512i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn load(words: *const i32) -> [__m512i; 2] {
        // SAFETY: the caller has the instructions and a register of words.
        unsafe {
            let words = _mm512_loadu_si512(words.cast());
            if VNNI {
                return [words; 2];
            }
            [_mm512_and_si512(words, _mm512_set1_epi32(LOW)), _mm512_srli_epi16::<8>(words)]
        }
    }

    #[inline(always)]
    unsafe fn quad(row: &Quantized, i: usize) -> [__m512i; 2] {
        // SAFETY: the caller has the instructions.
        unsafe {
            if VNNI {
                return [_mm512_set1_epi32(row.words[i].cast_signed()); 2];
            }
            let [even, odd] = row.pairs[i].map(u32::cast_signed);
            [_mm512_set1_epi32(even), _mm512_set1_epi32(odd)]
        }
    }

    #[inline(always)]
    unsafe fn dot(sums: __m512i, weights: [__m512i; 2], quad: [__m512i; 2]) -> __m512i {
        // SAFETY: the caller has the instructions.
        unsafe {
            if VNNI {
                return _mm512_dpbusd_epi32(sums, weights[0], quad[0]);
            }
            let even = _mm512_madd_epi16(weights[0], quad[0]);
            let odd = _mm512_madd_epi16(weights[1], quad[1]);
            _mm512_add_epi32(sums, _mm512_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    unsafe fn add(sums: __m512i, scales: *const f32, scale: f32, out: *mut f32) {
        // SAFETY: the caller has the instructions and registers of scales and sums.
        unsafe {
            let scales = _mm512_mul_ps(_mm512_loadu_ps(scales), _mm512_set1_ps(scale));
            _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scales, _mm512_loadu_ps(out)));
        }
    }
}

struct Avx2<const VNNI: bool>;

impl<const VNNI: bool> Registers for Avx2<VNNI> {
    const LANES: usize = 8;

    type Sums = __m256i;
    /// As those of [`Avx512`].
    type Weights = [__m256i; 2];

    #[inline(always)]
    unsafe fn splat(value: i32) -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn load(words: *const i32) -> [__m256i; 2] {
        // SAFETY: the caller has the instructions and a register of words.
        unsafe {
            let words = _mm256_loadu_si256(words.cast());
            if VNNI {
                return [words; 2];
            }
            [_mm256_and_si256(words, _mm256_set1_epi32(LOW)), _mm256_srli_epi16::<8>(words)]
        }
    }

    #[inline(always)]
    unsafe fn quad(row: &Quantized, i: usize) -> [__m256i; 2] {
        // SAFETY: the caller has the instructions.
        unsafe {
            if VNNI {
                return [_mm256_set1_epi32(row.words[i].cast_signed()); 2];
            }
            let [even, odd] = row.pairs[i].map(u32::cast_signed);
            [_mm256_set1_epi32(even), _mm256_set1_epi32(odd)]
        }
    }

    #[inline(always)]
    unsafe fn dot(sums: __m256i, weights: [__m256i; 2], quad: [__m256i; 2]) -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe {
            if VNNI {
                return _mm256_dpbusd_avx_epi32(sums, weights[0], quad[0]);
            }
            let even = _mm256_madd_epi16(weights[0], quad[0]);
            let odd = _mm256_madd_epi16(weights[1], quad[1]);
            _mm256_add_epi32(sums, _mm256_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    unsafe fn add(sums: __m256i, scales: *const f32, scale: f32, out: *mut f32) {
        // SAFETY: the caller has the instructions and registers of scales and sums.
        unsafe {
            let scales = _mm256_mul_ps(_mm256_loadu_ps(scales), _mm256_set1_ps(scale));
            _mm256_storeu_ps(out, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scales, _mm256_loadu_ps(out)));
        }
    }
}
