//! Writing on a CPU without tensors: weights are packed once, memory is allocated once, and a new token costs little
//! more than reading the weights. The products are those of training; weights in bf16 and int8 are widened in the
//! registers, where activations stay f32.
//!
//! Each number is one sum in a fixed order, whatever is computed beside it: it is the same, byte for byte, for any
//! number of threads and of rows, so that a sample gets the same text alone and among others.

#![allow(unsafe_code, reason = "each block says why it is sound, and bounds are asserted")]
#![allow(
    clippy::inline_always,
    reason = "what is called in an inner loop must have the instructions of its caller's SIMD level"
)]

mod attention;
mod cache;
mod linear;
mod packed_rows;
mod pages;

use pulp::{Arch, Simd, WithSimd};

use crate::rows::softmax;

pub use crate::gemm::ActivationKind;
pub use attention::{Buffers, Heads, Stream, attend};
pub use cache::Cache;
pub use linear::{PackedLinear, Precision};
pub use packed_rows::{PackedRows, RowNorm, Rows};

/// The logarithm of the sum of `e^x` over some numbers, which become their softmax.
#[must_use]
pub fn log_sum_exp(x: &mut [f32]) -> f32 {
    Arch::new().dispatch(LogSumExp(x))
}

struct LogSumExp<'a>(&'a mut [f32]);

impl WithSimd for LogSumExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        softmax::<S>(self.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_sum_exp_is_exact_for_large_numbers_too() {
        for n in [1, 7, 16, 65] {
            let mut x: Vec<f32> = (0..n).map(|i| (i % 9) as f32 + 1000.0).collect();
            let want = x.iter().map(|x| (f64::from(*x) - 1000.0).exp()).sum::<f64>().ln() + 1000.0;
            assert!((f64::from(log_sum_exp(&mut x)) - want).abs() < 1e-4);
        }
    }
}
