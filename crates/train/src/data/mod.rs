//! From text on disk to batches of token ids.
//!
//! [`Corpus::open`] finds the files of texts (`source`), reads them in chunks (`reader`), scans them (`scan`), and
//! encodes both splits of each (`split`, `encode`) into a token file (`texts`, `tokens`, `cache`); [`batch`] cuts rows from it.
//! Nothing here knows about models or devices: a batch is two vectors of integers.

pub mod batch;
mod cache;
mod chunk;
mod config;
pub mod conversations;
mod corpus;
mod encode;
mod error;
mod file;
#[cfg(test)]
mod fixtures;
mod format_check;
mod gzip;
mod parquet;
mod pattern;
mod reader;
mod record;
mod rows;
mod scan;
mod separator;
mod source;
mod split;
mod stdin;
mod texts;
mod tokens;
mod train_tokenizer;

pub use batch::{BatchSource, Draw};
pub use cache::{CachedFile, CachedKind, Cleared, clear_cache, list_cache};
pub use config::{DataConfig, SourceConfig, TextFormat, ValSplit};
pub use conversations::{Examples, Records, SplitRecords};
pub use corpus::{Corpus, OpenOptions, SourceSummary, open_text};
pub use error::DataError;
pub use error::fetch_hint;
pub(crate) use error::{LEAVE_OUT, about_left_out};
pub use error::{in_quotes, missing_hint};
pub use format_check::{check_format, holds_records};
pub use gzip::gzip_bits_per_byte;
pub use reader::{OnProgress, Purpose, Reading};
pub use scan::{ASSUMED_BYTES_PER_TOKEN, Estimate, Preview};
pub use source::is_jsonl;
pub use split::Split;
pub(crate) use texts::hexadecimal;
pub use tinderbox_model::Batch;
pub use tokens::Tokens;
