//! Detects random, encrypted or compressed data, where only byte frequencies can be learned.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::Tokens;
use tinderbox_model::tokenizer::Tokenizer;

/// The number of samples of a text, and the tokens in each.
const N_PLACES: usize = 64;
const TOKENS_AT_PLACE: usize = 1024;

/// The shortest sample to judge: in less, even natural language repeats little.
const MIN_BYTES: usize = 1 << 14;

/// The lowest entropy to judge, in bits per byte: below it, compression codes are longer.
const MIN_ENTROPY: f64 = 0.9;

/// From this ratio of compressed size to the entropy of its bytes, a sample seems random. Natural language and programs
/// are below 0.9, random bytes at 1 or above.
const RANDOM_FROM: f64 = 0.98;

/// Whether a text seems random, judged by parts of it.
pub(super) fn seems_random(tokens: &Tokens, tokenizer: &Tokenizer) -> bool {
    is_random(&sample(tokens, tokenizer))
}

/// The bits per byte of a sample compressed with gzip's method.
pub(crate) fn packed_bits_per_byte(sample: &[u8]) -> f64 {
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::default());
    packed.write_all(sample).expect("memory takes all that is written");
    let packed = packed.finish().expect("memory takes all that is written");
    packed.len() as f64 * 8.0 / sample.len().max(1) as f64
}

fn is_random(sample: &[u8]) -> bool {
    let entropy = entropy(sample);
    sample.len() >= MIN_BYTES && entropy >= MIN_ENTROPY && packed_bits_per_byte(sample) >= RANDOM_FROM * entropy
}

/// The entropy of the bytes, each by itself, in bits.
fn entropy(sample: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in sample {
        counts[usize::from(*byte)] += 1;
    }
    let shares = counts.iter().filter(|count| **count > 0).map(|count| f64::from(*count) / sample.len() as f64);
    shares.map(|share| -share * share.log2()).sum()
}

/// The bytes of a text, or of places that are spread evenly over it.
fn sample(tokens: &Tokens, tokenizer: &Tokenizer) -> Vec<u8> {
    let is_whole = tokens.len() <= N_PLACES * TOKENS_AT_PLACE;
    let (n_places, n) = if is_whole { (1, tokens.len()) } else { (N_PLACES, TOKENS_AT_PLACE) };
    let mut bytes = Vec::new();
    let mut ids = vec![0; n];
    for place in 0..n_places {
        tokens.read(place * (tokens.len() / n_places), &mut ids);
        let ids: Vec<u32> = ids.iter().map(|id| id.cast_unsigned()).collect();
        let of_tokens: Option<Vec<&[u8]>> = ids.iter().map(|id| tokenizer.token_bytes(*id)).collect();
        match of_tokens {
            Some(of_tokens) => bytes.extend(of_tokens.concat()),
            None => bytes.extend(tokenizer.decode(&ids).into_bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn random(n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut bytes);
        bytes
    }

    #[test]
    fn random_bytes_are_detected() {
        let of = |bytes: &[u8]| {
            let ids: Vec<u32> = bytes.iter().map(|byte| u32::from(*byte)).collect();
            seems_random(&Tokens::from_ids(&ids, ids.len() as u64), &Tokenizer::byte())
        };
        for n in [MIN_BYTES, 1 << 20] {
            let noise = random(n);
            assert!(of(&noise), "{n} bytes");
            let digits: Vec<u8> = noise.iter().map(|byte| b'0' + byte % 8).collect();
            assert!(of(&digits), "{n} octal digits");
        }
        let texts = [
            ("stories", include_str!("../../../../data/stories.txt")),
            ("prose", include_str!("../../../../docs/attention.md")),
            ("a program", include_str!("reader.rs")),
            ("a table", include_str!("../../../../Cargo.lock")),
        ];
        for (name, text) in texts {
            let bytes = text.as_bytes();
            assert!(!of(bytes), "{name}");
            assert!(bytes.chunks_exact(MIN_BYTES).all(|part| !of(part)), "a part of {name}");
        }
        let chinese: String = random(1 << 16)
            .chunks(2)
            .map(|pair| ['\u{4e00}', '\u{732b}', '\u{3002}'][usize::from(pair[0] % 3)])
            .collect();
        assert!(!of(chinese.as_bytes()), "characters of several bytes");
        assert!(!of(&[b'a'; MIN_BYTES]) && !of(&random(100)), "one character, and too little");
    }
}
