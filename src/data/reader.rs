//! A text from beginning to end, in chunks of bounded length that know where documents end.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;

use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use sha2::{Digest, Sha256};

use super::DataError;
use super::error::RecordError;
use super::source::{Source, TextBytes, TextFile};
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// How far a text has been read for one of its purposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading<'a> {
    /// The text, as the config names it.
    pub path: &'a Path,
    /// What it is read for.
    pub purpose: Purpose,
    /// Bytes of text read so far.
    pub bytes: u64,
    /// Bytes of text in all, where known.
    pub of: Option<u64>,
}

/// What a text is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Its hash, length and alphabet.
    Scan,
    /// The words that merges are learned from.
    CountWords,
    /// The merges; nothing more is reported until they are found.
    FindMerges,
    /// Its tokens.
    Encode,
}

/// Called often while texts are read. `Break` stops the reading, and nothing half-written is left.
pub type OnProgress<'a> = &'a (dyn Fn(&Reading<'_>) -> ControlFlow<()> + Sync);

/// The [`OnProgress`] of callers that want no reports.
pub(super) fn ignore(_: &Reading<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub(super) fn report(on_progress: OnProgress<'_>, reading: &Reading<'_>) -> Result<(), DataError> {
    match on_progress(reading) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(DataError::Stopped),
    }
}

/// What a tokenizer needs of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Needs {
    /// Whether the text must be UTF-8.
    pub utf8: bool,
    /// Whether documents are told apart. Otherwise they follow one another, each on a new line.
    pub documents: bool,
    /// The unit in which the text is split.
    pub unit: Unit,
}

/// The unit in which a text is measured and split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Bytes, each of which is a token.
    Byte,
    /// Characters, each of which is a token.
    Character,
    /// Bytes, with tokens of any length: the number of tokens is unknown.
    Piece,
}

impl Needs {
    pub(super) const BYTES: Self = Self { utf8: false, documents: false, unit: Unit::Byte };
    pub(super) const CHARACTERS: Self = Self { utf8: true, documents: false, unit: Unit::Character };
    pub(super) const PIECES: Self = Self { utf8: true, documents: true, unit: Unit::Piece };

    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        let documents = tokenizer.end_of_text().is_some();
        Self { documents, ..Self::of_kind(tokenizer.kind()) }
    }

    pub(super) fn of_kind(kind: TokenizerKind) -> Self {
        match kind {
            TokenizerKind::Byte => Self::BYTES,
            TokenizerKind::Char => Self::CHARACTERS,
            TokenizerKind::Bpe | TokenizerKind::File => Self::PIECES,
        }
    }
}

/// A part of a text. Whole characters, if the text is UTF-8.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    pub text: Vec<u8>,
    /// Where documents end in the text, in ascending order; 0 ends one that the chunk before holds.
    pub ends: Vec<usize>,
}

impl Chunk {
    /// Stands for the end of a document in a hash: a byte that is in no UTF-8.
    const HASHED_END: [u8; 1] = [0xff];

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.ends.is_empty()
    }

    /// The pieces of text between the ends, and whether a document ends behind each.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ends = self.ends.iter().map(|&end| (end, true));
        let last = (self.text.len(), false);
        let bounds = starts.zip(ends.chain(std::iter::once(last)));
        let pieces = bounds.map(|(start, (end, is_end))| (&self.text[start..end], is_end));
        pieces.filter(|(text, is_end)| *is_end || !text.is_empty())
    }

    /// Takes off everything behind `at`. A document that ends there ends in the first part.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let n_ends = self.ends.partition_point(|&end| end <= at);
        let ends = self.ends.split_off(n_ends);
        Self { text: self.text.split_off(at), ends: ends.into_iter().map(|end| end - at).collect() }
    }

    pub(super) fn append(&mut self, next: &Self) {
        let n = self.text.len();
        self.text.extend_from_slice(&next.text);
        self.ends.extend(next.ends.iter().map(|end| n + end));
    }

    /// Adds the text, and where its documents end, to a hash.
    pub(super) fn hash_into(&self, hash: &mut Sha256) {
        for (text, is_end) in self.pieces() {
            hash.update(text);
            if is_end {
                hash.update(Self::HASHED_END);
            }
        }
    }
}

/// Reads a text from beginning to end.
pub(super) struct Reader<'a> {
    source: &'a Source,
    needs: Needs,
    /// The approximate size of a chunk; at least 4, the longest character. Several for each core are in memory.
    pub chunk_bytes: usize,
    files: std::slice::Iter<'a, TextFile>,
    open: Option<OpenFile>,
    /// Whether the text read so far ends in the middle of a line.
    line_is_open: bool,
    /// Whether any text of the current document was read.
    document_began: bool,
    on_progress: OnProgress<'a>,
    reading: Reading<'a>,
}

