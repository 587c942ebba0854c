//! The limits of the machine: the speed of multiply-adds and of matrix products, which limits training and prompt
//! reading, and the memory bandwidth, which limits generation.

use anyhow::Context;
use burn::tensor::Tensor;
use rayon::prelude::*;
use serde::Serialize;

use super::{noise_tensor, wait};
use crate::config::{Config, MatmulPrecision, ModelConfig};
use crate::device::{Backend, OpenDevice};
use crate::measure::{Times, Trial};
use tinderbox_kernels as kernels;

/// A product `[m, k] x [k, n]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Product {
    pub name: String,
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

/// A speed with one thread and with all threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ceiling<T> {
    #[serde(flatten)]
    pub what: T,
    /// Billions per second with one thread; `None` on a GPU.
    pub one_thread: Option<f64>,
    /// Billions per second with all threads, or on a GPU.
    pub all_threads: f64,
    pub times: Times,
}

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "access")]
pub enum Access {
    /// `sum(a)`: reads one number per element, as generation reads weights.
    Read,
    /// `b = a`: reads one number per element and writes one.
    Copy,
    /// `c = a + x b`: reads two numbers per element and writes one.
    Triad,
}

impl Product {
    /// The products of a forward pass, for all positions of a micro-batch together.
    pub fn of_forward_pass(config: &Config, vocab_size: usize) -> Vec<Self> {
        let m = config.train.batch_size * config.model.context_length;
        let ModelConfig { d_model, n_heads, n_kv_heads, head_dim, d_ff, .. } = config.model;
        let qkv = head_dim * (n_heads + 2 * n_kv_heads);
        [
            ("queries, keys, values", d_model, qkv),
            ("attention's output", n_heads * head_dim, d_model),
            ("MLP, in", d_model, d_ff),
            ("MLP, out", d_ff, d_model),
            ("output layer", d_model, vocab_size),
        ]
        .map(|(name, k, n)| Self { name: name.to_owned(), m, k, n })
        .into()
    }

    /// FLOPs, with a multiply-add counted as two.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.k as f64 * self.n as f64
    }
}

/// The speeds of products, and the limit that the arithmetic units set them, by one kind of kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Products {
    /// Multiply-adds in registers and nothing else; `None` for kernels that are not ours.
    pub multiply_adds: Option<Ceiling<()>>,
    pub products: Vec<Ceiling<Product>>,
}

/// Whose products are timed, and in which precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The linear layer of training on a CPU, which packs and rounds both matrices first.
    Own(MatmulPrecision),
    /// Burn's own operation on the device, in f32.
    Burn,
}

/// Times products of these sizes. `None` if the device does not use these kernels.
pub fn products(
    kernel: Kernel,
    sizes: &[Product],
    device: &OpenDevice,
    trial: &Trial,
) -> anyhow::Result<Option<Products>> {
    let is_ours = device.backend == Backend::Flex;
    Ok(Some(match kernel {
        Kernel::Own(_) if !is_ours => return Ok(None),
        Kernel::Own(precision) => Products {
            multiply_adds: Some(multiply_adds(precision, device, trial)?),
            products: time_products(sizes, device, trial, |a, b| kernels::linear(a, b, None, precision))?,
        },
        Kernel::Burn => {
            Products { multiply_adds: None, products: time_products(sizes, device, trial, Tensor::matmul)? }
        }
    }))
}

/// The multiply-adds of a round, in units of as many as a core has under way: some milliseconds.
const ROUNDS: usize = 1 << 20;

fn multiply_adds(precision: MatmulPrecision, device: &OpenDevice, trial: &Trial) -> anyhow::Result<Ceiling<()>> {
    let of_a_thread = kernels::multiply_adds(precision, 1) * ROUNDS as f64;
    let on_all = || {
        rayon::broadcast(|_| std::hint::black_box(kernels::multiply_adds(precision, ROUNDS)));
        Ok(())
    };
    let mut ceiling = ceiling(of_a_thread, (), device, || trial.time(on_all))?;
    ceiling.all_threads *= rayon::current_num_threads() as f64;
    Ok(ceiling)
}

fn time_products(
    sizes: &[Product],
    device: &OpenDevice,
    trial: &Trial,
    multiply: impl Fn(Tensor<2>, Tensor<2>) -> Tensor<2> + Sync,
) -> anyhow::Result<Vec<Ceiling<Product>>> {
    let ceiling = |product: &Product| {
        let a: Tensor<2> = noise_tensor([product.m, product.k], &device.device);
        let b: Tensor<2> = noise_tensor([product.k, product.n], &device.device);
        let time = || trial.time(|| wait(&multiply(a.clone(), b.clone())));
        ceiling(product.flops(), product.clone(), device, time)
    };
    sizes.iter().map(ceiling).collect()
}

