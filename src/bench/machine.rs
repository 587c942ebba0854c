//! What the machine could reach: products of matrices, and how fast memory is.
//!
//! A model spends its time in products of matrices while it trains and reads, and in reading its weights while it
//! writes: nothing built of them is faster than these.

use burn::tensor::Tensor;
use rayon::prelude::*;
use serde::Serialize;

use super::{BenchError, noise_tensor, wait};
use crate::config::{Config, ModelConfig};
use crate::device::OpenDevice;
use crate::measure::{Times, Trial};

/// A product `[m, k] x [k, n]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Product {
    /// What it is in a model.
    pub name: String,
    /// Rows of the first matrix.
    pub m: usize,
    /// What both share.
    pub k: usize,
    /// Columns of the second one.
    pub n: usize,
}

/// How fast something is with one thread and with all of them, in units of 10^9 a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ceiling<T> {
    /// What was done.
    #[serde(flatten)]
    pub what: T,
    /// Billions a second with one thread; none on a GPU.
    pub one_thread: Option<f64>,
    /// Billions a second with all threads, or on a GPU.
    pub all_threads: f64,
    /// The times with all threads.
    pub times: Times,
}

/// How memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "access")]
pub enum Access {
    /// `sum(a)`: one number is read. What writing text does with weights.
    Read,
    /// `b = a`: one number is read, one written.
    Copy,
    /// `c = a + x b`: two are read, one written.
    Triad,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Copy, Self::Triad];

    /// Numbers that pass between memory and processor for each one of an array.
    fn numbers(self) -> usize {
        match self {
            Self::Read => 1,
            Self::Copy => 2,
            Self::Triad => 3,
        }
    }
}

impl Product {
    /// The products that one position of a model goes through, for all positions of a micro-batch at once.
    #[must_use]
    pub fn of(config: &Config, vocab_size: usize) -> Vec<Self> {
        let m = config.train.batch_size * config.model.context_length;
        let ModelConfig { d_model, n_heads, n_kv_heads, d_ff, .. } = config.model;
        let qkv = d_model / n_heads * (n_heads + 2 * n_kv_heads);
        [
            ("queries, keys, values", d_model, qkv),
            ("attention's output", d_model, d_model),
            ("MLP, in", d_model, d_ff),
            ("MLP, out", d_ff, d_model),
            ("output layer", d_model, vocab_size),
        ]
        .map(|(name, k, n)| Self { name: name.to_owned(), m, k, n })
        .into()
    }

    /// Floating-point operations: a multiplication and an addition are two.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.k as f64 * self.n as f64
    }
}

/// Multiplies matrices of these sizes.
///
/// # Errors
/// If the device fails, or there is no thread.
pub fn products(
    sizes: Vec<Product>,
    device: &OpenDevice,
    trial: &Trial,
) -> Result<Vec<Ceiling<Product>>, BenchError> {
    let ceiling = |product: Product| {
        let a: Tensor<2> = noise_tensor([product.m, product.k], &device.device);
        let b: Tensor<2> = noise_tensor([product.k, product.n], &device.device);
        let time = || trial.time(|| wait(&a.clone().matmul(b.clone())));
        ceiling(product.flops(), product, device, time)
    };
    sizes.into_iter().map(ceiling).collect()
}

/// Reads, copies and adds arrays of so many numbers each, of 4 bytes.
///
/// # Errors
/// If the device fails, or there is no thread.
pub fn bandwidth(
    numbers: usize,
    device: &OpenDevice,
    trial: &Trial,
) -> Result<Vec<Ceiling<Access>>, BenchError> {
    let mut arrays: Box<dyn Arrays> = if device.backend.is_cpu() {
        Box::new(HostArrays::new(numbers))
    } else {
        Box::new(DeviceArrays::new(numbers, device))
    };
    let mut ceilings = Vec::new();
    for access in Access::ALL {
        let bytes = (4 * numbers * access.numbers()) as f64;
        let time = || trial.time(|| arrays.go(access));
        ceilings.push(ceiling(bytes, access, device, time)?);
    }
    Ok(ceilings)
}

/// What `amount` in each round comes to, with one thread and with all.
fn ceiling<T>(
    amount: f64,
    what: T,
    device: &OpenDevice,
    mut time: impl FnMut() -> Result<Times, BenchError> + Send,
) -> Result<Ceiling<T>, BenchError> {
    let one_thread = if device.backend.is_cpu() {
        Some(on_threads(1, &mut time)??.per_s(amount) / 1e9)
    } else {
        None
    };
    let times = time()?;
    Ok(Ceiling { what, one_thread, all_threads: times.per_s(amount) / 1e9, times })
}

