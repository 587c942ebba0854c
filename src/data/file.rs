//! A file of text as bytes: unpacked, without a byte order mark, and not something else than text.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::DataError;
use super::source::read_error;

/// How a file of gzip begins.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// How UTF-8 may begin, which is no part of the text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How many bytes are enough to tell what a file is.
const HEAD_BYTES: usize = 16;

/// How many bytes are read from the disk at once.
const BUFFER_BYTES: usize = 1 << 16;

/// How files begin that are often taken for text, what they are, and what to do with them.
const NOT_TEXT: &[(&[u8], &str, &str)] = &[
    (b"PK\x03\x04", "a zip archive", "unzip it, and name the folder that comes out"),
    (b"%PDF-", "a PDF document", "convert it to text first, for instance with pdftotext"),
    (b"{\\rtf", "an RTF document", "save it as plain text (UTF-8)"),
    (b"\xd0\xcf\x11\xe0", "an old Office document", "save it as plain text (UTF-8)"),
    (b"PAR1", "a Parquet file", "write its texts as JSON Lines, one object a line"),
    (
        b"SQLite format 3\0",
        "an SQLite database",
        "write its texts as JSON Lines, one object a line",
    ),
    (b"\x28\xb5\x2f\xfd", "packed with zstd", "unpack it with `unzstd`, or pack it with gzip"),
    (b"\xfd7zXZ\0", "packed with xz", "unpack it with `unxz`, or pack it with gzip"),
    (b"BZh91AY&SY", "packed with bzip2", "unpack it with `bunzip2`, or pack it with gzip"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "unpack it first"),
    (b"\xff\xfe", "UTF-16", "save it as UTF-8, for instance with `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "UTF-16", "save it as UTF-8, for instance with `iconv -f UTF-16 -t UTF-8`"),
    (b"\x89PNG", "a picture", "name a file of text"),
    (b"\xff\xd8\xff", "a picture", "name a file of text"),
    (b"\x7fELF", "a program", "name a file of text"),
];

/// The extensions of zip archives that are documents.
const OFFICE: &[&str] = &["docx", "odt", "pptx", "odp", "xlsx", "ods", "pages", "epub"];

/// A file that is being read.
pub(super) struct TextBytes {
    bytes: Box<dyn BufRead + Send>,
    is_gzip: bool,
    /// Bytes in front of the text that were left out.
    pub n_skipped: u64,
}

impl TextBytes {
    /// Opens a file, which is unpacked if it is gzip, whatever its name; errors call it `shown`.
    /// With `utf8`, it must not begin like something else than text.
    ///
    /// # Errors
    /// If it cannot be read, or is no text.
    pub(super) fn open(path: &Path, shown: &Path, utf8: bool) -> Result<Self, DataError> {
        let fail = |source| read_error(shown, source);
        let file = File::open(path).map_err(fail)?;
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        let (head, file) = peek(file).map_err(fail)?;
        let is_gzip = head.starts_with(GZIP);
        let name_says_gzip =
            path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        if name_says_gzip && !is_gzip && !head.is_empty() {
            let source = io::Error::new(io::ErrorKind::InvalidData, "it does not begin like one");
            return Err(gzip_error(shown, source));
        }
        let (head, mut bytes): (_, Box<dyn BufRead + Send>) = if is_gzip {
            let unpacked = BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(file));
            let (head, unpacked) = peek(unpacked).map_err(|source| gzip_error(shown, source))?;
            (head, Box::new(unpacked))
        } else {
            (head, Box::new(file))
        };
        let mut n_skipped = 0;
        if utf8 {
            if let Some((what, advice)) = what_instead_of_text(&head, path) {
                return Err(DataError::NotText { path: shown.to_owned(), what, advice });
            }
            if head.starts_with(BYTE_ORDER_MARK) {
                n_skipped = BYTE_ORDER_MARK.len();
                bytes.consume(n_skipped); // all of the head is in the buffer
            }
        }
        Ok(Self { bytes, is_gzip, n_skipped: n_skipped as u64 })
    }

    /// Adds up to `n` bytes to the buffer, fewer only at the end, and returns how many.
    ///
    /// # Errors
    /// If they cannot be read; `shown` is how the error calls the file.
    pub(super) fn read(
        &mut self,
        n: usize,
        buffer: &mut Vec<u8>,
        shown: &Path,
    ) -> Result<usize, DataError> {
        let read = (&mut self.bytes).take(n as u64).read_to_end(buffer);
        read.map_err(|source| self.error(shown, source))
    }

    /// Puts the next line into the emptied buffer, and says whether there was one.
    ///
    /// # Errors
    /// As [`TextBytes::read`].
    pub(super) fn read_line(
        &mut self,
        buffer: &mut Vec<u8>,
        shown: &Path,
    ) -> Result<bool, DataError> {
        buffer.clear();
        let read = self.bytes.read_until(b'\n', buffer);
        Ok(read.map_err(|source| self.error(shown, source))? > 0)
    }

    fn error(&self, shown: &Path, source: io::Error) -> DataError {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        match source.kind() {
            InvalidData | InvalidInput | UnexpectedEof if self.is_gzip => gzip_error(shown, source),
            _ => read_error(shown, source),
        }
    }
}

