//! Tokenizers that are made from the texts themselves.

use std::fs;
use std::io::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::DataError;
use super::cache::{Cache, Temporary, cache_error};
use super::divide::{Divided, Half};
use super::progress::{self, OnProgress, Purpose, Reading};
use super::reader::{Chunk, Needs, Reader, as_utf8};
use super::text::Text;
use crate::tokenizer::{END_OF_TEXT, Tokenizer};

/// Says by which rules merges were learned: what is kept of others is not used.
const RULES: &[u8] = concat!("byte-level bpe 2, tinderbox ", env!("CARGO_PKG_VERSION")).as_bytes();

/// Merges are learned from so many bytes of text at most, which are plenty: a larger text is learned
/// from in chunks spread evenly over it. Memory grows with the distinct words, and so has a bound.
const MOST_BYTES: u64 = 1 << 28;

/// A tokenizer of all characters of the texts, of validation, too: a character that it did not know
/// could not be validated.
///
/// # Errors
/// If there are no characters.
pub(super) fn characters(texts: &[Text]) -> Result<Tokenizer, DataError> {
    let alphabets = texts.iter().map(|text| text.survey.alphabet.as_str());
    Tokenizer::char_from_alphabet(alphabets.flat_map(str::chars)).map_err(DataError::Alphabet)
}

/// A byte-level BPE tokenizer, whose merges are learned from the training splits of the texts,
/// whatever their weights. It is kept for the next run of the same texts.
///
/// # Errors
/// If a text cannot be read, and if `watch` puts an end to it.
pub(super) fn bpe(
    vocab_size: usize,
    texts: &[Text],
    val_fraction: f64,
    cache: &Cache,
    on_progress: OnProgress<'_>,
) -> Result<Tokenizer, DataError> {
    let mut key = Sha256::new();
    key.update(RULES);
    key.update((vocab_size as u64).to_le_bytes());
    key.update(val_fraction.to_le_bytes());
    for text in texts {
        key.update(text.survey.hash);
    }
    let path = cache.path(&key.finalize().into(), "tokenizer.json");
    if let Ok(tokenizer) = Tokenizer::from_file(&path) {
        touch(&path);
        return Ok(tokenizer);
    }
    let n_bytes: u64 = texts.iter().map(|text| text.survey.bytes).sum();
    let stride = n_bytes.div_ceil(MOST_BYTES);
    let pieces = texts.iter().flat_map(|text| TrainingText::of(text, stride, on_progress));
    let before_merges = || {
        let reading = Reading {
            path: &texts.last()?.source.path,
            purpose: Purpose::FindMerges,
            bytes: n_bytes,
            of: Some(n_bytes),
        };
        progress::tell(on_progress, &reading).err().map(Err)
    };
    let pieces = pieces.chain(std::iter::once_with(before_merges).flatten());
    let tokenizer = Tokenizer::train_bpe(vocab_size, pieces)?;
    let failed = |source| cache_error(&path, source);
    let mut temporary = Temporary::create(cache.folder()).map_err(failed)?;
    let written = temporary.file.write_all(tokenizer.to_json().as_bytes());
    written.map_err(failed)?;
    temporary.rename(&path).map_err(failed)?;
    Ok(tokenizer)
}

/// Lets the cache know that this was used.
fn touch(path: &Path) {
    let file = fs::File::options().append(true).open(path);
    let _ = file.and_then(|file| file.set_modified(std::time::SystemTime::now()));
}

/// Every `stride`th chunk of the training split of a text, with the end-of-text token written out
/// between documents, and where something is left out.
struct TrainingText<'a> {
    divided: Divided<'a>,
    stride: u64,
    n_read: u64,
}

impl<'a> TrainingText<'a> {
    fn of(text: &'a Text, stride: u64, on_progress: OnProgress<'a>) -> Self {
        let reader = Reader::new(&text.source, Needs::of_new_bpe());
        let reader =
            reader.with_progress(on_progress, Purpose::CountWords, Some(text.survey.bytes));
        Self { divided: Divided::new(reader, text.place), stride, n_read: 0 }
    }
}

impl Iterator for TrainingText<'_> {
    type Item = Result<String, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let chunk = match self.divided.next() {
                Ok(Some((Half::Train, chunk))) => chunk,
                Ok(_) => return None,
                Err(error) => return Some(Err(error)),
            };
            self.n_read += 1;
            if (self.n_read - 1).is_multiple_of(self.stride) {
                return Some(Ok(written_out(&chunk, self.stride > 1)));
            }
        }
    }
}

/// The text of a chunk with its ends of documents, and one more if what follows it is left out.
fn written_out(chunk: &Chunk, has_gap: bool) -> String {
    let mut text = String::with_capacity(chunk.text.len());
    for (piece, is_end) in chunk.pieces() {
        text.push_str(as_utf8(piece));
        if is_end {
            text.push_str(END_OF_TEXT);
        }
    }
    if has_gap {
        text.push_str(END_OF_TEXT);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_text_is_written_as_the_tokenizer_reads_it() {
        let text = Ok::<_, std::convert::Infallible>("some text, some text".to_owned());
        let Ok(tokenizer) = Tokenizer::train_bpe(260, [text]);
        let end = tokenizer.end_of_text().unwrap();
        assert_eq!(tokenizer.encode(END_OF_TEXT).unwrap(), [end]);
        let chunk = Chunk { text: b"abc".to_vec(), ends: vec![1, 3] };
        let twice = |text: &str| text.replace('|', END_OF_TEXT);
        assert_eq!(written_out(&chunk, false), twice("a|bc|"));
        assert_eq!(written_out(&chunk, true), twice("a|bc||"));
    }
}
