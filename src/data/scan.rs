//! The first reading of a text: its hash, length and alphabet, its beginning, or an estimate of its tokens.

use std::collections::BTreeSet;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::DataError;
use super::corpus::check_lengths;
use super::encode::in_order;
use super::reader::{Chunk, Needs, OnProgress, Purpose, Reader, Unit, as_utf8, ignore};
use super::source::Source;
use super::split::train_share;
use crate::config::{DataConfig, SourceConfig};
use crate::tokenizer::TokenizerKind;

/// What a reading of a whole text tells.
#[derive(Debug)]
pub(super) struct Scan {
    /// SHA-256 of the text, and of where its documents end if they are told apart.
    pub hash: [u8; 32],
    /// At least 1.
    pub bytes: u64,
    /// The length in the unit by which the text is split.
    pub n_units: u64,
    /// The distinct characters in code point order, if they are tokens.
    pub alphabet: String,
}

impl Scan {
    pub(super) fn read(source: &Source, needs: Needs, on_progress: OnProgress<'_>) -> Result<Self, DataError> {
        let mut reader = Reader::new(source, needs).with_progress(on_progress, Purpose::Scan, None);
        let mut hash = Sha256::new();
        let (mut bytes, mut n_units) = (0, 0);
        let mut seen = CharacterSet::default();
        in_order(
            || reader.next(),
            |chunk| Ok(count(chunk, needs.unit)),
            |(chunk, n_units_here, seen_here)| {
                chunk.hash_into(&mut hash);
                bytes += chunk.text.len() as u64;
                n_units += n_units_here;
                seen.add_all(&seen_here);
                Ok(())
            },
        )?;
        if bytes == 0 {
            return Err(DataError::Empty { path: source.path.clone() });
        }
        Ok(Self { hash: hash.finalize().into(), bytes, n_units, alphabet: seen.characters().collect() })
    }
}

/// The length of a chunk in units, and its characters if these are the units.
fn count(chunk: Chunk, unit: Unit) -> (Chunk, u64, CharacterSet) {
    let mut seen = CharacterSet::default();
    let n_units = match unit {
        Unit::Byte | Unit::Piece => chunk.text.len(),
        Unit::Character => as_utf8(&chunk.text).chars().map(|c| seen.add(c)).count(),
    };
    (chunk, n_units as u64, seen)
}

/// A bit for each character, up to the last that was added.
#[derive(Debug, Default)]
struct CharacterSet(Vec<u64>);

impl CharacterSet {
    fn add(&mut self, character: char) {
        let (word, bit) = (character as usize / 64, character as usize % 64);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << bit;
    }

    fn add_all(&mut self, others: &Self) {
        if self.0.len() < others.0.len() {
            self.0.resize(others.0.len(), 0);
        }
        for (word, other) in self.0.iter_mut().zip(&others.0) {
            *word |= other;
        }
    }

    /// In code point order.
    fn characters(&self) -> impl Iterator<Item = char> {
        let has = |c: char| self.0.get(c as usize / 64).is_some_and(|word| word >> (c as usize % 64) & 1 == 1);
        ('\0'..=char::MAX).filter(move |c| has(*c))
    }
}

/// The first part of a text: enough to say what it is like, however long it is.
#[derive(Debug, Clone)]
pub struct Preview {
    /// The text, or its beginning, which may end within a character.
    pub bytes: Vec<u8>,
    /// Whether the text is complete.
    pub is_whole: bool,
    /// The size of the text's files on the disk.
    pub bytes_on_disk: u64,
}

