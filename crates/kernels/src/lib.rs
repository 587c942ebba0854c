#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, reason = "weights have the same bits on every system"))]
#![cfg_attr(
    test,
    allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "scalars in tests are small")
)]
#![allow(
    clippy::inline_always,
    reason = "a function called in an inner loop must have the instructions of its caller's SIMD level"
)]

pub mod activation;
pub mod attention;
pub mod decode;
pub mod dropout;
mod elementary;
pub mod embedding;
mod flex;
pub mod frozen;
mod gemm;
pub mod linear;
pub mod loss;
pub mod low_rank;
mod memory;
pub mod mix;
pub mod mlp;
mod newton_schulz;
pub mod norm;
mod op;
pub mod optimizer;
#[cfg(test)]
mod parity;
mod positions;
mod precision;
mod simd;
mod tasks;
#[cfg(test)]
mod testing;

pub use activation::{Activation, activate, gelu, gelu_tanh, relu_squared};
pub use attention::{
    CausalAttention, QkNorm, SelfAttention, attention_scale, attention_weights, causal_attention, merge_heads,
    repeat_kv, rotate, self_attention, split_heads, unseen,
};
pub use dropout::{Dropout, DropoutKey, dropout};
pub use embedding::{Positions, embed};
pub use flex::with_values;
pub use frozen::{FrozenWeight, frozen_linear};
pub use linear::linear;
pub use loss::{IGNORE_INDEX, Output, Targets, cross_entropy, cross_entropy_of_logits, softcap};
pub use low_rank::low_rank;
pub use memory::{Operations, TrainingMemory};
pub use mix::mix;
pub use mlp::mlp;
pub use newton_schulz::{ColumnBlock, Polynomials, newton_schulz, newton_schulz_temporary_bytes};
pub use norm::{layer_norm, rms_norm};
pub use optimizer::{AdamW, adamw, descend, lerp, mean_squares_of_columns, nesterov, sum_of_squares};
pub use precision::MatmulPrecision;
pub use simd::{SimdError, SimdLevel};
