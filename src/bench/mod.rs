//! How fast this machine trains, writes and attends, and in how much memory.
//!
//! Times are medians of rounds after some to warm up, with their spread ([`crate::measure`]). The memory is that of the
//! process, so the caller measures each case in a process of its own.

pub mod attention;
pub mod generate;
pub mod machine;
pub mod train;

use burn::tensor::{Device, Tensor, TensorData};

use crate::data::DataError;
use crate::format::size;
use crate::plan::PlanError;
use crate::train::PrecisionError;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The config cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The config's text cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The device does not have the config's precision.
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    /// The device failed.
    #[error("the device failed: {0}\n  hint: measure something smaller, or use --device cpu")]
    Device(String),
    /// The training would not fit the memory.
    #[error(
        "training needs {}, and this machine has {} free now\n  hint: end other programs, or make it smaller, \
         such as by --set train.batch_size=1",
        size(*needs),
        size(*available)
    )]
    Memory {
        /// Bytes at the fullest moment.
        needs: u64,
        /// Free bytes.
        available: u64,
    },
    /// The tokens do not fit the context.
    #[error(
        "a prompt of {prompt_tokens} tokens and {new_tokens} new ones do not fit a context of {context_length}\n  \
         hint: lower --prompt-tokens or --new-tokens"
    )]
    Context {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens to be written.
        new_tokens: usize,
        /// The model's context.
        context_length: usize,
    },
    /// No threads could be started.
    #[error("cannot start {n_threads} threads: {message}")]
    Threads {
        /// How many were requested.
        n_threads: usize,
        /// The system's error.
        message: String,
    },
}

/// Fixed pseudo-random numbers of mean 0 and variance 1.
#[allow(clippy::cast_possible_truncation, reason = "noise has no exact value")]
fn noise(n: usize) -> Vec<f32> {
    let width = f64::sqrt(12.0); // of a uniform distribution of variance 1
    (0..n as u64)
        .map(|i| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .map(|mixed| (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40)
        .map(|bits| ((bits as f64 / (1_u64 << 24) as f64 - 0.5) * width) as f32)
        .collect()
}

fn noise_tensor<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(noise(shape.iter().product()), shape), device)
}

/// Waits until `tensor` is computed, by reading a number of it.
fn wait<const D: usize>(tensor: &Tensor<D>) -> Result<(), BenchError> {
    let first = tensor.clone().slice([(); D].map(|()| 0..1));
    first.try_into_vec_as::<f32>().map(|_| ()).map_err(|error| BenchError::Device(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_mean_0_and_variance_1_and_is_always_the_same() {
        let numbers = noise(10_000);
        let mean = numbers.iter().sum::<f32>() / 1e4;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        assert_eq!(numbers[..100], noise(100));
    }
}
