//! A trained model on the CPU without tensors: weights packed once, room allocated once, and nothing computed
//! twice.
//!
//! An [`Engine`] is what a model has learned, in one of three precisions; a [`Session`] reads the texts of some
//! samples with it, and tells which token comes next. Both are made for writing, where a token at a time is
//! computed and almost all time goes into reading the weights. The model itself, made of tensors, is the reference
//! for every number here, and what computes on any other device.
//!
//! This part knows models and tokens, nothing of text, sampling or runs.

mod engine;
mod layer;
mod session;

pub use engine::Engine;
pub use session::Session;
pub use tinderbox_kernels::decode::Precision;
