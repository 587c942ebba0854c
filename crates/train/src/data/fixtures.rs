//! Texts and ids for the tests of this folder.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::reader::{Needs, Reader};
use super::source::Source;
use super::tokens::Tokens;
use crate::config::SourceConfig;

/// A folder with these files.
pub fn folder<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

pub fn source(path: &Path) -> Source {
    Source::find(&SourceConfig { path: path.to_owned(), ..SourceConfig::default() }).unwrap()
}

/// Reads a text in chunks of about this size.
pub fn reader(source: &Source, needs: Needs, chunk_bytes: usize) -> Reader<'_> {
    let mut reader = Reader::new(source, needs);
    reader.chunk_bytes = chunk_bytes;
    reader
}

/// A line of a JSON Lines file.
pub fn record(text: &str) -> String {
    serde_json::json!({ "text": text }).to_string() + "\n"
}

/// All ids of a text.
pub fn ids(tokens: &Tokens) -> Vec<u32> {
    let mut ids = vec![-1; tokens.len()];
    tokens.read(0, &mut ids);
    ids.into_iter().map(i32::cast_unsigned).collect()
}
