//! The first pass over a text: its hash, length and alphabet, its beginning, or an estimate of its tokens.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::DataError;
use super::chunk::Needs;
use super::encode::{count, in_order};
use super::reader::{OnProgress, Purpose, Reader, as_utf8, ignore};
use super::source::{TextFile, TextSource};
use super::split::{Division, DocumentLengths, HeldOut, SplitPoint, n_train_units};
use crate::config::{Config, DataConfig, ValSplit};
use tinderbox_model::tokenizer::{Tokenizer, TokenizerKind};

#[derive(Debug)]
pub(super) struct Scan {
    /// SHA-256 of the text, and of its document ends if they are marked.
    pub hash: [u8; 32],
    /// At least 1.
    pub bytes: u64,
    /// The length in units of the split.
    pub n_units: u64,
    /// The distinct characters in code point order, if they are tokens.
    pub alphabet: String,
    /// The lengths of its documents, if it has several files.
    pub documents: Option<DocumentLengths>,
}

impl Scan {
    pub(super) fn read(source: &TextSource, needs: Needs, on_progress: OnProgress<'_>) -> Result<Self, DataError> {
        let mut reader = Reader::new(source, needs).with_progress(on_progress, Purpose::Scan, None);
        if source.files.len() > 1 {
            reader = reader.measuring();
        }
        let mut hash = Sha256::new();
        let (mut bytes, mut n_units) = (0, 0);
        let mut seen = Vec::new();
        in_order(
            || reader.next(),
            |chunk| Ok((units(&chunk.text, needs.kind), chunk)),
            |((n_units_here, seen_here), chunk)| {
                chunk.hash_into(&mut hash, needs);
                bytes += chunk.text.len() as u64;
                n_units += n_units_here;
                seen.resize(seen.len().max(seen_here.len()), false);
                seen.iter_mut().zip(seen_here).for_each(|(seen, here)| *seen |= here);
                Ok(())
            },
        )?;
        if bytes == 0 {
            return Err(DataError::Empty { path: source.path.clone() });
        }
        let alphabet = ('\0'..=char::MAX).filter(|c| seen.get(*c as usize) == Some(&true)).collect();
        Ok(Self { hash: hash.finalize().into(), bytes, n_units, alphabet, documents: reader.lengths() })
    }

    /// The division of the text into training and validation. A text of a single file is divided at a point, as the
    /// order of its documents is its author's; that of several files is only the order of their names.
    pub(super) fn division(&self, rule: ValSplit, val_fraction: f64, seed: u64, kind: TokenizerKind) -> Division {
        let documents = self.documents.as_ref().filter(|_| rule == ValSplit::Documents);
        match documents.and_then(|lengths| HeldOut::draw(lengths, val_fraction, seed)) {
            Some(held_out) => Division::Documents(held_out),
            None => Division::At(SplitPoint::new(val_fraction, kind, self.n_units)),
        }
    }
}

/// The length of a text in units; and if these are characters, whether each code point up to the largest occurs.
fn units(text: &[u8], kind: TokenizerKind) -> (u64, Vec<bool>) {
    let (mut n_characters, mut seen) = (0, Vec::new());
    if kind != TokenizerKind::Char {
        return (text.len() as u64, seen);
    }
    for character in as_utf8(text).chars() {
        n_characters += 1;
        if seen.len() <= character as usize {
            seen.resize(character as usize + 1, false);
        }
        seen[character as usize] = true;
    }
    (n_characters, seen)
}

/// The first part of a text: enough to describe a text of any length.
#[derive(Debug, Clone)]
pub struct Preview {
    /// The text, or its beginning, which may end within a character.
    pub bytes: Vec<u8>,
    /// Whether the text is complete.
    pub is_whole: bool,
    /// The size of the text's files on disk.
    pub bytes_on_disk: u64,
    /// The files of a folder that are left out, since they are not text.
    pub left_out: Vec<PathBuf>,
}

impl Preview {
    /// Reads a text as training would, up to `max_bytes`. With `utf8` it must be UTF-8; otherwise any bytes will do.
    pub fn read(config: &DataConfig, max_bytes: usize, utf8: bool) -> Result<Self, DataError> {
        let source = TextSource::find(config)?;
        let mut reader = Reader::new(&source, if utf8 { Needs::CHARACTERS } else { Needs::BYTES });
        let mut bytes = Vec::new();
        while bytes.len() <= max_bytes
            && let Some(chunk) = reader.next()?
        {
            bytes.extend_from_slice(&chunk.text);
        }
        let is_whole = bytes.len() <= max_bytes;
        bytes.truncate(max_bytes);
        if bytes.is_empty() {
            return Err(DataError::Empty { path: config.path.clone() });
        }
        let size = |file: &TextFile| fs::metadata(&file.path).map_or(0, |metadata| metadata.len());
        let bytes_on_disk = source.files.iter().map(size).sum();
        Ok(Self { bytes, is_whole, bytes_on_disk, left_out: source.left_out })
    }
}

/// The assumed number of bytes per token for tokenizers with tokens of several characters.
pub const ASSUMED_BYTES_PER_TOKEN: u64 = 4;

/// The length of all texts of a config, without token files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// Bytes of text; at least 1.
    pub bytes: u64,
    /// Tokens of the training split: exact for characters and bytes, else by [`ASSUMED_BYTES_PER_TOKEN`]. Texts with an
    /// end-of-text token are read twice for this.
    pub train_tokens: u64,
    /// Tokens of the validation split, counted the same way.
    pub val_tokens: u64,
    /// The number of distinct characters; 0 if they are not tokens.
    #[serde(skip)]
    pub n_characters: usize,
}

