//! The operations that a transformer spends its time in, one function each.
//!
//! Every function here runs on any device, made of ordinary tensor operations. On burn's CPU backend
//! some have a faster way behind the same name, which is tested against the ordinary one. They know
//! tensors and numbers, nothing of modules, parameters or configuration.

pub mod activation;
pub mod attention;
pub mod dropout;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "flex")]
mod fused_norm;
#[cfg(feature = "flex")]
mod gelu;
pub mod loss;
pub mod norm;
#[cfg(feature = "flex")]
mod softmax;

pub use activation::{gelu, relu_squared, silu};
pub use attention::{attention_weights, causal_attention, causal_bias, repeat_kv};
pub use dropout::{DropoutKey, begin_dropout, dropout};
pub use loss::cross_entropy;
pub use norm::{layer_norm, rms_norm};
