//! Measures the speed and the memory of training, generation and attention on this machine.
//!
//! Times are medians of rounds after a warm-up, with their spread ([`crate::measure`]). The memory is that of the
//! process, so the caller measures each case in a separate process.

pub mod attention;
pub mod generate;
pub mod machine;
pub mod text;
pub mod train;

use std::fmt::Display;

use anyhow::anyhow;
use burn::tensor::{Device, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

fn device_failed(error: impl Display) -> anyhow::Error {
    anyhow!("the device failed: {error}\n  hint: measure something smaller, or use --device cpu")
}

/// Fixed pseudorandom numbers with mean 0 and variance 1.
fn noise_tensor<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let numbers: Vec<f32> =
        StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(0)).take(shape.iter().product()).collect();
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

/// Waits until `tensor` is computed, by reading one of its numbers.
fn wait<const D: usize>(tensor: &Tensor<D>) -> anyhow::Result<()> {
    let first = tensor.clone().slice([(); D].map(|()| 0..1)).try_into_vec_as::<f32>();
    first.map(|_| ()).map_err(device_failed)
}
