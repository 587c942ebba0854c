//! What a model costs, from its shape alone: parameters, arithmetic, and what a training pass holds in
//! memory.
//!
//! Nothing here computes with tensors: a model that fits no machine can be counted too. The numbers are
//! those of this implementation, and tests hold them against the real thing.

mod compute;
mod memory;
mod parameters;
mod update;

pub use compute::{Compute, compute};
pub use memory::{Held, Operations, PassMemory, PassShape, pass_memory};
pub use parameters::{BlockParameters, ParameterTensor, Parameters, parameters, tensors};
pub use update::{update_flops, update_temporaries};
