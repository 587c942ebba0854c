//! Writing text: the model proposes, the sampler chooses, token by token.
//!
//! This part knows a model, a tokenizer and numbers that say how to choose; not where a run lies or who
//! reads the text.

mod draft;
mod ranking;
mod reader;
mod sampler;
mod stop;
mod writer;

pub use reader::Author;
pub use sampler::{Sampler, candidates};
pub use writer::{GenerateError, Piece, Writer, Writers};
