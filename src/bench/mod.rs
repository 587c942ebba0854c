//! How fast this machine is at what a model needs, and how much memory that takes.
//!
//! [`attention`] follows the cost of attention as a text grows, [`train`] times training steps, [`generate`] the
//! reading of a prompt and the writing of tokens, and [`machine`] says what the machine could reach: products of
//! matrices and memory. All times are medians of rounds after some to warm up, with their spread ([`crate::measure`]).
//!
//! What is measured is what training and generation call, never a copy of it. Nothing here starts processes or
//! prints: that the memory of one row does not count for the next is up to the caller, who measures it in a process
//! of its own.

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
    /// The config's text or tokenizer cannot be used.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The config's own text cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The device multiplies in another precision than the config's.
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    /// The device failed.
    #[error("the device failed: {0}\n  hint: measure something smaller, or use --device cpu")]
    Device(String),
    /// It would not fit.
    #[error(
        "training needs {}, and this machine has {} free now\n  hint: end other programs, or make it smaller, \
         such as by --set train.batch_size=1",
        size(*needs),
        size(*available)
    )]
    Memory {
        /// Bytes at the fullest moment.
        needs: u64,
        /// Bytes that nothing else uses.
        available: u64,
    },
    /// The tokens are more than the model sees.
    #[error(
        "a prompt of {prompt_tokens} tokens and {new_tokens} new ones do not fit a context of {context_length}\n  \
         hint: lower --prompt-tokens or --new-tokens"
    )]
    Context {
        /// How many tokens the prompt was to have.
        prompt_tokens: usize,
        /// How many were to be written.
        new_tokens: usize,
        /// How many the model sees.
        context_length: usize,
    },
    /// The system gave no thread.
    #[error("cannot start {n_threads} threads: {message}")]
    Threads {
        /// How many were asked for.
        n_threads: usize,
        /// What the system said.
        message: String,
    },
}

/// Numbers that look random and are always the same ones, with mean 0 and variance 1.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "noise has no exact value"
)]
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
    first
        .try_into_vec_as::<f32>()
        .map(|_| ())
        .map_err(|error| BenchError::Device(error.to_string()))
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