impl Preview {
    /// Reads a text as training would, up to `max_bytes`. With `utf8` it must be text, otherwise any bytes will do.
    ///
    /// # Errors
    /// If the text cannot be read, is empty, or with `utf8` is not UTF-8.
    pub fn read(path: &Path, max_bytes: usize, utf8: bool) -> Result<Self, DataError> {
        let source = Source::find(&SourceConfig { path: path.to_owned(), ..SourceConfig::default() })?;
        let mut reader = Reader::new(&source, Needs { utf8, ..Needs::BYTES });
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

/// The bytes of text that a token of several characters is assumed to stand for.
pub const ASSUMED_BYTES_PER_TOKEN: u64 = 4;

/// The length of all texts of a config, without encoding them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes of text; at least 1.
    pub bytes: u64,
    /// Tokens of the training split: exact for characters and bytes, else by [`ASSUMED_BYTES_PER_TOKEN`].
    pub train_tokens: u64,
    /// Tokens of the validation split, counted the same way.
    pub val_tokens: u64,
    /// The number of distinct characters; 0 if they are not tokens.
    pub n_characters: usize,
}

impl Estimate {
    /// Reads the texts once, and writes nothing. Texts that are too short for the context length count, and
    /// are reported to `too_short`.
    ///
    /// # Errors
    /// If a text cannot be read, is empty, is not what the tokenizer needs, or shares a file with another.
    pub fn read(
        data: &DataConfig,
        kind: TokenizerKind,
        context_length: usize,
        mut too_short: impl FnMut(DataError),
    ) -> Result<Self, DataError> {
        let needs = Needs { documents: false, ..Needs::of_kind(kind) };
        let mut estimate = Self::default();
        let mut characters = BTreeSet::new();
        for source in &Source::find_all(&data.all_sources())? {
            let scan = Scan::read(source, needs, &ignore)?;
            let n_tokens = match needs.unit {
                Unit::Piece => scan.bytes.div_ceil(ASSUMED_BYTES_PER_TOKEN),
                Unit::Byte | Unit::Character => scan.n_units,
            };
            let train = train_share(data.val_fraction, n_tokens);
            let val = n_tokens - train;
            if let Err(error) = check_lengths(&source.path, train, val, data, context_length) {
                too_short(error);
            }
            estimate.bytes += scan.bytes;
            estimate.train_tokens += train;
            estimate.val_tokens += val;
            characters.extend(scan.alphabet.chars());
        }
        estimate.n_characters = characters.len();
        Ok(estimate)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn scan(text: &str, needs: Needs) -> Scan {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, text).unwrap();
        let source = Source::find(&SourceConfig { path, ..SourceConfig::default() }).unwrap();
        Scan::read(&source, needs, &ignore).unwrap()
    }

    #[test]
    fn a_text_is_counted_as_its_tokenizer_does() {
        let text = "abc \u{1f525}\u{e9}\ncab";
        let characters = scan(text, Needs::CHARACTERS);
        assert_eq!((characters.bytes, characters.n_units), (14, 10));
        assert_eq!(characters.alphabet, "\n abc\u{e9}\u{1f525}");
        for needs in [Needs::BYTES, Needs::PIECES] {
            let bytes = scan(text, needs);
            assert_eq!((bytes.bytes, bytes.n_units), (14, 14));
            assert_eq!(bytes.alphabet, "");
            assert_eq!(bytes.hash, characters.hash);
        }
        // SHA-256 of "abc", from the standard's examples.
        let hash = scan("abc", Needs::CHARACTERS).hash;
        assert_eq!(hash[..4], [0xba, 0x78, 0x16, 0xbf]);
    }

    #[test]
    fn a_preview_is_the_beginning_of_what_training_reads() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "one").unwrap();
        fs::write(folder.path().join("b.txt"), "two").unwrap();
        for (max_bytes, expected, is_whole) in
            [(100, "one\ntwo", true), (7, "one\ntwo", true), (6, "one\ntw", false), (3, "one", false)]
        {
            let preview = Preview::read(folder.path(), max_bytes, true).unwrap();
            assert_eq!(preview.bytes, expected.as_bytes());
            assert_eq!(preview.is_whole, is_whole);
            assert_eq!(preview.bytes_on_disk, 6);
        }
        fs::write(folder.path().join("a.txt"), "").unwrap();
        let read = |name: &str| Preview::read(&folder.path().join(name), 10, true);
        assert!(matches!(read("a.txt"), Err(DataError::Empty { .. })));
        assert!(matches!(read("c.txt"), Err(DataError::Missing { .. })));
    }
}