struct OpenFile {
    is_jsonl: bool,
    bytes: TextBytes,
    /// Of the next byte to be read, in the unpacked file.
    offset: u64,
    /// The beginning of a character, which the next bytes will end; at most three bytes.
    partial: Vec<u8>,
    /// The current line of a JSON Lines file, and its number.
    line: Vec<u8>,
    line_number: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a Source, needs: Needs) -> Self {
        Self {
            source,
            needs,
            chunk_bytes: 1 << 18,
            files: source.files.iter(),
            open: None,
            line_is_open: false,
            document_began: false,
            on_progress: &ignore,
            reading: Reading { path: &source.path, purpose: Purpose::Scan, bytes: 0, of: None },
        }
    }

    /// Reports before each chunk.
    pub(super) fn with_progress(self, on_progress: OnProgress<'a>, purpose: Purpose, of: Option<u64>) -> Self {
        Self { on_progress, reading: Reading { purpose, of, ..self.reading }, ..self }
    }

    /// The path that errors show.
    pub(super) fn path(&self) -> &'a Path {
        &self.source.path
    }

    /// The next chunk; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, DataError> {
        report(self.on_progress, &self.reading)?;
        let mut chunk = Chunk::default();
        while chunk.text.len() < self.chunk_bytes {
            let mut file = match self.open.take() {
                Some(file) => file,
                None => match self.files.next() {
                    Some(file) => self.open(file)?,
                    None => break,
                },
            };
            let has_more = if file.is_jsonl {
                self.add_record(&mut file, &mut chunk)?
            } else {
                self.add_text(&mut file, &mut chunk)?
            };
            self.open = has_more.then_some(file);
        }
        self.reading.bytes += chunk.text.len() as u64;
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }

    fn open(&self, file: &TextFile) -> Result<OpenFile, DataError> {
        let bytes = self.source.open(file, self.needs.utf8 || file.is_jsonl)?;
        Ok(OpenFile {
            is_jsonl: file.is_jsonl,
            offset: bytes.n_skipped,
            bytes,
            partial: Vec::new(),
            line: Vec::new(),
            line_number: 0,
        })
    }

    /// Adds the next bytes of a file of text, and says whether there may be more.
    fn add_text(&mut self, file: &mut OpenFile, chunk: &mut Chunk) -> Result<bool, DataError> {
        let start = chunk.text.len();
        let n_wanted = (self.chunk_bytes - start).max(4);
        chunk.text.append(&mut file.partial);
        let n_missing = n_wanted - (chunk.text.len() - start);
        let is_end = file.bytes.read(n_missing, &mut chunk.text)? < n_missing;
        if self.needs.utf8 {
            let n_whole = match std::str::from_utf8(&chunk.text[start..]) {
                Ok(text) => text.len(),
                Err(error) if error.error_len().is_none() && !is_end => error.valid_up_to(),
                Err(error) => {
                    let offset = file.offset + error.valid_up_to() as u64;
                    return Err(DataError::NotUtf8 { path: file.bytes.shown.clone(), offset });
                }
            };
            file.partial = chunk.text.split_off(start + n_whole);
        }
        file.offset += (chunk.text.len() - start) as u64;
        self.text_added(chunk, start);
        if is_end {
            self.end_document(chunk);
        }
        Ok(!is_end)
    }

    /// Adds the text of the next record, and says whether there may be more.
    fn add_record(&mut self, file: &mut OpenFile, chunk: &mut Chunk) -> Result<bool, DataError> {
        if !file.bytes.read_line(&mut file.line)? {
            return Ok(false);
        }
        file.line_number += 1;
        if file.line.trim_ascii().is_empty() {
            return Ok(true);
        }
        let text = record_text(&file.line, &self.source.text_field);
        let text = text.map_err(|source| DataError::Record {
            path: file.bytes.shown.clone(),
            line: file.line_number,
            source,
        })?;
        let start = chunk.text.len();
        chunk.text.extend_from_slice(text.as_bytes());
        self.text_added(chunk, start);
        self.end_document(chunk);
        Ok(true)
    }

    /// Puts a line break before the text that was added from `start` on, if a document that is not told apart
    /// ends in the middle of a line there.
    fn text_added(&mut self, chunk: &mut Chunk, start: usize) {
        if chunk.text.len() == start {
            return;
        }
        let is_first = !std::mem::replace(&mut self.document_began, true);
        if is_first && self.line_is_open && !self.needs.documents {
            chunk.text.insert(start, b'\n');
        }
        self.line_is_open = chunk.text.last() != Some(&b'\n');
    }

    fn end_document(&mut self, chunk: &mut Chunk) {
        let has_text = std::mem::take(&mut self.document_began);
        if has_text && self.needs.documents && self.source.has_documents {
            chunk.ends.push(chunk.text.len());
        }
    }
}

