//! Trains a BPE tokenizer on the training splits of texts.

use std::fs::File;
use std::io::Write;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::DataError;
use super::cache::Temporary;
use super::corpus::{Opening, Text};
use super::reader::{Chunk, Half, Needs, Purpose, Reader, Reading, as_utf8, report};
use crate::config::Config;
use crate::tokenizer::{END_OF_TEXT, Tokenizer, WordCounter};

/// The version of the training: cached tokenizers of other versions are not used.
const RULES: &[u8] = concat!("byte-level bpe 2, tinderbox ", env!("CARGO_PKG_VERSION")).as_bytes();

/// The most bytes of text that merges are learned from, which are plenty: of more, chunks spread evenly over the
/// text are used. Memory grows with the distinct words, and so is bounded.
const MAX_BYTES: u64 = 1 << 28;

/// Trains byte-level BPE on the texts, whatever their weights, or takes the tokenizer of an earlier run from the cache.
pub(super) fn train_bpe(config: &Config, texts: &[Text], opening: &Opening<'_>) -> Result<Tokenizer, DataError> {
    let vocab_size = config.tokenizer.bpe_vocab_size();
    let mut key = Sha256::new();
    key.update(RULES);
    key.update((vocab_size as u64).to_le_bytes());
    key.update(config.data.val_fraction.to_le_bytes());
    for text in texts {
        key.update(text.scan.hash);
    }
    let path = opening.cache.path(&key.finalize().into(), "tokenizer.json");
    if let Ok(tokenizer) = Tokenizer::from_file(&path) {
        // The time by which the cache knows when a file was used.
        let file = File::options().append(true).open(&path);
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
        return Ok(tokenizer);
    }
    let n_bytes: u64 = texts.iter().map(|text| text.scan.bytes).sum();
    let stride = n_bytes.div_ceil(MAX_BYTES);
    let mut words = WordCounter::default();
    for text in texts {
        let reader = Reader::new(&text.source, Needs::BPE).split_at(text.split_point);
        let mut reader = reader.with_progress(opening.on_progress, Purpose::CountWords, Some(text.scan.bytes));
        let mut idx = 0;
        while let Some(chunk) = reader.next()?.filter(|chunk| chunk.half == Half::Train) {
            if u64::is_multiple_of(idx, stride) {
                count_words(&chunk, stride > 1, &mut words);
            }
            idx += 1;
        }
    }
    if let Some(text) = texts.last() {
        let (path, purpose) = (&text.source.path, Purpose::FindMerges);
        report(opening.on_progress, &Reading { path, purpose, bytes: n_bytes, of: Some(n_bytes) })?;
    }
    let tokenizer = Tokenizer::from_words(words, vocab_size);
    let fail = |source| DataError::cache(&path, source);
    let mut temporary = Temporary::create(&opening.cache.folder).map_err(fail)?;
    temporary.file.write_all(tokenizer.to_json().as_bytes()).map_err(fail)?;
    temporary.rename(&path).map_err(fail)?;
    Ok(tokenizer)
}

/// Counts the words of a chunk. None goes on behind a document, or behind the chunk if a gap follows.
fn count_words(chunk: &Chunk, has_gap: bool, words: &mut WordCounter) {
    for (text, is_end) in chunk.pieces() {
        words.add(as_utf8(text));
        if is_end {
            words.add(END_OF_TEXT);
        }
    }
    if has_gap {
        words.add(END_OF_TEXT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_goes_across_the_end_of_a_document_or_a_gap() {
        let chunk = Chunk { text: b"aab".to_vec(), ends: vec![1], ..Chunk::default() };
        for (has_gap, expected) in [(false, &["ab", "aba"][..]), (true, &["ab"])] {
            let mut words = WordCounter::default();
            (0..3).for_each(|_| count_words(&chunk, has_gap, &mut words));
            let tokenizer = Tokenizer::from_words(words, 300);
            let merged = (257..).take(tokenizer.vocab_size() - 257).map(|id| tokenizer.piece(id));
            assert_eq!(merged.collect::<Vec<_>>(), expected);
        }
    }
}
