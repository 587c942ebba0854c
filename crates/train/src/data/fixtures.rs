//! Texts and ids for the tests of this folder.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::chunk::Needs;
use super::reader::Reader;
use super::source::TextSource;
use super::tokens::Tokens;
use crate::config::DataConfig;

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

pub fn source(path: &Path) -> TextSource {
    TextSource::find(&DataConfig { path: path.to_owned(), ..DataConfig::default() }).unwrap()
}

/// Reads a text in chunks of about this size.
pub fn reader(source: &TextSource, needs: Needs, chunk_bytes: usize) -> Reader<'_> {
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
