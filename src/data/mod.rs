//! From text on disk to batches of token ids.
//!
//! [`Corpus::open`] turns files and folders of text into two long runs of tokens for each, one for
//! training and one for validation, kept in a memory-mapped file; [`batch`] cuts rows out of them.
//!
//! A text goes through in chunks, so neither needs it to fit in memory. In the order of its way:
//! `source` finds its files; `file` unpacks one, and `record` takes the text out of a line of JSON;
//! `reader` makes chunks of them all; `divide` says where validation begins, and `pieces` where a
//! text may be cut; `encode` writes token files, with the cores at work through `pipeline`; `store`
//! is such a file, and `cache` their folder. `preview` is the beginning of a text, `survey` is the first look at a text, `learn` makes a
//! tokenizer of it. `progress` reports it.
//!
//! This module knows nothing of models or devices: a batch is two vectors of integers.

pub mod batch;
mod cache;
mod corpus;
mod divide;
mod encode;
mod error;
mod estimate;
mod fetch_hint;
mod file;
mod learn;
mod pieces;
mod pipeline;
mod preview;
mod progress;
mod reader;
mod record;
mod source;
mod split;
mod standard_input;
mod store;
mod summary;
mod survey;
mod text;
mod tokens;

pub use batch::Batch;
pub use corpus::{Corpus, OpenOptions, TokenizerSource, open_text};
pub use error::DataError;
pub(crate) use error::in_quotes;
pub use estimate::{ASSUMED_BYTES_PER_TOKEN, Estimate};
pub use fetch_hint::{fetch_hint, missing_hint};
pub use preview::Preview;
pub use progress::{OnProgress, Purpose, Reading};
pub use record::RecordError;
pub(crate) use source::is_jsonl;
pub use split::Split;
pub use summary::SourceSummary;
pub use tokens::Tokens;
