//! A text from beginning to end, in chunks of bounded length that know where documents end.

use sha2::{Digest, Sha256};

use super::DataError;
use super::file::TextBytes;
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
    /// Bytes, which say nothing of how many tokens there will be.
    Text,
}

impl Needs {
    /// What a tokenizer that is there needs.
    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        match tokenizer.kind() {
            TokenizerKind::Byte => Self {
                utf8: false,
                documents: false,
                unit: Unit::Byte,
            },
            TokenizerKind::Char => Self::of_new_char(),
            TokenizerKind::Bpe | TokenizerKind::File => Self {
                utf8: true,
                documents: tokenizer.end_of_text().is_some(),
                unit: Unit::Text,
            },
        }
    }

    /// What a character tokenizer that is yet to be made needs.
    pub(super) fn of_new_char() -> Self {
        Self {
            utf8: true,
            documents: false,
            unit: Unit::Character,
        }
    }

    /// What a BPE tokenizer that is yet to be learned needs.
    pub(super) fn of_new_bpe() -> Self {
        Self {
            utf8: true,
            documents: true,
            unit: Unit::Text,
        }
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
        Self {
            text: self.text.split_off(at),
            ends: ends.into_iter().map(|end| end - at).collect(),
        }
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
        }
    }

    #[cfg(test)]
    pub(super) fn with_chunk_bytes(self, chunk_bytes: usize) -> Self {
        Self {
            chunk_bytes,
            ..self
        }
    }

    /// The next chunk; none at the end.
    ///
    /// # Errors
    /// If a file cannot be read, is not UTF-8 where it should be, or has a record without text.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, DataError> {
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
