//! The limits of a CPU: multiply-adds in registers, which no matrix product can beat, the matrix products of training,
//! and memory bandwidth, which limits generation. Each runs with one thread and with all threads.
//!
//!     cargo bench -p tinderbox-kernels --bench machine
//!     cargo bench -p tinderbox-kernels --bench machine -- products
//!
//! An item is a floating-point operation, a multiply-add counting as two, so `Gitem/s` is GFLOP/s. `TINDERBOX_SIMD`
//! holds all but burn's products to a SIMD level.

#![allow(unsafe_code, reason = "each block says why it is sound")]
#![allow(clippy::inline_always, reason = "a SIMD operation must have the instructions of its caller")]

use std::fmt;
use std::hint::black_box;
use std::sync::LazyLock;

use burn::tensor::{Device, Distribution, Tensor};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tinderbox_kernels::{MatmulPrecision, SimdLevel, linear};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    divan::main();
}

fn level() -> SimdLevel {
    SimdLevel::current().expect("TINDERBOX_SIMD names a level of this CPU")
}

/// The numbers of threads to measure with.
fn threads() -> Vec<usize> {
    let mut counts = vec![1, rayon::current_num_threads()];
    counts.dedup();
    counts
}

fn pool(n_threads: usize) -> ThreadPool {
    ThreadPoolBuilder::new().num_threads(n_threads).build().expect("the system starts threads")
}

/// Rounds of independent multiply-adds per thread: some milliseconds.
const ROUNDS: usize = 1 << 20;

/// Times [`ROUNDS`] rounds of `flops_per_round` on each thread.
fn bench_rounds(bencher: Bencher<'_, '_>, n_threads: usize, flops_per_round: usize, run: impl Fn(usize) + Sync) {
    let pool = pool(n_threads);
    let flops = ItemsCount::new(n_threads * ROUNDS * flops_per_round);
    bencher.counter(flops).bench_local(|| pool.broadcast(|_| run(ROUNDS)));
}

#[divan::bench(args = threads())]
fn multiply_adds_f32(bencher: Bencher<'_, '_>, n_threads: usize) {
    let arch = match level() {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => Arch::V3(pulp::x86::V3::try_new().expect("the level is available")),
        _ => Arch::new(),
    };
    let flops_per_round = arch.dispatch(MultiplyAdds { rounds: 1 });
    bench_rounds(bencher, n_threads, flops_per_round, |rounds| {
        black_box(arch.dispatch(MultiplyAdds { rounds }));
    });
}

/// Multiply-adds in enough registers to hide their latency. Returns the FLOPs of a round.
struct MultiplyAdds {
    rounds: usize,
}

impl WithSimd for MultiplyAdds {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        const SUMS: usize = 12;
        let factor = simd.splat_f32s(0.5);
        let mut sums = [simd.splat_f32s(1.0); SUMS];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(factor, factor, *sum);
            }
        }
        black_box(sums);
        2 * SUMS * S::F32_LANES
    }
}

/// By AMX or AVX512-BF16. A CPU without them widens to f32 first.
#[cfg(target_arch = "x86_64")]
#[divan::bench(args = threads(), ignore = !MatmulPrecision::Bf16.is_native())]
fn multiply_adds_bf16(bencher: Bencher<'_, '_>, n_threads: usize) {
    match level() {
        SimdLevel::Amx => bench_rounds(bencher, n_threads, bf16::AMX_FLOPS, |rounds| {
            // SAFETY: the level proves that this process may use AMX.
            unsafe { bf16::amx(rounds) }
        }),
        _ => bench_rounds(bencher, n_threads, bf16::AVX512_FLOPS, |rounds| {
            // SAFETY: the precision is native without AMX, so the CPU has AVX512-BF16.
            unsafe { bf16::avx512(rounds) }
        }),
    }
}

#[cfg(target_arch = "x86_64")]
mod bf16 {
    use std::arch::asm;
    use std::arch::x86_64::{__m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_set1_epi32, _mm512_set1_ps};
    use std::hint::black_box;
    use std::mem::transmute;

    const SUMS: usize = 12;

    /// A register has 16 sums, each of two products.
    pub(super) const AVX512_FLOPS: usize = 2 * SUMS * 16 * 2;

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn avx512(rounds: usize) {
        // SAFETY: both types are the same 64 bytes.
        let factor = unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi32(0x3F00_3F00)) };
        let mut sums: [__m512; SUMS] = [_mm512_set1_ps(1.0); SUMS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, factor, factor);
            }
        }
        black_box(sums);
    }

    /// Six products of tiles, `[16, 32] x [32, 16]`.
    pub(super) const AMX_FLOPS: usize = 6 * 2 * 16 * 32 * 16;

    #[repr(C, align(64))]
    struct TileConfig {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        n_rows: [u8; 16],
    }

    /// # Safety
    /// This process may use AMX.
    pub(super) unsafe fn amx(rounds: usize) {
        let mut config =
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], n_rows: [0; 16] };
        config.row_bytes[..8].fill(64);
        config.n_rows[..8].fill(16);
        // SAFETY: the caller's; the configuration is valid, and `rounds` is at least 1.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "2:",
                "tdpbf16ps tmm0, tmm6, tmm7",
                "tdpbf16ps tmm1, tmm6, tmm7",
                "tdpbf16ps tmm2, tmm6, tmm7",
                "tdpbf16ps tmm3, tmm6, tmm7",
                "tdpbf16ps tmm4, tmm6, tmm7",
                "tdpbf16ps tmm5, tmm6, tmm7",
                "dec {rounds}",
                "jnz 2b",
                "tilerelease",
                config = in(reg) &raw const config,
                rounds = inout(reg) rounds.max(1) => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }
}

