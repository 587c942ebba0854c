//! The beginning of a text: enough to say what it is like, however long it is.

use std::path::Path;

use super::DataError;
use super::reader::{Needs, Reader, Unit};
use super::source::Source;
use crate::config::DataConfig;

/// The first part of what `[data] path` names.
#[derive(Debug, Clone)]
pub struct Preview {
    /// The text, or its beginning. A character may be cut off at the end of a beginning.
    pub bytes: Vec<u8>,
    /// Whether that is all of it.
    pub is_whole: bool,
    /// What the text's files take on the disk, in bytes.
    pub bytes_on_disk: u64,
}

impl Preview {
    /// Reads a text as training would, but no more than `max_bytes` of it. With `utf8` it must be text,
    /// otherwise any bytes will do.
    ///
    /// # Errors
    /// If the text cannot be read, is empty, or with `utf8` is not UTF-8.
    pub fn read(path: &Path, max_bytes: usize, utf8: bool) -> Result<Self, DataError> {
        let config = DataConfig { path: path.to_owned(), ..DataConfig::default() };
        let source = Source::find(&config.all_sources()[0])?;
        let needs = Needs { utf8, documents: false, unit: Unit::Byte };
        let mut reader = Reader::new(&source, needs);
        let mut bytes = Vec::new();
        while bytes.len() <= max_bytes
            && let Some(chunk) = reader.next()?
        {
            bytes.extend_from_slice(&chunk.text);
        }
        let is_whole = bytes.len() <= max_bytes;
        bytes.truncate(max_bytes);
        if bytes.is_empty() {
            return Err(DataError::Empty { path: path.to_owned() });
        }
        Ok(Self { bytes, is_whole, bytes_on_disk: source.bytes_on_disk() })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_preview_is_the_beginning_of_what_training_reads() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "one").unwrap();
        fs::write(folder.path().join("b.txt"), "two").unwrap();
        for (max_bytes, expected, is_whole) in [
            (100, "one\ntwo", true),
            (7, "one\ntwo", true),
            (6, "one\ntw", false),
            (3, "one", false),
        ] {
            let preview = Preview::read(folder.path(), max_bytes, true).unwrap();
            assert_eq!(preview.bytes, expected.as_bytes());
            assert_eq!(preview.is_whole, is_whole);
            assert_eq!(preview.bytes_on_disk, 6);
        }
    }

    #[test]
    fn there_is_no_preview_of_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "").unwrap();
        let read = |name: &str| Preview::read(&folder.path().join(name), 10, true);
        assert!(matches!(read("a.txt"), Err(DataError::Empty { .. })));
        assert!(matches!(read("b.txt"), Err(DataError::Missing { .. })));
    }
}
