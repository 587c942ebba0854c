//! From text on disk to batches of token ids.
//!
//! [`Corpus::open`] turns a file or a folder of text into two long runs of tokens, one for training
//! and one for validation, kept in a memory-mapped file; [`batch`] cuts rows out of them. Text goes
//! through in pieces, so neither needs the corpus to fit in memory.
//!
//! This module knows nothing of models or devices: a batch is two vectors of integers.

pub mod batch;
mod corpus;
mod error;
mod preview;
mod source;
mod store;
mod summary;
mod survey;
mod tokens;

pub use batch::Batch;
pub use corpus::Corpus;
pub use error::DataError;
pub use preview::Preview;
pub use survey::{Survey, survey};
pub use tokens::Tokens;