/// The text of a chunk that was read as UTF-8.
pub(super) fn as_utf8(text: &[u8]) -> &str {
    std::str::from_utf8(text).expect("the reader checks it")
}

/// The text in a field of a line of JSON Lines.
pub(super) fn record_text(line: &[u8], field: &str) -> Result<String, RecordError> {
    let mut parser = serde_json::Deserializer::from_slice(line);
    let found = parser.deserialize_map(TextIn { field });
    match found.and_then(|text| parser.end().map(|()| text)) {
        Ok(Some(text)) => Ok(text),
        Ok(None) | Err(_) => Err(record_error(line, field)),
    }
}

/// Parses the whole line again to say what is wrong with it.
fn record_error(line: &[u8], field: &str) -> RecordError {
    let object = match serde_json::from_slice(line) {
        Ok(serde_json::Value::Object(object)) => object,
        Ok(other) => return RecordError::NotAnObject { found: kind_of(&other) },
        Err(error) => {
            let message = error.to_string();
            let (reason, _) = message.split_once(" at line ").unwrap_or((&message, ""));
            let reason = match error.line() {
                1 => format!("{reason} at column {}", error.column()),
                _ => reason.to_owned(), // the line ended too early
            };
            return RecordError::NotJson { reason };
        }
    };
    let field = field.to_owned();
    match object.get(&field) {
        Some(value) => RecordError::NotAText { field, found: kind_of(value) },
        None => RecordError::NoField { field, found: object.keys().cloned().collect() },
    }
}

fn kind_of(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "true or false",
        serde_json::Value::Number(_) => "a number",
        serde_json::Value::String(_) => "a text",
        serde_json::Value::Array(_) => "a list",
        serde_json::Value::Object(_) => "an object",
    }
}

/// Takes one field out of an object and skips the others, which may be large.
struct TextIn<'a> {
    field: &'a str,
}

