//! A text from beginning to end, in chunks of bounded length that know where documents end.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::DataError;
use super::file::TextBytes;
use super::progress::{self, OnProgress, Purpose, Reading};
use super::record;
use super::source::{Source, TextFile};
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// About how many bytes are in a chunk. Several for each core are in memory at once.
pub(super) const CHUNK_BYTES: usize = 1 << 18;

/// Stands for the end of a document where a text is hashed: a byte that is in no UTF-8.
const END_OF_DOCUMENT: [u8; 1] = [0xff];

/// What a tokenizer asks of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Needs {
    /// Whether the text must be UTF-8.
    pub utf8: bool,
    /// Whether documents are told apart. Where they are not, they follow one another, each on a
    /// new line.
    pub documents: bool,
    /// What the text is measured in where it is split.
    pub unit: Unit,
}

/// What a text is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Bytes, each of which is a token.
    Byte,
    /// Characters, each of which is a token.
    Character,
    /// Bytes, of which tokens are pieces of any length: they say nothing of how many there will be.
    Piece,
}

impl Needs {
    /// What a tokenizer that is there needs.
    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        match tokenizer.kind() {
            TokenizerKind::Byte => Self { utf8: false, documents: false, unit: Unit::Byte },
            TokenizerKind::Char => Self::of_new_char(),
            TokenizerKind::Bpe | TokenizerKind::File => {
                Self { utf8: true, documents: tokenizer.end_of_text().is_some(), unit: Unit::Piece }
            }
        }
    }

    /// What a character tokenizer that is yet to be made needs.
    pub(super) fn of_new_char() -> Self {
        Self { utf8: true, documents: false, unit: Unit::Character }
    }

    /// What a BPE tokenizer that is yet to be learned needs.
    pub(super) fn of_new_bpe() -> Self {
        Self { utf8: true, documents: true, unit: Unit::Piece }
    }
}

/// A piece of a text. Whole characters, if the text is UTF-8.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The text.
    pub text: Vec<u8>,
    /// Where in it documents end, in ascending order; 0 is the end of one that the chunk before
    /// this one holds.
    pub ends: Vec<usize>,
}

impl Chunk {
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

    /// Takes off what lies behind `at`. A document that ends there ends in the first part.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let n_ends = self.ends.partition_point(|&end| end <= at);
        let ends = self.ends.split_off(n_ends);
        Self { text: self.text.split_off(at), ends: ends.into_iter().map(|end| end - at).collect() }
    }

    /// Adds the text, and where its documents end, to a hash.
    pub(super) fn hash_into(&self, hash: &mut Sha256) {
        for (text, is_end) in self.pieces() {
            hash.update(text);
            if is_end {
                hash.update(END_OF_DOCUMENT);
            }
        }
    }
}

/// Reads a text from beginning to end.
pub(super) struct Reader<'a> {
    source: &'a Source,
    needs: Needs,
    /// At least 4, the longest character.
    chunk_bytes: usize,
    next_file: usize,
    open: Option<OpenFile<'a>>,
    /// Whether what was read so far ends in the middle of a line.
    line_is_open: bool,
    /// Whether anything of the document at hand was read yet.
    document_began: bool,
    on_progress: OnProgress<'a>,
    /// What whoever watches is told.
    reading: Reading<'a>,
}