impl Estimate {
    /// Reads the texts, and writes nothing. Texts that are too short for the context length count, and are reported to
    /// `too_short`.
    pub fn read(config: &Config, mut too_short: impl FnMut(DataError)) -> Result<Self, DataError> {
        let (needs, val_fraction) = (Needs::of_config(&config.tokenizer), config.data.val_fraction);
        let rule = config.data.val_split.unwrap_or(ValSplit::Documents);
        let mut estimate = Self::default();
        let mut characters = BTreeSet::new();
        for source in &TextSource::find_all(&config.data.all_sources())? {
            let scan = Scan::read(source, needs, &ignore)?;
            let split = |n_tokens: u64| {
                let train = n_train_units(val_fraction, n_tokens);
                (train, n_tokens - train)
            };
            let division = scan.division(rule, val_fraction, config.train.seed, needs.kind);
            let tokens_of = |n_bytes: u64| n_bytes.div_ceil(ASSUMED_BYTES_PER_TOKEN);
            let is_table = matches!(needs.kind, TokenizerKind::Byte | TokenizerKind::Char);
            let (train, val) = match &division {
                Division::At(_) if !is_table => split(tokens_of(scan.bytes)),
                Division::At(_) if !needs.documents => split(scan.n_units),
                Division::Documents(held_out) if !is_table => {
                    (tokens_of(held_out.train_bytes), tokens_of(held_out.val_bytes))
                }
                division => {
                    let table = match needs.kind {
                        TokenizerKind::Byte => Tokenizer::byte(),
                        _ => Tokenizer::char_from_alphabet(scan.alphabet.chars()).expect("no text is empty"),
                    };
                    let table = if needs.documents { table.with_end_of_text() } else { table };
                    division.passes().iter().try_fold((0, 0), |(train, val), half| {
                        let (more_train, more_val) =
                            count(Reader::new(source, needs).divided(division, *half), &table)?;
                        Ok::<_, DataError>((train + more_train, val + more_val))
                    })?
                }
            };
            if let Err(error) = check_lengths(&source.path, train, val, config) {
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

/// Checks that the training split exceeds one window and that the validation split has something to predict.
pub(super) fn check_lengths(path: &Path, n_train: u64, n_val: u64, config: &Config) -> Result<(), DataError> {
    let (path, n_tokens) = (path.to_owned(), n_train + n_val);
    let context_length = config.model.context_length;
    if n_train <= context_length as u64 {
        return Err(DataError::TrainTooShort { path, n_tokens, n_train, context_length });
    }
    if n_val < 2 {
        let val_fraction = config.data.val_fraction;
        return Err(DataError::ValTooShort { path, n_tokens, n_val, val_fraction });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{folder, source};
    use super::*;

    fn scan(text: &str, needs: Needs) -> Scan {
        let folder = folder([("a.txt", text.as_bytes())]);
        Scan::read(&source(&folder.path().join("a.txt")), needs, &ignore).unwrap()
    }

    #[test]
    fn scan_counts_units_of_tokenizer() {
        let text = "abc \u{1f525}\u{e9}\ncab";
        let characters = scan(text, Needs::CHARACTERS);
        assert_eq!((characters.bytes, characters.n_units), (14, 10));
        assert_eq!(characters.alphabet, "\n abc\u{e9}\u{1f525}");
        for needs in [Needs::BYTES, Needs::BPE] {
            let bytes = scan(text, needs);
            assert_eq!((bytes.bytes, bytes.n_units, &*bytes.alphabet), (14, 14, ""));
            assert_eq!(bytes.hash, characters.hash);
        }
        // SHA-256 of "abc", from the standard's examples.
        let hash = scan("abc", Needs::CHARACTERS).hash;
        assert_eq!(hash[..4], [0xba, 0x78, 0x16, 0xbf]);
    }

    #[test]
    fn document_ends_change_hash() {
        let hash = |files: &[(&str, &[u8])], documents| {
            let folder = folder(files.iter().copied());
            let needs = Needs { documents, ..Needs::BYTES };
            Scan::read(&source(folder.path()), needs, &ignore).unwrap().hash
        };
        let (two, one) = ([("a.txt", &b"a"[..]), ("b.txt", b"b")], [("a.txt", &b"a\xffb"[..])]);
        assert_ne!(hash(&two, true), hash(&one, true));
        assert_ne!(hash(&two, true), hash(&two, false));
    }

    #[test]
    fn preview_is_beginning_of_training_text() {
        let folder = folder([("a.txt", &b"one"[..]), ("b.txt", b"two")]);
        let of = |path: &Path| DataConfig { path: path.to_owned(), ..DataConfig::default() };
        for (max_bytes, expected, is_whole) in
            [(100, "one\ntwo", true), (7, "one\ntwo", true), (6, "one\ntw", false), (3, "one", false)]
        {
            let preview = Preview::read(&of(folder.path()), max_bytes, true).unwrap();
            assert_eq!((&*preview.bytes, preview.is_whole), (expected.as_bytes(), is_whole));
            assert_eq!(preview.bytes_on_disk, 6);
        }
        fs::write(folder.path().join("a.txt"), "").unwrap();
        let read = |name: &str| Preview::read(&of(&folder.path().join(name)), 10, true);
        assert!(matches!(read("a.txt"), Err(DataError::Empty { .. })));
        assert!(matches!(read("c.txt"), Err(DataError::Missing { .. })));
    }
}