fn gzip_error(path: &Path, source: io::Error) -> DataError {
    DataError::Gzip { path: path.to_owned(), source }
}

/// The first bytes, and a reader that begins with them.
fn peek(
    mut reader: impl BufRead + Send + 'static,
) -> io::Result<(Vec<u8>, impl BufRead + Send + 'static)> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&mut reader).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head).chain(reader)))
}

/// What a file is that begins like this, and what to do with it; none if it may be text.
fn what_instead_of_text(head: &[u8], path: &Path) -> Option<(&'static str, &'static str)> {
    let found = NOT_TEXT.iter().find(|(magic, ..)| head.starts_with(magic));
    let &(magic, what, advice) = found?;
    let is_document = path.extension().is_some_and(|extension| {
        let extension = extension.to_string_lossy().to_ascii_lowercase();
        OFFICE.contains(&extension.as_str())
    });
    if magic.starts_with(b"PK") && is_document {
        return Some(("an Office document or e-book", "save it as plain text (UTF-8)"));
    }
    Some((what, advice))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// All bytes of a file with this name and content.
    fn read(name: &str, content: &[u8], utf8: bool) -> Result<Vec<u8>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let mut bytes = TextBytes::open(&path, &path, utf8)?;
        let mut all = Vec::new();
        while bytes.read(5, &mut all, &path)? > 0 {}
        Ok(all)
    }

    #[test]
    fn gzip_is_unpacked_whatever_its_name() {
        let text = b"some text, long enough to be more than a head";
        let two = [packed(&text[..1]), packed(&text[1..])].concat();
        for name in ["a.txt", "a.txt.gz"] {
            assert_eq!(read(name, &packed(text), true).unwrap(), text);
            assert_eq!(read(name, &two, false).unwrap(), text, "several members");
        }
        assert_eq!(read("a.gz", b"", true).unwrap(), b"");
        assert_eq!(read("a.gz", &packed(b""), true).unwrap(), b"");
    }

    #[test]
    fn gzip_that_is_not_whole_is_said_to_be() {
        let whole = packed(&b"0123456789abcdef".repeat(9));
        for broken in [&whole[..whole.len() - 3], &whole[..12], b"no gzip at all"] {
            let error = read("a.gz", broken, true).unwrap_err();
            assert!(matches!(error, DataError::Gzip { .. }), "{error}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_text() {
        let marked = b"\xef\xbb\xbfabc";
        assert_eq!(read("a.txt", marked, true).unwrap(), b"abc");
        assert_eq!(read("a.txt", &packed(marked), true).unwrap(), b"abc");
        assert_eq!(read("a.txt", marked, false).unwrap(), marked);
        assert_eq!(read("a.txt", &marked[..2], true).unwrap(), &marked[..2]);
    }

    #[test]
    fn what_is_no_text_is_named_with_a_way_out() {
        let error = |name, content| read(name, content, true).unwrap_err().to_string();
        for (name, content, what, advice) in [
            ("a.docx", &b"PK\x03\x04..."[..], "Office", "plain text"),
            ("a.txt", b"PK\x03\x04...", "zip", "unzip"),
            ("a.pdf", b"%PDF-1.7", "PDF", "pdftotext"),
            ("a.txt", b"\xff\xfea\0b\0", "UTF-16", "UTF-8"),
            ("a.zst", b"\x28\xb5\x2f\xfd..", "zstd", "unzstd"),
        ] {
            let error = error(name, content);
            assert!(error.contains(what) && error.contains(advice), "{error}");
            assert_eq!(read(name, content, false).unwrap(), content, "any bytes are bytes");
        }
        assert!(error("a.gz", &packed(b"%PDF-1.7")).contains("PDF"));
    }
}
