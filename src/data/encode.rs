//! From text to a token file, on all cores, with memory that does not grow with the text.

use sha2::{Digest, Sha256};

use super::cache::cache_error;
use super::divide::{Divided, Half, Place};
use super::pieces::Pieces;
use super::reader::{Chunk, Needs, Reader, Unit, as_utf8};
use super::store::{Lengths, Writer};
use super::tokens::Width;
use super::{DataError, pipeline};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// A piece as it goes into the token file.
struct Encoded {
    half: Half,
    chunk: Chunk,
    n_tokens: u64,
    bytes: Vec<u8>,
}

/// Encodes a text up to the end, and returns how long both halves are, and the hash of what was
/// read, which is that of [`super::survey`] if the text did not change since.
///
/// Where documents are told apart, an end-of-text token stands behind each.
///
/// # Errors
/// If the text cannot be read or encoded, or the file not be written.
pub(super) fn encode(
    reader: Reader<'_>,
    tokenizer: &Tokenizer,
    place: Place,
    writer: &mut Writer,
) -> Result<(Lengths, [u8; 32]), DataError> {
    let unit = Needs::of(tokenizer).unit;
    let path = reader.path().to_owned();
    let divided = Divided::new(reader, place);
    let mut pieces = Pieces::new(divided, |text| last_cut(tokenizer, unit, text));
    let width = Width::of_vocabulary(tokenizer.vocab_size());
    let mut hash = Sha256::new();
    let mut lengths = Lengths::default();
    pipeline::in_order(
        || pieces.next(),
        |(half, chunk)| {
            let ids = ids_of(&chunk, tokenizer)
                .map_err(|error| DataError::Encode { path: path.clone(), source: error })?;
            Ok(Encoded { half, n_tokens: ids.len() as u64, bytes: width.encode(&ids), chunk })
        },
        |encoded| {
            encoded.chunk.hash_into(&mut hash);
            let n_bytes = encoded.chunk.text.len() as u64;
            lengths.n_tokens += encoded.n_tokens;
            lengths.bytes += n_bytes;
            if encoded.half == Half::Train {
                lengths.n_train += encoded.n_tokens;
                lengths.train_bytes += n_bytes;
            }
            let written = writer.write(&encoded.bytes);
            written.map_err(|source| cache_error(writer.path(), source))
        },
    )?;
    Ok((lengths, hash.finalize().into()))
}

/// Up to where a text may be encoded before what follows it is known; 0 if nowhere.
fn last_cut(tokenizer: &Tokenizer, unit: Unit, text: &[u8]) -> usize {
    match unit {
        Unit::Byte | Unit::Character => text.len(),
        Unit::Piece => tokenizer.cut(as_utf8(text)).unwrap_or(0),
    }
}

