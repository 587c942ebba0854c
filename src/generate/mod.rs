//! Writing text: the model (on a CPU the [`engine`]) computes logits, the sampler chooses a token, and so on.
//!
//! It knows a model, a tokenizer and the settings of `[generate]`, and nothing of runs or of output.

pub mod engine;
mod language_model;
mod sampler;
mod writer;

pub use language_model::LanguageModel;
pub use sampler::{ChooseToken, Sampler};
pub use writer::{GenerateError, Piece, Writer, Writers};