struct OpenFile<'a> {
    file: &'a TextFile,
    bytes: TextBytes,
    /// Of the next byte to be read, in the file as it is when unpacked.
    offset: u64,
    /// The beginning of a character, which the next bytes will end; at most three bytes.
    partial: Vec<u8>,
    /// The line at hand, and its number.
    line: Vec<u8>,
    line_number: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a Source, needs: Needs) -> Self {
        Self {
            source,
            needs,
            chunk_bytes: CHUNK_BYTES,
            next_file: 0,
            open: None,
            line_is_open: false,
            document_began: false,
            on_progress: &progress::ignore,
            reading: Reading { path: &source.path, purpose: Purpose::Scan, bytes: 0, of: None },
        }
    }

    /// Tells `watch` before each chunk how far it is.
    pub(super) fn with_progress(
        self,
        on_progress: OnProgress<'a>,
        purpose: Purpose,
        of: Option<u64>,
    ) -> Self {
        Self { on_progress, reading: Reading { purpose, of, ..self.reading }, ..self }
    }

    /// How errors call the text.
    pub(super) fn path(&self) -> &Path {
        &self.source.path
    }

    #[cfg(test)]
    pub(super) fn with_chunk_bytes(self, chunk_bytes: usize) -> Self {
        Self { chunk_bytes, ..self }
    }

    /// The next chunk; none at the end.
    ///
    /// # Errors
    /// If a file cannot be read, is not UTF-8 where it should be, or has a record without text, and if who
    /// watches puts an end to it.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, DataError> {
        progress::tell(self.on_progress, &self.reading)?;
        let mut chunk = Chunk::default();
        while chunk.text.len() < self.chunk_bytes {
            if self.open.is_none() {
                let Some(file) = self.source.files.get(self.next_file) else {
                    break;
                };
                self.next_file += 1;
                let is_text = self.needs.utf8 || file.is_jsonl;
                let bytes = TextBytes::open(&file.path, self.source.shown(file), is_text)?;
                self.open = Some(OpenFile {
                    file,
                    offset: bytes.n_skipped,
                    bytes,
                    partial: Vec::new(),
                    line: Vec::new(),
                    line_number: 0,
                });
            }
            let mut open = self.open.take().expect("opened just now");
            let has_more = if open.file.is_jsonl {
                self.add_record(&mut open, &mut chunk)?
            } else {
                self.add_text(&mut open, &mut chunk)?
            };
            if has_more {
                self.open = Some(open);
            }
        }
        self.reading.bytes += chunk.text.len() as u64;
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }

    /// Adds the next bytes of a file of text, and says whether there may be more.
    fn add_text(&mut self, open: &mut OpenFile<'_>, chunk: &mut Chunk) -> Result<bool, DataError> {
        let shown = self.source.shown(open.file);
        let mut start = chunk.text.len();
        let n_wanted = (self.chunk_bytes - start).max(4);
        chunk.text.append(&mut open.partial);
        let n_missing = n_wanted - (chunk.text.len() - start);
        let n_read = open.bytes.read(n_missing, &mut chunk.text, shown)?;
        let is_end = n_read < n_missing;
        if self.needs.utf8 {
            let not_utf8 = |at: usize| DataError::NotUtf8 {
                path: shown.to_owned(),
                offset: open.offset + at as u64,
            };
            let n_whole = whole_characters(&chunk.text[start..]).map_err(not_utf8)?;
            open.partial = chunk.text.split_off(start + n_whole);
            if is_end && !open.partial.is_empty() {
                return Err(not_utf8(n_whole));
            }
        }
        let n_added = chunk.text.len() - start;
        open.offset += n_added as u64;
        if n_added > 0 {
            start += self.begin_text(chunk, start);
            self.line_is_open = chunk.text[start..].last() != Some(&b'\n');
        }
        if is_end {
            self.end_document(chunk);
        }
        Ok(!is_end)
    }

    /// Adds the text of the next record, and says whether there may be more.
    fn add_record(
        &mut self,
        open: &mut OpenFile<'_>,
        chunk: &mut Chunk,
    ) -> Result<bool, DataError> {
        let shown = self.source.shown(open.file);
        if !open.bytes.read_line(&mut open.line, shown)? {
            return Ok(false);
        }
        open.line_number += 1;
        if open.line.trim_ascii().is_empty() {
            return Ok(true);
        }
        let text = record::text_of(&open.line, &self.source.text_field);
        let text = text.map_err(|source| DataError::Record {
            path: shown.to_owned(),
            line: open.line_number,
            source,
        })?;
        if !text.is_empty() {
            let start = chunk.text.len();
            chunk.text.extend_from_slice(text.as_bytes());
            self.begin_text(chunk, start);
            self.line_is_open = !text.ends_with('\n');
        }
        self.end_document(chunk);
        Ok(true)
    }

    /// Puts a line break before the text that begins at `start`, if another document ends in the
    /// middle of a line there, and returns how many bytes that takes.
    fn begin_text(&mut self, chunk: &mut Chunk, start: usize) -> usize {
        let is_first = !std::mem::replace(&mut self.document_began, true);
        if is_first && self.line_is_open && !self.needs.documents {
            chunk.text.insert(start, b'\n');
            return 1;
        }
        0
    }

    fn end_document(&mut self, chunk: &mut Chunk) {
        let has_text = std::mem::take(&mut self.document_began);
        if has_text && self.needs.documents && self.source.has_documents {
            chunk.ends.push(chunk.text.len());
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

/// The text of a chunk that was read as UTF-8.
pub(super) fn as_utf8(text: &[u8]) -> &str {
    std::str::from_utf8(text).expect("the reader checks it")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::config::SourceConfig;

    fn needs_bytes() -> Needs {
        Needs::of(&Tokenizer::byte())
    }

    /// The text and the ends of documents that a reader makes of a folder of these files.
    fn read(files: &[(&str, &[u8])], chunk_bytes: usize, needs: Needs) -> Result<Chunk, DataError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let source = Source::find(&SourceConfig {
            path: folder.path().to_owned(),
            ..SourceConfig::default()
        });
        let source = source?;
        let mut reader = Reader::new(&source, needs).with_chunk_bytes(chunk_bytes);
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
    fn without_documents_texts_follow_one_another_each_on_a_new_line() {
        for chunk_bytes in [4, 9, 1000] {
            let whole = read(&FILES, chunk_bytes, Needs::of_new_char()).unwrap();
            let text = String::from_utf8(whole.text).unwrap();
            let expected = "a/b/c\n\na/z\nb, without an end of line\nd\none\ntwo\n";
            assert_eq!(text, expected);
            assert!(whole.ends.is_empty());
        }
    }

    #[test]
    fn with_documents_each_ends_where_its_text_does() {
        for chunk_bytes in [4, 9, 1000] {
            let whole = read(&FILES, chunk_bytes, Needs::of_new_bpe()).unwrap();
            let documents = whole.pieces().map(|(text, is_end)| {
                assert!(is_end);
                std::str::from_utf8(text).unwrap()
            });
            let expected = ["a/b/c\n\n", "a/z\n", "b, without an end of line", "d", "one", "two\n"];
            assert_eq!(documents.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_record_without_text_is_named_with_its_line() {
        let files: [(&str, &[u8]); 1] = [("a.jsonl", b"{\"text\": \"x\"}\n\n{\"body\": 1}\n")];
        let error = read(&files, 100, needs_bytes()).unwrap_err().to_string();
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
                match read(&files, chunk_bytes, Needs::of_new_char()) {
                    Err(DataError::NotUtf8 { path, offset }) => {
                        assert_eq!(offset, at);
                        assert!(path.ends_with("a.txt"));
                    }
                    other => panic!("{other:?}"),
                }
                assert_eq!(read(&files, chunk_bytes, needs_bytes()).unwrap().text, content);
            }
        }
    }

    #[test]
    fn a_chunk_is_taken_apart_where_its_documents_are() {
        let chunk = Chunk { text: b"abcdef".to_vec(), ends: vec![0, 2, 2, 6] };
        let pieces: Vec<_> = chunk.pieces().collect();
        let expected: [(&[u8], bool); 4] =
            [(b"", true), (b"ab", true), (b"", true), (b"cdef", true)];
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
            let content = read(&[("a.txt", text.as_bytes())], chunk_bytes, Needs::of_new_char());
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
            for needs in [Needs::of_new_char(), Needs::of_new_bpe(), needs_bytes()] {
                let of_files = read(&files, chunk_bytes, needs).unwrap();
                let of_records = read(&[("a.jsonl", lines.as_bytes())], chunk_bytes, needs);
                prop_assert_eq!(of_records.unwrap(), of_files);
            }
        }
    }
}
