//! From text to a token file, on all cores, with memory that does not grow with the text.

use sha2::{Digest, Sha256};

use super::cache::cache_error;
use super::divide::{Divided, Half, Place};
use super::pieces::Pieces;
use super::reader::{Chunk, Needs, Reader, Unit, as_utf8};
use super::source::Source;
use super::store::{Extent, Writer};
use super::tokens::Width;
use super::{DataError, pipeline};
use crate::tokenizer::Tokenizer;

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
    source: &Source,
    tokenizer: &Tokenizer,
    place: Place,
    writer: &mut Writer,
) -> Result<(Extent, [u8; 32]), DataError> {
    let needs = Needs::of(tokenizer);
    let divided = Divided::new(Reader::new(source, needs), place);
    let mut pieces = Pieces::new(divided, |text| last_cut(tokenizer, needs.unit, text));
    let width = Width::of_vocabulary(tokenizer.vocab_size());
    let mut hash = Sha256::new();
    let mut extent = Extent::default();
    pipeline::in_order(
        || pieces.next(),
        |(half, chunk)| {
            let ids = ids_of(&chunk, tokenizer).map_err(|error| DataError::Encode {
                path: source.path.clone(),
                source: error,
            })?;
            Ok(Encoded {
                half,
                n_tokens: ids.len() as u64,
                bytes: width.encode(&ids),
                chunk,
            })
        },
        |encoded| {
            encoded.chunk.hash_into(&mut hash);
            let n_bytes = encoded.chunk.text.len() as u64;
            extent.n_tokens += encoded.n_tokens;
            extent.bytes += n_bytes;
            if encoded.half == Half::Train {
                extent.n_train += encoded.n_tokens;
                extent.train_bytes += n_bytes;
            }
            let written = writer.write(&encoded.bytes);
            written.map_err(|source| cache_error(writer.path(), source))
        },
    )?;
    Ok((extent, hash.finalize().into()))
}

/// Up to where a text may be encoded before what follows it is known; 0 if nowhere.
fn last_cut(tokenizer: &Tokenizer, unit: Unit, text: &[u8]) -> usize {
    match unit {
        Unit::Byte | Unit::Character => text.len(),
        Unit::Text => tokenizer.cut(as_utf8(text)).unwrap_or(0),
    }
}

fn ids_of(
    chunk: &Chunk,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>, crate::tokenizer::TokenizerError> {
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
