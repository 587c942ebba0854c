//! The beginning of a text: enough to say what it is like, however long it is.

use std::path::Path;

use super::DataError;
use super::source::Source;

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

/// Why reading ended before the end of the text.
enum Stop {
    Enough,
    Failed(DataError),
}

impl From<DataError> for Stop {
    fn from(error: DataError) -> Self {
        Self::Failed(error)
    }
}

impl Preview {
    /// Reads a text as training would, but no more than `max_bytes` of it, and as bytes: whether they
    /// are UTF-8 is for the caller to see.
    ///
    /// # Errors
    /// If the text cannot be read or is empty.
    pub fn read(path: &Path, max_bytes: usize) -> Result<Self, DataError> {
        let source = Source::find(path)?;
        let mut bytes = Vec::new();
        let read = source.try_for_each_chunk(false, |chunk| {
            let n_missing = max_bytes - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(n_missing)]);
            if chunk.len() > n_missing {
                Err(Stop::Enough)
            } else {
                Ok(())
            }
        });
        let is_whole = match read {
            Ok(()) => true,
            Err(Stop::Enough) => false,
            Err(Stop::Failed(error)) => return Err(error),
        };
        if bytes.is_empty() {
            return Err(DataError::Empty {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            bytes,
            is_whole,
            bytes_on_disk: source.bytes_on_disk(),
        })
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
            let preview = Preview::read(folder.path(), max_bytes).unwrap();
            assert_eq!(preview.bytes, expected.as_bytes());
            assert_eq!(preview.is_whole, is_whole);
            assert_eq!(preview.bytes_on_disk, 6);
        }
    }

    #[test]
    fn there_is_no_preview_of_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "").unwrap();
        let read = |name: &str| Preview::read(&folder.path().join(name), 10);
        assert!(matches!(read("a.txt"), Err(DataError::Empty { .. })));
        assert!(matches!(read("b.txt"), Err(DataError::Read { .. })));
    }
}
