//! The machine's ceilings: products of matrices, which limit training and reading, and memory bandwidth, which limits
//! writing.

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
    /// Its place in a model.
    pub name: String,
    /// Rows of the first matrix.
    pub m: usize,
    /// Columns of the first matrix, and rows of the second one.
    pub k: usize,
    /// Columns of the second one.
    pub n: usize,
}

/// The speed of something with one thread and with all threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ceiling<T> {
    /// The something.
    #[serde(flatten)]
    pub what: T,
    /// Billions per second with one thread; `None` on a GPU.
    pub one_thread: Option<f64>,
    /// Billions per second with all threads, or on a GPU.
    pub all_threads: f64,
    /// The times with all threads.
    pub times: Times,
}

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "access")]
pub enum Access {
    /// `sum(a)`: one number is read, as weights are while a model writes.
    Read,
    /// `b = a`: one number is read, one written.
    Copy,
    /// `c = a + x b`: two are read, one written.
    Triad,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Copy, Self::Triad];

    /// Numbers that are read or written for each element.
    fn numbers(self) -> usize {
        match self {
            Self::Read => 1,
            Self::Copy => 2,
            Self::Triad => 3,
        }
    }
}

impl Product {
    /// The products of a forward pass, for all positions of a micro-batch at once.
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

    /// FLOPs: a multiplication and an addition are two.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.k as f64 * self.n as f64
    }
}

/// Times products of these sizes.
///
/// # Errors
/// If the device fails, or no thread can be started.
pub fn products(sizes: Vec<Product>, device: &OpenDevice, trial: &Trial) -> Result<Vec<Ceiling<Product>>, BenchError> {
    let ceiling = |product: Product| {
        let a: Tensor<2> = noise_tensor([product.m, product.k], &device.device);
        let b: Tensor<2> = noise_tensor([product.k, product.n], &device.device);
        let time = || trial.time(|| wait(&a.clone().matmul(b.clone())));
        ceiling(product.flops(), product, device, time)
    };
    sizes.into_iter().map(ceiling).collect()
}

/// Times each access to arrays of `numbers` f32 each.
///
/// # Errors
/// If the device fails, or no thread can be started.
pub fn bandwidth(numbers: usize, device: &OpenDevice, trial: &Trial) -> Result<Vec<Ceiling<Access>>, BenchError> {
    let mut arrays = Arrays::new(numbers, device);
    let mut ceilings = Vec::new();
    for access in Access::ALL {
        let bytes = (4 * numbers * access.numbers()) as f64;
        let time = || trial.time(|| arrays.go(access));
        ceilings.push(ceiling(bytes, access, device, time)?);
    }
    Ok(ceilings)
}

/// The speed of rounds of `amount` each, with one thread and with all threads.
fn ceiling<T>(
    amount: f64,
    what: T,
    device: &OpenDevice,
    mut time: impl FnMut() -> Result<Times, BenchError> + Send,
) -> Result<Ceiling<T>, BenchError> {
    let one_thread = if device.backend.is_cpu() { Some(on_threads(1, &mut time)??.per_s(amount) / 1e9) } else { None };
    let times = time()?;
    Ok(Ceiling { what, one_thread, all_threads: times.per_s(amount) / 1e9, times })
}

/// Runs `f` in a pool of `n_threads`.
fn on_threads<T: Send>(n_threads: usize, f: impl FnOnce() -> T + Send) -> Result<T, BenchError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads);
    let pool = pool.build().map_err(|error| BenchError::Threads { n_threads, message: error.to_string() })?;
    Ok(pool.install(f))
}

/// Arrays far larger than caches, on the host or on another device.
enum Arrays {
    Host { a: Vec<f32>, b: Vec<f32>, c: Vec<f32> },
    Device(Box<[Tensor<1>; 2]>),
}

/// Numbers that are added up side by side, so that no sum waits for the one before.
const LANES: usize = 64;

impl Arrays {
    fn new(numbers: usize, device: &OpenDevice) -> Self {
        if device.backend.is_cpu() {
            // Filled by the threads that will use them, so that each finds its part near by.
            let filled = |value: f32| (0..numbers).into_par_iter().map(|_| value).collect();
            Self::Host { a: filled(1.0), b: filled(2.0), c: filled(3.0) }
        } else {
            let noise = || noise_tensor([numbers], &device.device);
            Self::Device(Box::new([noise(), noise()]))
        }
    }

    fn go(&mut self, access: Access) -> Result<(), BenchError> {
        let (a, b, c) = match self {
            Self::Host { a, b, c } => (a, b, c),
            Self::Device(arrays) => {
                let [a, b] = &**arrays;
                return wait(&match access {
                    Access::Read => a.clone().sum(),
                    Access::Copy => a.clone() + 1.0,
                    Access::Triad => a.clone() + b.clone() * 0.5,
                });
            }
        };
        let share = a.len().div_ceil(rayon::current_num_threads()).max(1);
        match access {
            Access::Read => {
                let sum: f32 = a.par_chunks(share).map(sum).sum();
                std::hint::black_box(sum);
            }
            Access::Copy => b.par_chunks_mut(share).zip(a.par_chunks(share)).for_each(|(b, a)| b.copy_from_slice(a)),
            Access::Triad => {
                c.par_chunks_mut(share).zip(a.par_chunks(share).zip(b.par_chunks(share))).for_each(|(c, (a, b))| {
                    for (c, (a, b)) in c.iter_mut().zip(a.iter().zip(b)) {
                        *c = a + 0.5 * b;
                    }
                })
            }
        }
        std::hint::black_box((b, c));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "flex")]
    #[test]
    fn arrays_hold_what_the_access_says() {
        let device = crate::device::open(&"flex".parse().unwrap()).unwrap();
        let mut arrays = Arrays::new(1000, &device);
        arrays.go(Access::Copy).unwrap();
        arrays.go(Access::Triad).unwrap();
        let Arrays::Host { a, b, c } = arrays else { panic!("flex is on the host") };
        assert!(b.iter().all(|b| (b - 1.0).abs() < f32::EPSILON));
        assert!(c.iter().all(|c| (c - 1.5).abs() < f32::EPSILON));
        assert!((sum(&a) - 1000.0).abs() < f32::EPSILON);
        assert!((sum(&a[..LANES - 1]) - 63.0).abs() < f32::EPSILON);
    }

    #[test]
    fn products_are_those_of_the_model() {
        let preset = crate::autoconfig::Preset::named("gpt2").expect("it is shipped");
        let products = Product::of(&preset.config(), 50_257);
        let sizes: Vec<_> = products.iter().map(|p| (p.m, p.k, p.n)).collect();
        let m = 12 * 1024;
        let expected = [(m, 768, 2304), (m, 768, 768), (m, 768, 3072), (m, 3072, 768), (m, 768, 50_257)];
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
