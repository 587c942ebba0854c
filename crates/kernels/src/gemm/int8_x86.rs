//! Products of integers with the instructions of x86-64: one function per instruction set, and the code that they
//! share.

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
use super::quantized::{Int8Product, Quantized, WORDS};

/// The CPU's instructions beyond those of the SIMD levels. Only [`Instructions::of_this_cpu`] creates it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instructions {
    avx_vnni: bool,
    avx512_vnni: bool,
}

impl Instructions {
    pub(super) fn of_this_cpu() -> Self {
        Self { avx_vnni: is_x86_feature_detected!("avxvnni"), avx512_vnni: is_x86_feature_detected!("avx512vnni") }
    }

    /// All of these, and all but one.
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
    product: Int8Product<'_>,
    sums: &mut [f32],
) {
    let n = V * A::Simd::F32_LANES;
    assert!(sums.len() == R * n && product.column + n <= WIDTH, "R rows of V registers");
    // SAFETY: this CPU has the level, and the other instructions were detected. There are as many sums and columns as
    // the functions require.
    unsafe {
        if const { A::Simd::F32_LANES == 16 } {
            if instructions.avx512_vnni { avx512_vnni::<R, V>(product, sums) } else { avx512::<R, V>(product, sums) }
        } else {
            if instructions.avx_vnni { avx_vnni::<R, V>(product, sums) } else { avx2::<R, V>(product, sums) }
        }
    }
}

/// AVX512-VNNI: four products at once.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline(never)]
fn avx512_vnni<const R: usize, const V: usize>(product: Int8Product<'_>, sums: &mut [f32]) {
    // SAFETY: the CPU has the instructions, and the caller has counted sums and columns.
    unsafe { add_by::<Avx512, true, R, V>(product, sums) }
}

/// AVX-512 without VNNI: two products at once, of scalars in 16 bits.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline(never)]
fn avx512<const R: usize, const V: usize>(product: Int8Product<'_>, sums: &mut [f32]) {
    // SAFETY: as above.
    unsafe { add_by::<Avx512, false, R, V>(product, sums) }
}

/// AVX-VNNI: four products at once.
#[target_feature(enable = "avx2,fma,avxvnni")]
#[inline(never)]
fn avx_vnni<const R: usize, const V: usize>(product: Int8Product<'_>, sums: &mut [f32]) {
    // SAFETY: as above.
    unsafe { add_by::<Avx2, true, R, V>(product, sums) }
}

/// AVX2: two products at once, of scalars in 16 bits.
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn avx2<const R: usize, const V: usize>(product: Int8Product<'_>, sums: &mut [f32]) {
    // SAFETY: as above.
    unsafe { add_by::<Avx2, false, R, V>(product, sums) }
}

/// Registers of 32-bit integers, and their operations in an instruction set.
trait Registers {
    const LANES: usize;

    type Register: Copy;

    unsafe fn splat(value: i32) -> Self::Register;

    unsafe fn load(words: *const i32) -> Self::Register;

    /// The first and the third byte of each word, in 16 bits.
    unsafe fn even_bytes(words: Self::Register) -> Self::Register;

    /// The second and the fourth byte of each word, in 16 bits.
    unsafe fn odd_bytes(words: Self::Register) -> Self::Register;

    unsafe fn add(left: Self::Register, right: Self::Register) -> Self::Register;

    /// The sums of two products of scalars in 16 bits.
    unsafe fn multiply_pairs(left: Self::Register, right: Self::Register) -> Self::Register;

    /// Adds the sums of four products, of bytes without a sign and bytes with one; an instruction of VNNI.
    unsafe fn add_products(sums: Self::Register, left: Self::Register, right: Self::Register) -> Self::Register;

    /// Adds the sums, scaled, to those in f32.
    unsafe fn add_scaled(sums: Self::Register, scales: *const f32, scale: f32, out: *mut f32);
}

/// Implements [`Registers`] by the intrinsics of an instruction set.
macro_rules! registers {
    (
        $name:ident, $lanes:literal, $words:ty, $splat:ident, $load:ident, $and:ident, $shift:ident, $add:ident,
        $multiply_pairs:ident, $add_products:ident, $load_f32:ident, $splat_f32:ident, $multiply:ident, $convert:ident,
        $multiply_add:ident, $store_f32:ident
    ) => {
        struct $name;

        // SAFETY of each block: the caller has the instructions, and pointers point to whole registers.
        impl Registers for $name {
            const LANES: usize = $lanes;

            type Register = $words;

            #[inline(always)]
            unsafe fn splat(value: i32) -> $words {
                unsafe { $splat(value) }
            }

            #[inline(always)]
            unsafe fn load(words: *const i32) -> $words {
                unsafe { $load(words.cast()) }
            }

            #[inline(always)]
            unsafe fn even_bytes(words: $words) -> $words {
                unsafe { $and(words, $splat(0x00FF_00FF)) }
            }

            #[inline(always)]
            unsafe fn odd_bytes(words: $words) -> $words {
                unsafe { $shift::<8>(words) }
            }

            #[inline(always)]
            unsafe fn add(left: $words, right: $words) -> $words {
                unsafe { $add(left, right) }
            }

            #[inline(always)]
            unsafe fn multiply_pairs(left: $words, right: $words) -> $words {
                unsafe { $multiply_pairs(left, right) }
            }

            #[inline(always)]
            unsafe fn add_products(sums: $words, left: $words, right: $words) -> $words {
                unsafe { $add_products(sums, left, right) }
            }

            #[inline(always)]
            unsafe fn add_scaled(sums: $words, scales: *const f32, scale: f32, out: *mut f32) {
                unsafe {
                    let scales = $multiply($load_f32(scales), $splat_f32(scale));
                    $store_f32(out, $multiply_add($convert(sums), scales, $load_f32(out)));
                }
            }
        }
    };
}

