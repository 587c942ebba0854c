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
//! tokenizer of it. `watch` is for whoever waits meanwhile.
//!
//! This module knows nothing of models or devices: a batch is two vectors of integers.

pub mod batch;
mod cache;
mod corpus;
mod divide;
mod encode;
mod error;
mod extent;
mod file;
mod learn;
mod origin;
mod pieces;
mod pipeline;
mod preview;
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
mod watch;

pub use batch::Batch;
pub use corpus::{Corpus, open_text};
pub use error::DataError;
pub(crate) use error::in_quotes;
pub use extent::{ASSUMED_BYTES_PER_TOKEN, Extent};
pub use origin::{missing_hint, origin};
pub use preview::Preview;
pub use record::RecordError;
pub(crate) use source::is_jsonl;
pub use split::Split;
pub use summary::SourceSummary;
pub use tokens::Tokens;
pub use watch::{Purpose, Reading, Watch};
