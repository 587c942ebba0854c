//! The text on disk: one file, or a folder of them one after another, read in pieces.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::DataError;

/// How many bytes are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The files of a corpus in their order.
#[derive(Debug)]
pub(super) struct Source {
    files: Vec<PathBuf>,
    /// At least 4, the longest character.
    chunk_bytes: usize,
}

impl Source {
    /// Finds the text: the file itself, or every file of the folder and its subfolders, by path.
    ///
    /// Hidden files and folders are left out. Links are followed, but no folder is entered twice.
    ///
    /// # Errors
    /// If there is nothing there, nothing in there, or something that cannot be listed.
    pub(super) fn find(path: &Path) -> Result<Self, DataError> {
        let metadata = fs::metadata(path).map_err(|source| read_error(path, source))?;
        let mut files = Vec::new();
        if metadata.is_dir() {
            list(path, &mut BTreeSet::new(), &mut files)?;
        } else if metadata.is_file() {
            files.push(path.to_owned());
        } else {
            return Err(DataError::NotAFile {
                path: path.to_owned(),
            });
        }
        if files.is_empty() {
            return Err(DataError::NoFiles {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            files,
            chunk_bytes: CHUNK_BYTES,
        })
    }

    /// What the files take on the disk together; one that cannot be looked at counts as nothing.
    pub(super) fn bytes_on_disk(&self) -> u64 {
        let bytes = |path| fs::metadata(path).map_or(0, |metadata| metadata.len());
        self.files.iter().map(bytes).sum()
    }

    /// Hands the text over piece by piece, with a line break between files where the first of them
    /// does not end with one. With `utf8`, every piece is whole characters.
    ///
    /// # Errors
    /// If a file cannot be read, or with `utf8` is not UTF-8; and what `each` returns.
    pub(super) fn for_each_chunk(
        &self,
        utf8: bool,
        each: impl FnMut(&[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        self.try_for_each_chunk(utf8, each)
    }

    /// As [`Source::for_each_chunk`], for those who may end it early with an error of their own.
    pub(super) fn try_for_each_chunk<E: From<DataError>>(
        &self,
        utf8: bool,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut last_byte = b'\n';
        for path in &self.files {
            let mut line_is_open = last_byte != b'\n';
            self.read_file(path, utf8, |chunk| {
                if std::mem::take(&mut line_is_open) {
                    each(b"\n")?;
                }
                last_byte = *chunk.last().expect("chunks are not empty");
                each(chunk)
            })?;
        }
        Ok(())
    }

    fn read_file<E: From<DataError>>(
        &self,
        path: &Path,
        utf8: bool,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut file = File::open(path).map_err(|source| read_error(path, source))?;
        let mut buffer = Vec::with_capacity(self.chunk_bytes);
        let mut offset = 0; // of the buffer's first byte in the file
        loop {
            let n_missing = self.chunk_bytes - buffer.len();
            let n_read = (&mut file)
                .take(n_missing as u64)
                .read_to_end(&mut buffer)
                .map_err(|source| read_error(path, source))?;
            let n_ready = if utf8 {
                whole_characters(&buffer)
            } else {
                Ok(buffer.len())
            };
            let not_utf8 = |at: usize| DataError::NotUtf8 {
                path: path.to_owned(),
                offset: offset + at as u64,
            };
            let n_ready = n_ready.map_err(not_utf8)?;
            if n_ready > 0 {
                each(&buffer[..n_ready])?;
            }
            if n_read < n_missing {
                // The file ends here; so must its last character.
                return if n_ready == buffer.len() {
                    Ok(())
                } else {
                    Err(not_utf8(n_ready).into())
                };
            }
            buffer.drain(..n_ready);
            offset += n_ready as u64;
        }
    }
}

/// How many bytes at the front are whole characters, the rest being the beginning of one; or where
/// the bytes are no text.
fn whole_characters(bytes: &[u8]) -> Result<usize, usize> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(bytes.len()),
        Err(error) if error.error_len().is_none() => Ok(error.valid_up_to()),
        Err(error) => Err(error.valid_up_to()),
    }
}

/// Adds the files of a folder, in the order of their names; `seen` holds the folders that were
/// entered, without links in their paths.
fn list(
    folder: &Path,
    seen: &mut BTreeSet<PathBuf>,
    files: &mut Vec<PathBuf>,
) -> Result<(), DataError> {
    let fail = |source| read_error(folder, source);
    if !seen.insert(folder.canonicalize().map_err(fail)?) {
        return Ok(());
    }
    let entries = fs::read_dir(folder).map_err(fail)?;
    let mut names = entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(fail)?;
    names.sort();
    for name in names
        .into_iter()
        .filter(|name| !name.as_encoded_bytes().starts_with(b"."))
    {
        let path = folder.join(name);
        let metadata = fs::metadata(&path).map_err(|source| read_error(&path, source))?;
        if metadata.is_dir() {
            list(&path, seen, files)?;
        } else if metadata.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn read_error(path: &Path, source: std::io::Error) -> DataError {
    DataError::Read {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A folder with these files, and the text that a source makes of it.
    fn text_of(
        files: &[(&str, &[u8])],
        chunk_bytes: usize,
        utf8: bool,
    ) -> Result<Vec<u8>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let source = Source {
            chunk_bytes,
            ..Source::find(folder.path())?
        };
        collect(&source, utf8)
    }

    fn collect(source: &Source, utf8: bool) -> Result<Vec<u8>, DataError> {
        let mut text = Vec::new();
        source.for_each_chunk(utf8, |chunk| {
            assert!(!chunk.is_empty() && chunk.len() <= source.chunk_bytes);
            assert!(!utf8 || std::str::from_utf8(chunk).is_ok());
            text.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(text)
    }

    #[test]
    fn a_folder_is_its_files_in_order() {
        let files: [(&str, &[u8]); 7] = [
            ("b.txt", b"b, without an end of line"),
            ("c.txt", b""),
            ("a/z.txt", b"a/z\n"),
            ("a/b/c.md", b"a/b/c\n\n"),
            (".hidden", b"no"),
            (".git/x", b"no"),
            ("d.txt", b"d"),
        ];
        let text = text_of(&files, 8, true).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "a/b/c\n\na/z\nb, without an end of line\nd");
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".hidden"), "x").unwrap();
        assert!(matches!(
            Source::find(folder.path()),
            Err(DataError::NoFiles { .. })
        ));
        let missing = folder.path().join("missing");
        assert!(matches!(
            Source::find(&missing),
            Err(DataError::Read { .. })
        ));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_but_not_in_circles() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/x.txt"), "x\n").unwrap();
        std::os::unix::fs::symlink("..", folder.path().join("a/loop")).unwrap();
        std::os::unix::fs::symlink("a/x.txt", folder.path().join("y.txt")).unwrap();
        let source = Source::find(folder.path()).unwrap();
        assert_eq!(collect(&source, true).unwrap(), b"x\nx\n");
        assert!(matches!(
            Source::find(Path::new("/dev/null")),
            Err(DataError::NotAFile { .. })
        ));
    }

    #[test]
    fn the_place_that_is_not_utf8_is_named() {
        for (content, at) in [
            (&b"\xff"[..], 0),
            (b"0123456789\xc3(", 10),
            (b"01234567\xe2\x82", 8),
            (b"0\xf0", 1),
        ] {
            for chunk_bytes in 4..12 {
                match text_of(&[("a.txt", content)], chunk_bytes, true) {
                    Err(DataError::NotUtf8 { path, offset }) => {
                        assert_eq!(offset, at);
                        assert!(path.ends_with("a.txt"));
                    }
                    other => panic!("{other:?}"),
                }
                assert_eq!(
                    text_of(&[("a.txt", content)], chunk_bytes, false).unwrap(),
                    content
                );
            }
        }
    }

    proptest! {
        #[test]
        fn chunks_never_cut_a_character(text in any::<String>(), chunk_bytes in 4_usize..20) {
            let content = text_of(&[("a.txt", text.as_bytes())], chunk_bytes, true).unwrap();
            prop_assert_eq!(content, text.as_bytes());
        }
    }
}
