//! One file of a text, unpacked: its text piece by piece, or its records.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::DataError;
use super::error::PARQUET;
use super::parquet::{self, Parquet};
use super::record::{BYTE_ORDER_MARK, begins_with_list, text_of, too_long};

/// The magic number of gzip.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// Enough bytes to recognize a file type.
const HEAD_BYTES: usize = 16;

pub(super) const BUFFER_BYTES: usize = 1 << 16;

/// Magic numbers of files that are often mistaken for text, with the name of the file type.
const NOT_TEXT: &[(&[u8], &str)] = &[
    (b"PK\x03\x04", "a zip archive, an Office document or an e-book"),
    (b"%PDF-", "a PDF document"),
    (b"{\\rtf", "an RTF document"),
    (b"\xd0\xcf\x11\xe0", "an old Office document"),
    (parquet::MAGIC, PARQUET),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd"),
    (b"\xfd7zXZ\0", "packed with xz"),
    (b"BZh91AY&SY", "packed with bzip2"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"\x7fELF", "a program"),
];

/// An open file of a text: unpacked, without its byte order mark.
pub(super) struct OpenFile {
    bytes: Box<dyn BufRead + Send>,
    is_gzip: bool,
    utf8: bool,
    /// The path that errors show.
    shown: PathBuf,
    /// The offset of the next byte of text, in the unpacked file.
    offset: u64,
    /// The first bytes of an incomplete character; at most three.
    partial: Vec<u8>,
    /// The current line of a JSON Lines file, and its number; or if the file is one list, the current item and its number.
    line: Vec<u8>,
    line_number: u64,
    is_list: bool,
    /// The rows of a Parquet file, which has no text.
    rows: Option<Box<Parquet>>,
    /// The text of the current record, and the number of its bytes read so far.
    record: String,
    n_read: usize,
}

/// The part of a text that [`OpenFile::read_record`] has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordPart {
    /// The record continues.
    Beginning,
    /// The rest of the record, or all of it.
    End,
    /// Nothing: there are no more records.
    None,
}