/// A product `[m, k] x [k, n]`.
#[derive(Clone, Copy)]
struct Product {
    name: &'static str,
    size: [usize; 3],
    n_threads: usize,
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, size: [m, k, n], n_threads } = self;
        write!(f, "{name} [{m}, {k}] x [{k}, {n}], {n_threads} threads")
    }
}

/// The largest product of models of three sizes, for a number of tokens that suits a CPU, and a square product.
fn products() -> impl Iterator<Item = Product> {
    let sizes = [
        ("shakespeare", [768, 512, 128]),
        ("shakespeare-gpu", [1024, 1536, 384]),
        ("gpt2", [256, 3072, 768]),
        ("square", [1024; 3]),
    ];
    sizes
        .into_iter()
        .flat_map(|(name, size)| threads().into_iter().map(move |n_threads| Product { name, size, n_threads }))
}

fn bench_product(
    bencher: Bencher<'_, '_>,
    Product { size: [m, k, n], n_threads, .. }: Product,
    multiply: impl Fn(Tensor<2>, Tensor<2>) -> Tensor<2> + Sync,
) {
    let pool = pool(n_threads);
    let [a, b] =
        [[m, k], [k, n]].map(|shape| Tensor::<2>::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex()));
    let flops = ItemsCount::new(2 * m * k * n);
    bencher.counter(flops).bench_local(|| pool.install(|| multiply(a.clone(), b.clone())));
}

/// The linear layer of training, which packs both matrices.
#[divan::bench(args = products())]
fn products_f32(bencher: Bencher<'_, '_>, product: Product) {
    bench_product(bencher, product, |a, b| linear(a, b, None, MatmulPrecision::F32));
}

/// The same, which also rounds both matrices.
#[divan::bench(args = products())]
fn products_bf16(bencher: Bencher<'_, '_>, product: Product) {
    bench_product(bencher, product, |a, b| linear(a, b, None, MatmulPrecision::Bf16));
}

/// Burn's own products, in f32.
#[divan::bench(args = products())]
fn products_of_burn(bencher: Bencher<'_, '_>, product: Product) {
    bench_product(bencher, product, Tensor::matmul);
}

/// The scalars in an array: 256 MiB, well above the size of caches.
const ARRAY: usize = 1 << 26;

static A: LazyLock<Vec<f32>> = LazyLock::new(|| vec![1.0; ARRAY]);
static B: LazyLock<Vec<f32>> = LazyLock::new(|| vec![2.0; ARRAY]);

/// Times an access to arrays that reads or writes `n` scalars per element.
fn bench_access(bencher: Bencher<'_, '_>, n_threads: usize, n: usize, mut access: impl FnMut(usize) + Send) {
    let pool = pool(n_threads);
    let chunk = ARRAY.div_ceil(n_threads);
    bencher.counter(BytesCount::new(n * ARRAY * size_of::<f32>())).bench_local(|| pool.install(|| access(chunk)));
}

/// `sum(a)`: reads as generation reads weights.
#[divan::bench(args = threads(), sample_count = 10)]
fn memory_read(bencher: Bencher<'_, '_>, n_threads: usize) {
    bench_access(bencher, n_threads, 1, |chunk| {
        black_box(A.par_chunks(chunk).map(sum).sum::<f32>());
    });
}

/// `c = a`
#[divan::bench(args = threads(), sample_count = 10)]
fn memory_copy(bencher: Bencher<'_, '_>, n_threads: usize) {
    let mut c = vec![0.0; ARRAY];
    bench_access(bencher, n_threads, 2, |chunk| {
        c.par_chunks_mut(chunk).zip(A.par_chunks(chunk)).for_each(|(c, a)| c.copy_from_slice(a));
        black_box(&mut c);
    });
}

/// `c = a + x b`, the triad of STREAM.
#[divan::bench(args = threads(), sample_count = 10)]
fn memory_triad(bencher: Bencher<'_, '_>, n_threads: usize) {
    let mut c = vec![0.0; ARRAY];
    bench_access(bencher, n_threads, 3, |chunk| {
        let chunks = c.par_chunks_mut(chunk).zip(A.par_chunks(chunk).zip(B.par_chunks(chunk)));
        chunks.for_each(|(c, (a, b))| c.iter_mut().zip(a.iter().zip(b)).for_each(|(c, (a, b))| *c = a + 0.5 * b));
        black_box(&mut c);
    });
}

/// With independent partial sums, so that no addition waits for the previous one.
fn sum(scalars: &[f32]) -> f32 {
    let mut sums = [0.0; 64];
    let (chunks, rest) = scalars.as_chunks::<64>();
    for chunk in chunks {
        for (sum, scalar) in sums.iter_mut().zip(chunk) {
            *sum += scalar;
        }
    }
    sums.iter().chain(rest).sum()
}
