//! Trains a BPE tokenizer on the training splits of texts.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::DataError;
use super::cache::{Cache, Temporary};
use super::corpus::Text;
use super::reader::{Chunk, Needs, OnProgress, Purpose, Reader, Reading, as_utf8, report};
use super::split::{Half, SplitReader};
use crate::tokenizer::{END_OF_TEXT, Tokenizer};

/// The version of the training: cached tokenizers of other versions are not used.
const RULES: &[u8] = concat!("byte-level bpe 2, tinderbox ", env!("CARGO_PKG_VERSION")).as_bytes();

/// The most bytes of text that merges are learned from, which are plenty: of more, chunks spread evenly over the
/// text are used. Memory grows with the distinct words, and so is bounded.
const MAX_BYTES: u64 = 1 << 28;

/// Trains byte-level BPE on the texts, whatever their weights, or takes the tokenizer of an earlier run on the
/// same texts from the cache.
pub(super) fn train_bpe(
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
        key.update(text.scan.hash);
    }
    let path = cache.path(&key.finalize().into(), "tokenizer.json");
    if let Ok(tokenizer) = Tokenizer::from_file(&path) {
        mark_used(&path);
        return Ok(tokenizer);
    }
    let n_bytes: u64 = texts.iter().map(|text| text.scan.bytes).sum();
    let stride = n_bytes.div_ceil(MAX_BYTES);
    let chunks = texts.iter().flat_map(|text| training_chunks(text, stride, on_progress));
    let before_merges = std::iter::once_with(|| {
        let path = &texts.last()?.source.path;
        let purpose = Purpose::FindMerges;
        report(on_progress, &Reading { path, purpose, bytes: n_bytes, of: Some(n_bytes) }).err()
    });
    let chunks = chunks.chain(before_merges.flatten().map(Err));
    let tokenizer = Tokenizer::train_bpe(vocab_size, chunks)?;
    let fail = |source| DataError::cache(&path, source);
    let mut temporary = Temporary::create(&cache.folder).map_err(fail)?;
    temporary.file.write_all(tokenizer.to_json().as_bytes()).map_err(fail)?;
    temporary.rename(&path).map_err(fail)?;
    Ok(tokenizer)
}

/// Sets the time by which the cache knows when a file was used.
fn mark_used(path: &Path) {
    let file = File::options().append(true).open(path);
    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
}

/// Every `stride`th chunk of the training split of a text.
fn training_chunks<'a>(
    text: &'a Text,
    stride: u64,
    on_progress: OnProgress<'a>,
) -> impl Iterator<Item = Result<String, DataError>> + 'a {
    let reader = Reader::new(&text.source, Needs::PIECES);
    let reader = reader.with_progress(on_progress, Purpose::CountWords, Some(text.scan.bytes));
    let mut reader = SplitReader::new(reader, text.split_point);
    let chunks = std::iter::from_fn(move || match reader.next() {
        Ok(Some((Half::Train, chunk))) => Some(Ok(chunk)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    (0..)
        .zip(chunks)
        .filter(move |(idx, chunk)| chunk.is_err() || u64::is_multiple_of(*idx, stride))
        .map(move |(_, chunk)| Ok(with_ends(&chunk?, stride > 1)))
}

/// The text of a chunk with the end-of-text token behind each document, and behind the chunk if a gap follows.
fn with_ends(chunk: &Chunk, has_gap: bool) -> String {
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
        assert_eq!(with_ends(&chunk, false), twice("a|bc|"));
        assert_eq!(with_ends(&chunk, true), twice("a|bc||"));
    }
}