impl OpenFile {
    /// Opens a file, unpacking gzip regardless of its name. With `utf8`, known binary formats are rejected.
    pub(super) fn open(path: &Path, shown: &Path, utf8: bool) -> Result<Self, DataError> {
        let fail = |source| DataError::read(shown, source);
        let file = File::open(path).map_err(fail)?;
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        let (mut head, file) = peek(file).map_err(fail)?;
        let is_gzip = head.starts_with(GZIP);
        let gzip_error = |source| DataError::Gzip { path: shown.to_owned(), source };
        let name_says_gzip = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        if name_says_gzip && !is_gzip && !head.is_empty() {
            let source = io::Error::new(io::ErrorKind::InvalidData, "it does not begin like one");
            return Err(gzip_error(source));
        }
        let mut bytes: Box<dyn BufRead + Send> = Box::new(file);
        if is_gzip {
            let unpacked = BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(bytes));
            let (unpacked_head, unpacked) = peek(unpacked).map_err(gzip_error)?;
            (head, bytes) = (unpacked_head, Box::new(unpacked));
        }
        let (mut offset, mut is_list, mut rows) = (0, false, None);
        let name_says_rows = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("parquet"));
        if utf8 && !is_gzip && (name_says_rows || head.starts_with(parquet::MAGIC)) {
            let opened = File::open(path).map_err(fail)?;
            rows = Some(Box::new(Parquet::open(opened).map_err(|problem| DataError::parquet(shown, problem))?));
        } else if utf8 {
            if let Some((_, what)) = NOT_TEXT.iter().find(|(magic, _)| head.starts_with(magic)) {
                return Err(DataError::NotText { path: shown.to_owned(), what });
            }
            if head.starts_with(BYTE_ORDER_MARK) {
                bytes.consume(BYTE_ORDER_MARK.len()); // the whole head is in the buffer
                offset = BYTE_ORDER_MARK.len() as u64;
            }
            is_list = begins_with_list(&head);
        }
        let (shown, partial, line) = (shown.to_owned(), Vec::new(), Vec::new());
        let (line_number, record, n_read) = (0, String::new(), 0);
        Ok(Self { bytes, is_gzip, utf8, shown, offset, partial, line, line_number, is_list, rows, record, n_read })
    }

    /// Appends about `n` bytes, at least 4, to `text`; returns whether there may be more.
    pub(super) fn read_text(&mut self, n: usize, text: &mut Vec<u8>) -> Result<bool, DataError> {
        if self.holds_rows() {
            return Err(DataError::NotText { path: self.shown.clone(), what: PARQUET });
        }
        let start = text.len();
        text.append(&mut self.partial);
        let n_missing = n.max(4) - (text.len() - start);
        let read = (&mut self.bytes).take(n_missing as u64).read_to_end(text);
        let is_end = read.map_err(|source| self.error(source))? < n_missing;
        if self.utf8 {
            let n_whole = match std::str::from_utf8(&text[start..]) {
                Ok(text) => text.len(),
                Err(error) if error.error_len().is_none() && !is_end => error.valid_up_to(),
                Err(error) => {
                    let offset = self.offset + error.valid_up_to() as u64;
                    return Err(DataError::NotUtf8 { path: self.shown.clone(), offset });
                }
            };
            self.partial = text.split_off(start + n_whole);
        }
        self.offset += (text.len() - start) as u64;
        Ok(!is_end)
    }

    /// Appends about `n` bytes of the text of a record: of the current one, or if that was read, of the next. A record
    /// may have up to `max_bytes`; a packed file of a few megabytes can hold one of many gigabytes.
    pub(super) fn read_record(
        &mut self,
        field: &str,
        max_bytes: usize,
        n: usize,
        text: &mut Vec<u8>,
    ) -> Result<RecordPart, DataError> {
        if self.n_read == self.record.len() {
            (self.record, self.n_read) = (String::new(), 0); // freed before the next one is parsed
            let line = self.next_record(max_bytes, &|name| name == field)?;
            let Some(line) = line else { return Ok(RecordPart::None) };
            let record = text_of(line, field);
            self.record = record.map_err(|problem| self.in_line(problem))?;
        }
        let end = self.record.ceil_char_boundary(self.n_read + n);
        text.extend_from_slice(&self.record.as_bytes()[self.n_read..end]);
        self.n_read = end;
        Ok(if end == self.record.len() { RecordPart::End } else { RecordPart::Beginning })
    }

    /// The next line that is not blank, the next item if the file is one list, or the next row of a Parquet file, of at
    /// most `max_bytes`. Of a row, only the fields that `wants` says.
    pub(super) fn next_record(
        &mut self,
        max_bytes: usize,
        wants: &dyn Fn(&str) -> bool,
    ) -> Result<Option<&[u8]>, DataError> {
        if self.is_list {
            return self.next_item(max_bytes);
        }
        if self.holds_rows() {
            return self.next_row(max_bytes, wants);
        }
        loop {
            self.line.clear();
            self.line_number += 1;
            let read = (&mut self.bytes).take(max_bytes as u64 + 1).read_until(b'\n', &mut self.line);
            match read.map_err(|source| self.error(source))? {
                0 => return Ok(None),
                n if n > max_bytes && !self.line.ends_with(b"\n") => return Err(self.in_line(too_long(max_bytes))),
                _ if self.line.trim_ascii().is_empty() => {}
                _ => return Ok(Some(&self.line)),
            }
        }
    }

    fn next_row(&mut self, max_bytes: usize, wants: &dyn Fn(&str) -> bool) -> Result<Option<&[u8]>, DataError> {
        self.line_number += 1;
        let Some(rows) = &mut self.rows else { return Ok(None) };
        let row = rows.next(max_bytes, wants);
        row.map_err(|problem| DataError::record(&self.shown, "row", self.line_number, problem))
    }

    /// The next item of the list that the file is.
    fn next_item(&mut self, max_bytes: usize) -> Result<Option<&[u8]>, DataError> {
        if self.line_number == 0 {
            self.bytes.skip_until(b'[').map_err(|source| self.error(source))?;
        }
        self.line.clear();
        self.line_number += 1;
        let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
        loop {
            let buffer = match self.bytes.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.error(error)),
            };
            let is_end = |byte: &u8| {
                match byte {
                    _ if is_escaped => is_escaped = false,
                    b'\\' if is_text => is_escaped = true,
                    b'"' => is_text = !is_text,
                    _ if is_text => {}
                    b',' | b']' if depth == 0 => return true,
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                false
            };
            let end = buffer.iter().position(is_end);
            let n = end.unwrap_or(buffer.len());
            self.line.extend_from_slice(&buffer[..n]);
            let is_last = end.is_some_and(|end| buffer[end] == b']');
            let (is_cut, is_followed) = (buffer.is_empty(), is_last && !buffer[n + 1..].trim_ascii().is_empty());
            self.bytes.consume(if end.is_some() && !is_last { n + 1 } else { n });
            let hint = "the file is one list of records, [{...}, {...}]";
            match self.line.len() {
                n if n > max_bytes => return Err(self.in_line(too_long(max_bytes))),
                _ if is_cut => {
                    return Err(self.in_line(format!("ends before its list does\n  hint: {hint}; was it cut off?")));
                }
                _ if is_followed => {
                    return Err(self.in_line(format!("is followed by more than its list\n  hint: {hint}")));
                }
                _ if is_last && self.line.trim_ascii().is_empty() => return Ok(None),
                _ if end.is_some() => return Ok(Some(&self.line)),
                _ => {}
            }
        }
    }

    /// Whether it is a Parquet file.
    pub(super) fn holds_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// The bytes that follow, and the path that errors show.
    pub(super) fn into_bytes(self) -> (Box<dyn BufRead + Send>, PathBuf) {
        (self.bytes, self.shown)
    }

    pub(super) fn in_line(&self, problem: String) -> DataError {
        let place = match self.holds_rows() {
            true => "row",
            false if self.is_list => "record",
            false => "line",
        };
        DataError::record(&self.shown, place, self.line_number, problem)
    }

    fn error(&self, source: io::Error) -> DataError {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        let path = self.shown.clone();
        match source.kind() {
            InvalidData | InvalidInput | UnexpectedEof if self.is_gzip => DataError::Gzip { path, source },
            _ => DataError::Read { path, source },
        }
    }
}

