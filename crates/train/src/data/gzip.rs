//! What gzip makes of a text: a mark that a model of the text should pass.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::Split;
use tinderbox_model::tokenizer::Tokenizer;

/// The number of bytes of a text that are compressed: plenty for gzip's window of 32 KiB.
const SAMPLE_BYTES: usize = 1 << 20;

/// The bits per byte of the first MiB of a text, compressed with gzip's method.
pub fn gzip_bits_per_byte(text: &[u8]) -> f64 {
    let text = &text[..text.len().min(SAMPLE_BYTES)];
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::default());
    packed.write_all(text).expect("memory takes all that is written");
    let packed = packed.finish().expect("memory takes all that is written");
    packed.len() as f64 * 8.0 / text.len().max(1) as f64
}

/// The beginning of a split, as much of each of its texts, without its ends of text.
pub(super) fn sample(split: &Split, tokenizer: &Tokenizer) -> Vec<u8> {
    let mut sample = Vec::new();
    for tokens in split.texts() {
        let mut ids = vec![0; tokens.len().min(SAMPLE_BYTES / split.texts().len())];
        tokens.read(0, &mut ids);
        let ids = ids.into_iter().map(i32::cast_unsigned).filter(|id| Some(*id) != tokenizer.end_of_text());
        let ids: Vec<u32> = ids.collect();
        let pieces: Option<Vec<&[u8]>> = ids.iter().map(|id| tokenizer.token_bytes(*id)).collect();
        sample.extend(pieces.map_or_else(|| tokenizer.decode(&ids).into_bytes(), |pieces| pieces.concat()));
    }
    sample
}
