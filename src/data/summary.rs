//! What a text is, found out by reading it once: its hash, its length and its alphabet.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::DataError;
use super::source::Source;
use crate::tokenizer::TokenizerKind;

/// What the first reading of a text tells.
#[derive(Debug)]
pub(super) struct Summary {
    /// SHA-256 of the text.
    pub hash: [u8; 32],
    /// The length of the text in bytes; at least 1.
    pub bytes: u64,
    /// Characters or bytes, as the tokenizer counts; 0 where only encoding can tell.
    pub n_tokens: u64,
    /// The distinct characters in code point order; none but for characters.
    pub alphabet: String,
}

impl Summary {
    /// Reads the whole text; `path` is how errors call it.
    ///
    /// # Errors
    /// If the text cannot be read, is empty or, with characters, not UTF-8.
    pub(super) fn read(
        source: &Source,
        path: &Path,
        kind: TokenizerKind,
    ) -> Result<Self, DataError> {
        let mut hash = Sha256::new();
        let (mut bytes, mut n_tokens) = (0, 0);
        let mut seen = vec![false; char::MAX as usize + 1];
        let utf8 = kind != TokenizerKind::Byte;
        source.for_each_chunk(utf8, |chunk| {
            hash.update(chunk);
            bytes += chunk.len() as u64;
            n_tokens += match kind {
                TokenizerKind::Byte => chunk.len() as u64,
                TokenizerKind::Char => mark_characters(chunk, &mut seen),
                TokenizerKind::Bpe | TokenizerKind::File => 0,
            };
            Ok(())
        })?;
        if bytes == 0 {
            return Err(DataError::Empty {
                path: path.to_owned(),
            });
        }
        let alphabet = ('\0'..=char::MAX)
            .filter(|&character| seen[character as usize])
            .collect();
        Ok(Self {
            hash: hash.finalize().into(),
            bytes,
            n_tokens,
            alphabet,
        })
    }
}

/// Notes which characters a piece of text has, and returns how many it has.
fn mark_characters(chunk: &[u8], seen: &mut [bool]) -> u64 {
    let text = std::str::from_utf8(chunk).expect("the source checks what it hands over");
    let mut n_characters = 0;
    for character in text.chars() {
        seen[character as usize] = true;
        n_characters += 1;
    }
    n_characters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(text: &str, kind: TokenizerKind) -> Summary {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, text).unwrap();
        Summary::read(&Source::find(&path).unwrap(), &path, kind).unwrap()
    }

    #[test]
    fn a_text_is_counted_as_its_tokenizer_does() {
        let text = "abc \u{1f525}\u{e9}\ncab";
        let characters = summary(text, TokenizerKind::Char);
        assert_eq!((characters.bytes, characters.n_tokens), (14, 10));
        assert_eq!(characters.alphabet, "\n abc\u{e9}\u{1f525}");
        let bytes = summary(text, TokenizerKind::Byte);
        assert_eq!((bytes.bytes, bytes.n_tokens), (14, 14));
        assert_eq!(bytes.alphabet, "");
        assert_eq!(bytes.hash, characters.hash);
    }

    #[test]
    fn the_hash_is_that_of_the_text() {
        // SHA-256 of "abc", from the standard's examples.
        let hash = summary("abc", TokenizerKind::Char).hash;
        assert_eq!(hash[..4], [0xba, 0x78, 0x16, 0xbf]);
    }
}