/// The first bytes of a reader, and a reader that still begins with them.
fn peek(mut reader: impl BufRead + Send + 'static) -> io::Result<(Vec<u8>, impl BufRead + Send + 'static)> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&mut reader).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head).chain(reader)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::super::fixtures::folder;
    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn read(name: &str, content: &[u8], utf8: bool) -> Result<Vec<u8>, DataError> {
        let folder = folder([(name, content)]);
        let path = folder.path().join(name);
        let mut file = OpenFile::open(&path, &path, utf8)?;
        let mut all = Vec::new();
        while file.read_text(5, &mut all)? {}
        Ok(all)
    }

    #[test]
    fn gzip_is_unpacked_and_byte_order_mark_removed() {
        let text = &b"some text, long enough to be more than a head"[..];
        let members = [gzip(&text[..1]), gzip(&text[1..])].concat();
        let marked = &b"\xef\xbb\xbfabc"[..];
        for (name, content, utf8, expected) in [
            ("a.txt", gzip(text), true, text),
            ("a.txt.gz", gzip(text), true, text),
            ("a.txt", members.clone(), false, text),
            ("a.txt.gz", members, false, text),
            ("a.gz", Vec::new(), true, b""),
            ("a.gz", gzip(b""), true, b""),
            ("a.txt", marked.to_vec(), true, b"abc"),
            ("a.txt", gzip(marked), true, b"abc"),
            ("a.txt", marked.to_vec(), false, marked),
        ] {
            assert_eq!(read(name, &content, utf8).unwrap(), expected, "{name}");
        }
        let whole = gzip(&b"0123456789abcdef".repeat(9));
        for broken in [&whole[..whole.len() - 3], &whole[..12], b"no gzip at all"] {
            let error = read("a.gz", broken, true).unwrap_err();
            assert!(matches!(error, DataError::Gzip { .. }), "{error}");
        }
    }

    #[test]
    fn file_types_other_than_text_are_named() {
        for (name, content, what) in [
            ("a.docx", &b"PK\x03\x04..."[..], "an Office document"),
            ("a.gz", &gzip(b"%PDF-1.7"), "a PDF document"),
            ("a.txt", b"\xff\xfea\0b\0", "UTF-16"),
        ] {
            let error = read(name, content, true).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
            assert!(read(name, content, false).is_ok(), "any bytes are bytes");
        }
    }
}
