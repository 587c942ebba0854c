//! Text generation: the model (on a CPU, the [`engine`]) computes logits and the sampler chooses the next token.
//!
//! This module needs only a model, a tokenizer and the settings of `[generate]`: it knows nothing of runs or output.

mod batch;
mod config;
pub mod engine;
mod error;
mod generator;
mod guide;
mod language_model;
mod sampler;
mod sequence;
mod speculation;

pub use batch::{Batch, Logits};
pub use config::GenerateConfig;
pub use error::GenerateError;
pub use generator::{BatchGenerator, Generator, Piece};
pub use guide::{CallSchema, Grammar, Guide, SchemaError, Vocabulary};
pub use language_model::LanguageModel;
pub use sampler::{ChooseToken, Sampler};
pub use sequence::{End, Sequence};
pub use speculation::Speculated;
