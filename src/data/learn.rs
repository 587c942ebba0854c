//! Tokenizers that are made from the texts themselves.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::DataError;
use super::cache::{Cache, cache_error};
use super::divide::{Divided, Half};
use super::reader::{Needs, Reader};
use super::text::Text;
use crate::tokenizer::Tokenizer;

/// How an end of text is written in a text, of which the tokenizer makes that token.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Says by which rules merges were learned: what is kept of others is not used.
const RULES: &[u8] = concat!("byte-level bpe 1, tinderbox ", env!("CARGO_PKG_VERSION")).as_bytes();

/// A tokenizer of all characters of the texts, of validation, too: a character that it did not know
/// could not be validated.
///
/// # Errors
/// If there are no characters.
pub(super) fn characters(texts: &[Text]) -> Result<Tokenizer, DataError> {
    let alphabets = texts.iter().map(|text| text.survey.alphabet.as_str());
    Tokenizer::char_from_alphabet(alphabets.flat_map(str::chars)).map_err(DataError::Alphabet)
}

/// A byte-level BPE tokenizer, whose merges are learned from the training splits of the texts, byte
/// by byte the same, whatever their weights. It is kept for the next run of the same texts.
///
/// # Errors
/// If a text cannot be read.
pub(super) fn bpe(
    vocab_size: usize,
    texts: &[Text],
    val_fraction: f64,
    cache: &Cache,
) -> Result<Tokenizer, DataError> {
    let mut key = Sha256::new();
    key.update(RULES);
    key.update((vocab_size as u64).to_le_bytes());
    key.update(val_fraction.to_le_bytes());
    texts.iter().for_each(|text| key.update(text.survey.hash));
    let path = cache.path(&key.finalize().into(), "tokenizer.json");
    if let Ok(tokenizer) = Tokenizer::load(&path) {
        touch(&path);
        return Ok(tokenizer);
    }
    let pieces = texts.iter().flat_map(TrainingText::of);
    let tokenizer = Tokenizer::train_bpe(vocab_size, pieces)?;
    let temporary = cache.temporary_path();
    let written = fs::write(&temporary, tokenizer.to_json());
    written
        .and_then(|()| fs::rename(&temporary, &path))
        .map_err(|source| {
            let _ = fs::remove_file(&temporary); // already reporting why
            cache_error(&path, source)
        })?;
    Ok(tokenizer)
}

/// Lets the cache know that this was used.
fn touch(path: &Path) {
    let file = fs::File::options().append(true).open(path);
    let _ = file.and_then(|file| file.set_modified(std::time::SystemTime::now()));
}

/// The training split of a text in pieces, with the end-of-text token written out between documents.
struct TrainingText<'a>(Divided<'a>);

impl<'a> TrainingText<'a> {
    fn of(text: &'a Text) -> Self {
        let reader = Reader::new(&text.source, Needs::of_new_bpe());
        Self(Divided::new(reader, text.place))
    }
}

impl Iterator for TrainingText<'_> {
    type Item = Result<String, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = match self.0.next() {
            Ok(Some((Half::Train, chunk))) => chunk,
            Ok(_) => return None,
            Err(error) => return Some(Err(error)),
        };
        let mut text = String::with_capacity(chunk.text.len());
        for (piece, is_end) in chunk.pieces() {
            text.push_str(super::reader::as_utf8(piece));
            if is_end {
                text.push_str(END_OF_TEXT);
            }
        }
        Some(Ok(text))
    }
}
