//! Operations on burn's CPU backend, flex.
//!
//! Every task computes its own part of the output and no task waits for another. Sums run over a fixed number of lanes
//! in a fixed order, and Rust never reorders floating-point arithmetic: results are the same, byte for byte, for any
//! number of threads.

pub(super) mod linear;
pub(super) mod loss;
pub(super) mod mlp;
pub(super) mod newton_schulz;