/// Times each access to arrays of `numbers` f32 values.
pub fn bandwidth(numbers: usize, device: &OpenDevice, trial: &Trial) -> anyhow::Result<Vec<Ceiling<Access>>> {
    let mut arrays = Arrays::new(numbers, device);
    // Numbers read or written per element.
    let accesses = [(Access::Read, 1), (Access::Copy, 2), (Access::Triad, 3)];
    let ceiling = |(access, n)| {
        let time = || trial.time(|| arrays.run(access));
        ceiling((4 * numbers * n) as f64, access, device, time)
    };
    accesses.into_iter().map(ceiling).collect()
}

/// The speed of rounds of `amount` each, with one thread and with all threads.
fn ceiling<T>(
    amount: f64,
    what: T,
    device: &OpenDevice,
    mut time: impl FnMut() -> anyhow::Result<Times> + Send,
) -> anyhow::Result<Ceiling<T>> {
    let billions_per_s = |times: Times| times.per_s(amount) / 1e9;
    let on_one = device.backend.is_cpu().then(|| on_threads(1, &mut time)).transpose()?.transpose()?;
    let times = time()?;
    Ok(Ceiling { what, one_thread: on_one.map(billions_per_s), all_threads: billions_per_s(times), times })
}

/// Runs `f` in a pool of `n_threads`.
fn on_threads<T: Send>(n_threads: usize, f: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads);
    let pool = pool.build().with_context(|| format!("cannot start {n_threads} threads"))?;
    Ok(pool.install(f))
}

/// Arrays far larger than caches, in host or device memory.
enum Arrays {
    Host([Vec<f32>; 3]),
    Device(Box<[Tensor<1>; 2]>),
}

impl Arrays {
    fn new(numbers: usize, device: &OpenDevice) -> Self {
        if device.backend.is_cpu() {
            // Filled by the threads that will use them, so that each has its part in nearby memory.
            Self::Host([1.0, 2.0, 3.0].map(|value| (0..numbers).into_par_iter().map(|_| value).collect()))
        } else {
            Self::Device(Box::new([(); 2].map(|()| noise_tensor([numbers], &device.device))))
        }
    }

    fn run(&mut self, access: Access) -> anyhow::Result<()> {
        let (a, b, c) = match self {
            Self::Host([a, b, c]) => (a, b, c),
            Self::Device(arrays) => {
                let [a, b] = &**arrays;
                return wait(&match access {
                    Access::Read => a.clone().sum(),
                    Access::Copy => a.clone() + 1.0,
                    Access::Triad => a.clone() + b.clone() * 0.5,
                });
            }
        };
        let chunk = a.len().div_ceil(rayon::current_num_threads()).max(1);
        match access {
            Access::Read => {
                let sum: f32 = a.par_chunks(chunk).map(kernels::sum).sum();
                std::hint::black_box(sum);
            }
            Access::Copy => b.par_chunks_mut(chunk).zip(a.par_chunks(chunk)).for_each(|(b, a)| b.copy_from_slice(a)),
            Access::Triad => {
                let sources = a.par_chunks(chunk).zip(b.par_chunks(chunk));
                c.par_chunks_mut(chunk).zip(sources).for_each(|(c, (a, b))| kernels::triad(c, a, 0.5, b));
            }
        }
        std::hint::black_box((b, c));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "flex")]
    #[test]
    fn arrays_hold_what_the_access_says() {
        let device = crate::device::open(&"flex".parse().unwrap()).unwrap();
        let mut arrays = Arrays::new(1000, &device);
        arrays.run(Access::Copy).unwrap();
        arrays.run(Access::Triad).unwrap();
        let Arrays::Host([_, b, c]) = arrays else { panic!("flex is on the host") };
        assert!(b.iter().all(|b| (b - 1.0).abs() < f32::EPSILON));
        assert!(c.iter().all(|c| (c - 1.5).abs() < f32::EPSILON));
    }

    #[test]
    fn products_are_those_of_the_model() {
        let preset = crate::preset::Preset::named("gpt2").expect("it is shipped");
        let products = Product::of_forward_pass(&preset.config(), 50_257);
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