fn ids_of(chunk: &Chunk, tokenizer: &Tokenizer) -> Result<Vec<u32>, TokenizerError> {
    let end_of_text = tokenizer.end_of_text();
    let mut ids = Vec::new();
    for (text, is_end) in chunk.pieces() {
        ids.append(&mut tokenizer.encode_bytes(text)?);
        if is_end {
            ids.extend(end_of_text);
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::config::SourceConfig;
    use crate::data::cache::Temporary;
    use crate::data::source::Source;
    use crate::data::{Tokens, store};

    fn tokenizers(text: &str) -> [Tokenizer; 3] {
        let bpe = Tokenizer::train_bpe(300, [Ok::<_, std::convert::Infallible>(text.repeat(4))]);
        [Tokenizer::char_from_alphabet(text.chars()).unwrap(), Tokenizer::byte(), bpe.unwrap()]
    }

    static FILES: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
        ["llama2.json", "wordpiece.json"]
            .map(|name| Tokenizer::from_file(&folder.join(name)).unwrap())
    });

    fn ids(tokens: &Tokens) -> Vec<u32> {
        let mut ids = vec![0; tokens.len()];
        tokens.read(0, &mut ids);
        ids.into_iter().map(i32::cast_unsigned).collect()
    }

    /// Both halves of a file, read in chunks of this size on so many threads.
    fn encoded(
        content: &[u8],
        tokenizer: &Tokenizer,
        place: Place,
        chunk_bytes: usize,
        n_threads: usize,
    ) -> (Tokens, Tokens) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let is_records = content.starts_with(b"{\"text\"");
        let path = if is_records { path } else { path.with_extension("txt") };
        fs::write(&path, content).unwrap();
        let source = Source::find(&SourceConfig { path, ..SourceConfig::default() });
        let source = source.unwrap();
        let reader = Reader::new(&source, Needs::of(tokenizer)).with_chunk_bytes(chunk_bytes);
        let width = Width::of_vocabulary(tokenizer.vocab_size());
        let tokens = folder.path().join("tokens");
        let temporary = Temporary::create(folder.path()).unwrap();
        let mut writer = Writer::create(temporary, &tokens, width).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build();
        let write = || encode(reader, tokenizer, place, &mut writer);
        let (lengths, _) = pool.unwrap().install(write).unwrap();
        writer.finish(&[1; 32], lengths).unwrap();
        store::open(&tokens, &[1; 32], width).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))] // each learns a tokenizer

        #[test]
        fn a_text_in_chunks_is_encoded_as_the_whole(
            text in "[a-c \n\u{e9}]{1,200}|(?s:.{1,80})|( ?[a-z]{1,5}|<\\|endoftext\\|>| {1,9}){1,40}",
            chunk_bytes in 4_usize..60,
            n_threads in 1_usize..6,
            val_fraction in 0.01_f64..0.99,
        ) {
            prop_assume!(!text.starts_with('\u{feff}') && !text.starts_with("{\"text\""));
            for tokenizer in tokenizers(&text) {
                let unit = Needs::of(&tokenizer).unit;
                let n_units = match unit {
                    Unit::Character => text.chars().count(),
                    Unit::Byte | Unit::Piece => text.len(),
                };
                let place = Place::of(val_fraction, unit, n_units as u64);
                let (train, val) =
                    encoded(text.as_bytes(), &tokenizer, place, chunk_bytes, n_threads);
                let middle = usize::try_from(train.bytes()).unwrap();
                let (before, behind) = text.as_bytes().split_at(middle);
                prop_assert_eq!(ids(&train), tokenizer.encode_bytes(before).unwrap());
                prop_assert_eq!(ids(&val), tokenizer.encode_bytes(behind).unwrap());
                prop_assert_eq!(val.bytes(), behind.len() as u64);
            }
        }

        #[test]
        fn documents_are_encoded_each_on_its_own(
            documents in prop::collection::vec("( ?[a-z]{1,5}|\n| {1,9}){1,9}", 1..20),
            chunk_bytes in 4_usize..60,
            n_threads in 1_usize..6,
        ) {
            let lines = documents.iter().map(|text| serde_json::json!({ "text": text }));
            let content: String = lines.map(|line| line.to_string() + "\n").collect();
            let [.., bpe] = tokenizers(&documents.concat());
            // One that tells no place to cut at, and one that tells few.
            let [llama2, wordpiece] = FILES.each_ref();
            for tokenizer in [&bpe, llama2, wordpiece] {
                let content = content.as_bytes();
                let (_, all) =
                    encoded(content, tokenizer, Place::beginning(), chunk_bytes, n_threads);
                let expected = documents.iter().flat_map(|text| {
                    let mut ids = tokenizer.encode(text).unwrap();
                    ids.extend(tokenizer.end_of_text());
                    ids
                });
                prop_assert_eq!(ids(&all), expected.collect::<Vec<_>>());
                prop_assert_eq!(all.bytes(), documents.concat().len() as u64);
            }
        }
    }
}
