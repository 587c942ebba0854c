//! The table of the files in the cache.

use super::table::table;
use crate::data::{CachedFile, CachedKind};
use crate::format::{or_dash, rough_duration, size};

/// A line for each file: what it was made for, its kind, its size and how long ago it was used.
pub fn cache_table(files: &[CachedFile], now_unix_s: f64, n_columns: usize) -> String {
    let row = |file: &CachedFile| {
        let kind = match file.kind {
            CachedKind::Tokens => "tokens",
            CachedKind::Tokenizer => "tokenizer",
            CachedKind::Text => "standard input",
            CachedKind::Temporary => "temporary",
        };
        let ago = rough_duration(now_unix_s - file.used_unix_s as f64);
        [or_dash(file.made_for.clone()), kind.to_owned(), size(file.bytes), ago]
    };
    table("FOR | KIND | >SIZE | >USED AGO", &files.iter().map(row).collect::<Vec<_>>(), n_columns)
}
