//! Trains a BPE tokenizer on the training splits of texts.

use std::io::{Read, Write};
use std::path::Path;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::DataError;
use super::cache::temporary;
use super::chunk::{Chunk, Half, Needs};
use super::reader::{Purpose, Reader, Reading, as_utf8, report};
use super::split::Division;
use super::texts::{Opening, ScannedText, shown};
use crate::config::Config;
use tinderbox_model::disk;
use tinderbox_model::tokenizer::{END_OF_TEXT, Tokenizer, WordCounter};

/// The version of the training: cached tokenizers of other versions are not used.
const RULES: &[u8] = concat!("byte-level bpe 2, tinderbox ", env!("CARGO_PKG_VERSION")).as_bytes();

/// The most bytes of text that merges are learned from, which is plenty: of longer texts, evenly spaced chunks are
/// used. Memory grows with the number of distinct words, so this bounds it.
const MAX_BYTES: u64 = 1 << 28;

/// Trains byte-level BPE on the texts, regardless of weights, or loads the tokenizer of an earlier run from the cache.
pub(super) fn train_bpe(config: &Config, texts: &[ScannedText], opening: &Opening<'_>) -> Result<Tokenizer, DataError> {
    let vocab_size = config.tokenizer.bpe_vocab_size();
    let mut key = Sha256::new();
    key.update(RULES);
    key.update((vocab_size as u64).to_le_bytes());
    key.update(config.data.val_fraction.to_le_bytes());
    for text in texts {
        key.update(text.scan.hash);
        if let Division::Documents(held_out) = &text.division {
            key.update(held_out.hash());
        }
    }
    let path = opening.cache.path(&key.finalize().into(), "tokenizer.json");
    if let Some(tokenizer) = cached(&path) {
        return Ok(tokenizer);
    }
    let n_bytes: u64 = texts.iter().map(|text| text.scan.bytes).sum();
    let stride = n_bytes.div_ceil(MAX_BYTES);
    let mut words = WordCounter::default();
    for text in texts {
        let reader = Reader::new(&text.source, Needs::BPE).divided(&text.division, Half::Train);
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
    let json = tokenizer.to_json();
    let mut temporary = temporary(&opening.cache.folder).map_err(fail)?;
    writeln!(temporary.file, "{}", first_line(&json)).map_err(fail)?;
    temporary.file.write_all(json.as_bytes()).map_err(fail)?;
    temporary.rename(&path).map_err(fail)?;
    let of: Vec<String> = texts.iter().map(|text| format!("`{}`", shown(&text.source.path))).collect();
    opening.cache.note(&path, &format!("bpe tokenizer of {}", of.join(", ")));
    Ok(tokenizer)
}

/// The tokenizer in a file of the cache; `None` if it is missing, damaged or of another version.
fn cached(path: &Path) -> Option<Tokenizer> {
    let mut text = String::new();
    let mut file = disk::open_file(path).ok()?;
    file.read_to_string(&mut text).ok()?;
    let (first, json) = text.split_once('\n')?;
    let tokenizer = (first == first_line(json)).then(|| Tokenizer::from_json(json.to_owned(), path).ok())??;
    let _ = file.set_modified(SystemTime::now()); // the cache takes it for the time of last use
    Some(tokenizer)
}

/// The first line of a cached tokenizer: the format version and the checksum.
fn first_line(json: &str) -> String {
    format!("tinderbox tokenizer 2, CRC-32C {:08x}", crc32c::crc32c(json.as_bytes()))
}

/// Counts the words of a chunk. No word continues past a document, or past the chunk if a gap follows.
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
    fn words_stop_at_document_ends_and_gaps() {
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