/// What `f` returns, which has so many threads to share its work among.
fn on_threads<T: Send>(n_threads: usize, f: impl FnOnce() -> T + Send) -> Result<T, BenchError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads);
    let pool = pool
        .build()
        .map_err(|error| BenchError::Threads { n_threads, message: error.to_string() })?;
    Ok(pool.install(f))
}

/// Three arrays, far larger than what caches hold.
trait Arrays: Send {
    fn go(&mut self, access: Access) -> Result<(), BenchError>;
}

struct HostArrays {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

/// Numbers that are added up side by side, so that a sum keeps no unit waiting.
const LANES: usize = 64;

impl HostArrays {
    /// Filled by the threads that will use them, so that each finds its part near by.
    fn new(numbers: usize) -> Self {
        let filled = |value: f32| (0..numbers).into_par_iter().map(|_| value).collect();
        Self { a: filled(1.0), b: filled(2.0), c: filled(3.0) }
    }
}

impl Arrays for HostArrays {
    fn go(&mut self, access: Access) -> Result<(), BenchError> {
        let share = self.a.len().div_ceil(rayon::current_num_threads()).max(1);
        let Self { a, b, c } = self;
        match access {
            Access::Read => {
                let sum: f32 = a.par_chunks(share).map(sum).sum();
                std::hint::black_box(sum);
            }
            Access::Copy => b
                .par_chunks_mut(share)
                .zip(a.par_chunks(share))
                .for_each(|(b, a)| b.copy_from_slice(a)),
            Access::Triad => c
                .par_chunks_mut(share)
                .zip(a.par_chunks(share).zip(b.par_chunks(share)))
                .for_each(|(c, (a, b))| {
                    for (c, (a, b)) in c.iter_mut().zip(a.iter().zip(b)) {
                        *c = a + 0.5 * b;
                    }
                }),
        }
        std::hint::black_box((&self.b, &self.c));
        Ok(())
    }
}

fn sum(numbers: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, number) in sums.iter_mut().zip(chunk) {
            *sum += number;
        }
    }
    sums.iter().chain(rest).sum()
}

struct DeviceArrays {
    a: Tensor<1>,
    b: Tensor<1>,
}

impl DeviceArrays {
    fn new(numbers: usize, device: &OpenDevice) -> Self {
        Self {
            a: noise_tensor([numbers], &device.device),
            b: noise_tensor([numbers], &device.device),
        }
    }
}

impl Arrays for DeviceArrays {
    fn go(&mut self, access: Access) -> Result<(), BenchError> {
        let Self { a, b } = self;
        wait(&match access {
            Access::Read => a.clone().sum(),
            Access::Copy => a.clone() + 1.0,
            Access::Triad => a.clone() + b.clone() * 0.5,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_hold_what_the_access_says() {
        let mut arrays = HostArrays::new(1000);
        arrays.go(Access::Copy).expect("memory does not fail");
        assert!(arrays.b.iter().all(|b| (b - 1.0).abs() < f32::EPSILON));
        arrays.go(Access::Triad).expect("memory does not fail");
        assert!(arrays.c.iter().all(|c| (c - 1.5).abs() < f32::EPSILON));
        assert!((sum(&arrays.a) - 1000.0).abs() < f32::EPSILON);
        assert!((sum(&arrays.a[..LANES - 1]) - 63.0).abs() < f32::EPSILON);
    }

    #[test]
    fn products_are_those_of_the_model() {
        let preset = crate::autoconfig::Preset::named("gpt2").expect("it is shipped");
        let products = Product::of(&preset.config(), 50_257);
        let sizes: Vec<_> = products.iter().map(|p| (p.m, p.k, p.n)).collect();
        let m = 12 * 1024;
        let expected =
            [(m, 768, 2304), (m, 768, 768), (m, 768, 3072), (m, 3072, 768), (m, 768, 50_257)];
        assert_eq!(sizes, expected);
        assert!((products[1].flops() - 2.0 * 12_288.0 * 768.0 * 768.0).abs() < 0.5);
    }

    #[test]
    fn so_many_threads_share_the_work() {
        for n in [1, 3] {
            let seen = on_threads(n, rayon::current_num_threads).expect("threads");
            assert_eq!(seen, n);
        }
    }
}