impl<'de> Visitor<'de> for TextIn<'_> {
    type Value = Option<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let mut text = None;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if key == self.field {
                text = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::config::SourceConfig;

    /// The text and the ends of documents that a reader makes of a folder of these files.
    fn read(files: &[(&str, &[u8])], chunk_bytes: usize, needs: Needs) -> Result<Chunk, DataError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let path = folder.path().to_owned();
        let source = Source::find(&SourceConfig { path, ..SourceConfig::default() })?;
        let mut reader = Reader::new(&source, needs);
        reader.chunk_bytes = chunk_bytes;
        let mut whole = Chunk::default();
        while let Some(chunk) = reader.next()? {
            assert!(!chunk.is_empty());
            assert!(!needs.utf8 || std::str::from_utf8(&chunk.text).is_ok());
            whole.ends.extend(chunk.ends.iter().map(|end| end + whole.text.len()));
            whole.text.extend(chunk.text);
        }
        Ok(whole)
    }

    const FILES: [(&str, &[u8]); 8] = [
        ("b.txt", b"b, without an end of line"),
        ("c.txt", b""),
        ("a/z.txt", b"a/z\n"),
        ("a/b/c.md", b"a/b/c\n\n"),
        (".hidden", b"no"),
        (".git/x", b"no"),
        ("d.txt", b"d"),
        ("e.jsonl", b"{\"text\": \"one\"}\n\n{\"text\": \"\"}\r\n{\"text\": \"two\\n\"}"),
    ];

    #[test]
    fn documents_end_where_their_texts_do_or_follow_one_another_each_on_a_new_line() {
        for chunk_bytes in [4, 9, 1000] {
            let whole = read(&FILES, chunk_bytes, Needs::CHARACTERS).unwrap();
            let expected = b"a/b/c\n\na/z\nb, without an end of line\nd\none\ntwo\n";
            assert_eq!(whole.text, expected);
            assert!(whole.ends.is_empty());

            let whole = read(&FILES, chunk_bytes, Needs::PIECES).unwrap();
            let documents = whole.pieces().map(|(text, is_end)| {
                assert!(is_end);
                std::str::from_utf8(text).unwrap()
            });
            let expected = ["a/b/c\n\n", "a/z\n", "b, without an end of line", "d", "one", "two\n"];
            assert_eq!(documents.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn the_text_is_found_among_other_fields() {
        let line = br#" {"id": 3, "meta": {"text": "no"}, "te\u0078t": "a \u00e9\n\ud83d\udd25", "z": [1]}"#;
        assert_eq!(record_text(line, "text").unwrap(), "a \u{e9}\n\u{1f525}");
        assert_eq!(record_text(br#"{"a.b": ""}"#, "a.b").unwrap(), "");
    }

    #[test]
    fn a_line_without_a_text_says_why() {
        for (line, expected) in [
            (r#"{"id": 3, "body": "x"}"#, r#"has no field "text", only "body", "id""#),
            ("{}", r#"has no field "text", only {}"#),
            (r#"{"text": null}"#, r#"has null in its field "text""#),
            (r#"{"text": ["a"]}"#, r#"has a list in its field "text""#),
            (r#"["a"]"#, "is a list, not an object"),
            (r#""a""#, "is a text, not an object"),
            ("once upon", "is not JSON: expected value at column 1\n"),
            ("{\n", "is not JSON: EOF while parsing an object\n"),
            (r#"{"text": "a"#, "is not JSON: EOF while parsing a string"),
            (r#"{"text": "a"} {"text": "b"}"#, "is not JSON: trailing characters"),
            (r#"{"text": "\ud800"}"#, "is not JSON"),
        ] {
            let error = record_text(line.as_bytes(), "text").unwrap_err().to_string();
            assert!(error.starts_with(expected), "{line}: {error}");
            assert!(error.contains("hint: "), "{error}");
        }
        let invalid = record_text(b"{\"text\": \"\xff\"}", "text").unwrap_err().to_string();
        assert!(invalid.starts_with("is not JSON"), "{invalid}");
    }

    #[test]
    fn a_record_without_text_is_named_with_its_line() {
        let files: [(&str, &[u8]); 1] = [("a.jsonl", b"{\"text\": \"x\"}\n\n{\"body\": 1}\n")];
        let error = read(&files, 100, Needs::BYTES).unwrap_err().to_string();
        assert!(error.starts_with("line 3 of `"), "{error}");
        assert!(error.contains("a.jsonl` has no field \"text\", only \"body\""), "{error}");
    }

    #[test]
    fn the_place_that_is_not_utf8_is_named() {
        for (content, at) in [
            (&b"\xff"[..], 0),
            (b"0123456789\xc3(", 10),
            (b"01234567\xe2\x82", 8),
            (b"0\xf0", 1),
            (b"\xef\xbb\xbf01\xff", 5),
        ] {
            for chunk_bytes in 4..12 {
                let files = [("a.txt", content)];
                match read(&files, chunk_bytes, Needs::CHARACTERS) {
                    Err(DataError::NotUtf8 { path, offset }) => {
                        assert_eq!(offset, at);
                        assert!(path.ends_with("a.txt"));
                    }
                    other => panic!("{other:?}"),
                }
                assert_eq!(read(&files, chunk_bytes, Needs::BYTES).unwrap().text, content);
            }
        }
    }

    #[test]
    fn a_chunk_is_taken_apart_where_its_documents_are() {
        let chunk = Chunk { text: b"abcdef".to_vec(), ends: vec![0, 2, 2, 6] };
        let pieces: Vec<_> = chunk.pieces().collect();
        let expected: [(&[u8], bool); 4] = [(b"", true), (b"ab", true), (b"", true), (b"cdef", true)];
        assert_eq!(pieces, expected);
        let mut first = chunk;
        let second = first.split_off(2);
        assert_eq!((first.ends, second.ends), (vec![0, 2, 2], vec![4]));
        assert_eq!((&first.text[..], &second.text[..]), (&b"ab"[..], &b"cdef"[..]));
    }

    proptest! {
        #[test]
        fn chunks_never_cut_a_character(text in any::<String>(), chunk_bytes in 4_usize..20) {
            let text = text.trim_start_matches('\u{feff}');
            let content = read(&[("a.txt", text.as_bytes())], chunk_bytes, Needs::CHARACTERS);
            prop_assert_eq!(content.unwrap().text, text.as_bytes());
        }

        #[test]
        fn records_are_the_same_texts_as_files(
            texts in prop::collection::vec("\\PC{0,9}|(?s:.{0,9})|[a-z\n]{0,30}", 1..20),
            chunk_bytes in 4_usize..50,
        ) {
            prop_assume!(texts.iter().all(|text| !text.starts_with('\u{feff}')));
            let names: Vec<String> = (10..).zip(&texts).map(|(i, _)| format!("{i}.txt")).collect();
            let texts = || texts.iter().map(String::as_str);
            let files = names.iter().map(String::as_str).zip(texts().map(str::as_bytes));
            let files: Vec<(&str, &[u8])> = files.collect();
            let lines = texts().map(|text| serde_json::json!({"id": 1, "text": text}).to_string() + "\n");
            let lines: String = lines.collect();
            for needs in [Needs::CHARACTERS, Needs::PIECES, Needs::BYTES] {
                let of_files = read(&files, chunk_bytes, needs).unwrap();
                let of_records = read(&[("a.jsonl", lines.as_bytes())], chunk_bytes, needs);
                prop_assert_eq!(of_records.unwrap(), of_files);
            }
        }
    }
}
