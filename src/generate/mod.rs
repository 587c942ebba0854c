//! Generates text: the model (on a CPU the [`engine`]) computes logits, the sampler chooses a token, and so on.
//!
//! It depends on a model, a tokenizer and the settings of `[generate]`, and neither on runs nor on output.

#[cfg(feature = "serve")]
mod batch;
pub mod engine;
mod language_model;
mod sampler;
mod sequence;
mod writer;

#[cfg(feature = "serve")]
pub(crate) use batch::{Batch, Logits};
pub use language_model::LanguageModel;
pub use sampler::{ChooseToken, Sampler};
#[cfg(feature = "serve")]
pub(crate) use sequence::{End, Sequence};
pub use writer::{GenerateError, Piece, Writer, Writers};