registers!(
    Avx512,
    16,
    __m512i,
    _mm512_set1_epi32,
    _mm512_loadu_si512,
    _mm512_and_si512,
    _mm512_srli_epi16,
    _mm512_add_epi32,
    _mm512_madd_epi16,
    _mm512_dpbusd_epi32,
    _mm512_loadu_ps,
    _mm512_set1_ps,
    _mm512_mul_ps,
    _mm512_cvtepi32_ps,
    _mm512_fmadd_ps,
    _mm512_storeu_ps
);
registers!(
    Avx2,
    8,
    __m256i,
    _mm256_set1_epi32,
    _mm256_loadu_si256,
    _mm256_and_si256,
    _mm256_srli_epi16,
    _mm256_add_epi32,
    _mm256_madd_epi16,
    _mm256_dpbusd_avx_epi32,
    _mm256_loadu_ps,
    _mm256_set1_ps,
    _mm256_mul_ps,
    _mm256_cvtepi32_ps,
    _mm256_fmadd_ps,
    _mm256_storeu_ps
);

/// Words to be multiplied: with VNNI the same twice, otherwise their even and their odd bytes in 16 bits.
type WordPair<K> = [<K as Registers>::Register; 2];

#[inline(always)]
unsafe fn weights<K: Registers, const VNNI: bool>(words: *const i32) -> WordPair<K> {
    // SAFETY: the caller has the instructions and a register of words.
    unsafe {
        let words = K::load(words);
        if VNNI { [words; 2] } else { [K::even_bytes(words), K::odd_bytes(words)] }
    }
}

/// Word `i` of a row, for all columns.
#[inline(always)]
unsafe fn quad<K: Registers, const VNNI: bool>(row: &Quantized, i: usize) -> WordPair<K> {
    // SAFETY: the caller has the instructions.
    unsafe {
        if VNNI {
            return [K::splat(row.words[i].cast_signed()); 2];
        }
        let [even, odd] = row.pairs[i].map(u32::cast_signed);
        [K::splat(even), K::splat(odd)]
    }
}

/// Adds the products of a row's word with weights.
#[inline(always)]
unsafe fn dot<K: Registers, const VNNI: bool>(
    sums: K::Register,
    weights: WordPair<K>,
    quad: WordPair<K>,
) -> K::Register {
    // SAFETY: the caller has the instructions.
    unsafe {
        if VNNI {
            return K::add_products(sums, weights[0], quad[0]);
        }
        let [even, odd] = [K::multiply_pairs(weights[0], quad[0]), K::multiply_pairs(weights[1], quad[1])];
        K::add(sums, K::add(even, odd))
    }
}

/// The sums stay in registers for a block, and in memory from one block to the next.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "loops over scalars of registers are unrolled for certain")]
unsafe fn add_by<K: Registers, const VNNI: bool, const R: usize, const V: usize>(
    product: Int8Product<'_>,
    sums: &mut [f32],
) {
    for i in 0..product.blocks.len() {
        let (block, rows) = product.block::<R>(i);
        // SAFETY: the caller has the instructions, and R rows of V registers of columns.
        unsafe {
            let mut dots = [[K::splat(0); V]; R];
            for r in 0..R {
                dots[r] = [K::splat(rows[r].start); V];
            }
            for word in 0..WORDS {
                let words: *const i32 = block[word].as_ptr().add(product.column).cast();
                let mut factors = [weights::<K, VNNI>(words); V];
                for v in 1..V {
                    factors[v] = weights::<K, VNNI>(words.add(v * K::LANES));
                }
                for r in 0..R {
                    let quad = quad::<K, VNNI>(&rows[r], word);
                    for v in 0..V {
                        dots[r][v] = dot::<K, VNNI>(dots[r][v], factors[v], quad);
                    }
                }
            }
            let scales: *const f32 = block[WORDS].as_ptr().add(product.column).cast();
            for r in 0..R {
                for v in 0..V {
                    let out = sums.as_mut_ptr().add((r * V + v) * K::LANES);
                    K::add_scaled(dots[r][v], scales.add(v * K::LANES), rows[r].scale, out);
                }
            }
        }
    }
}
