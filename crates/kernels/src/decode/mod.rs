//! Decoding on a CPU without tensors. Weights are packed once, the memory of caches grows with them, and a new token costs
//! little more than reading the weights. Products use the same kernels as training; weights in bf16 and int8 are widened in
//! registers, while activations stay f32 unless they are rounded to int8 too.
//!
//! Each element is one sum in a fixed order, so its bytes do not depend on the number of threads or rows: a sample gets
//! the same completion alone and in a batch.

#![allow(unsafe_code, reason = "each block says why it is sound, and bounds are asserted")]

pub(crate) mod cache;
mod linear;
mod low_rank;
pub(crate) mod packed_rows;
pub(crate) mod pages;

pub use crate::activation::Activation;
pub use crate::attention::decode::{Buffers, Stream, attend};
pub use crate::attention::heads::{Angles, Heads};
pub use crate::elementary::{log_sum_exp, softcap_row};
pub use cache::Cache;
pub use linear::{PackedLinear, Precision};
pub use low_rank::{ColumnAdapter, LowRank};
pub use packed_rows::{ColumnNorm, PackedRows, RowNorm, Rows};
