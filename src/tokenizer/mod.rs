//! How text becomes token ids, and ids become text again.
//!
//! Two kinds: characters, whose vocabulary is the alphabet of a corpus in code point order, and
//! bytes, where every id is its byte. Both are written as a `tokenizer.json` of the `tokenizers`
//! library, which gives the same ids for the same text; here, tables stand in for its models, since
//! a corpus is one word of a gigabyte to them.
//!
//! This module knows nothing of files of text, or of which split an id belongs to.

mod error;
mod json;
mod stream;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

pub use crate::config::TokenizerKind;
pub use error::TokenizerError;
pub(crate) use error::described_characters;
pub use stream::DecodeStream;

/// Turns text into token ids and back. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenizer {
    tables: Arc<Tables>,
}

#[derive(Debug, PartialEq, Eq)]
struct Tables {
    kind: TokenizerKind,
    /// The bytes of each token, by id.
    bytes: Vec<Box<[u8]>>,
    /// The id of each character, by code point; [`UNKNOWN`] where there is none. Empty for bytes.
    ids: Vec<u32>,
}

/// Stands where a character has no id.
const UNKNOWN: u32 = u32::MAX;

impl Tokenizer {
    /// A tokenizer with one token for each distinct character, numbered in code point order.
    ///
    /// # Errors
    /// If there are no characters.
    pub fn char_from_alphabet(
        alphabet: impl IntoIterator<Item = char>,
    ) -> Result<Self, TokenizerError> {
        let mut alphabet: Vec<char> = alphabet.into_iter().collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        let last = *alphabet.last().ok_or(TokenizerError::EmptyAlphabet)?;
        let mut ids = vec![UNKNOWN; last as usize + 1];
        for (id, &character) in (0..).zip(&alphabet) {
            ids[character as usize] = id;
        }
        let bytes = alphabet
            .iter()
            .map(|character| character.to_string().into_bytes().into());
        let tables = Tables {
            kind: TokenizerKind::Char,
            bytes: bytes.collect(),
            ids,
        };
        Ok(Self {
            tables: Arc::new(tables),
        })
    }

    /// A tokenizer with one token for each byte; the id is the byte.
    #[must_use]
    pub fn byte() -> Self {
        let bytes = (0..=u8::MAX).map(|byte| [byte].into()).collect();
        let tables = Tables {
            kind: TokenizerKind::Byte,
            bytes,
            ids: Vec::new(),
        };
        Self {
            tables: Arc::new(tables),
        }
    }

    /// Reads a `tokenizer.json` that [`Tokenizer::to_json`] wrote.
    ///
    /// # Errors
    /// If the file cannot be read, is not a tokenizer, or is one of another kind.
    pub fn load(path: &Path) -> Result<Self, TokenizerError> {
        let text = std::fs::read_to_string(path).map_err(|source| TokenizerError::Read {
            path: path.to_owned(),
            source,
        })?;
        json::read(&text, path)
    }

    /// The content of this tokenizer's `tokenizer.json`: the same bytes for the same tokenizer.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::write(self)
    }

    /// How many tokens there are; ids are below this.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.tables.bytes.len()
    }

    /// What a token stands for.
    #[must_use]
    pub fn kind(&self) -> TokenizerKind {
        self.tables.kind
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// If the text has characters without a token; the error names every one of them.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if self.kind() == TokenizerKind::Byte {
            return Ok(text.bytes().map(u32::from).collect());
        }
        let mut ids = Vec::with_capacity(text.len());
        let mut all_known = true;
        ids.extend(text.chars().map(|character| {
            let id = self.id(character);
            all_known &= id != UNKNOWN;
            id
        }));
        if all_known {
            Ok(ids)
        } else {
            Err(self.unknown_characters(text))
        }
    }

    /// The ids of bytes, which a byte tokenizer does not need to be UTF-8.
    ///
    /// # Errors
    /// For a character tokenizer: if the bytes are not UTF-8, or have characters without a token.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>, TokenizerError> {
        match self.kind() {
            TokenizerKind::Byte => Ok(bytes.iter().map(|&byte| u32::from(byte)).collect()),
            TokenizerKind::Char => {
                let text = std::str::from_utf8(bytes).map_err(|error| TokenizerError::NotUtf8 {
                    offset: error.valid_up_to(),
                })?;
                self.encode(text)
            }
        }
    }

    /// The text of ids. Bytes that are not UTF-8 become U+FFFD, the replacement character.
    ///
    /// # Panics
    /// If an id is not below [`Tokenizer::vocab_size`].
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes = ids
            .iter()
            .flat_map(|&id| self.token_bytes(id))
            .copied()
            .collect();
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// The bytes that a token stands for.
    ///
    /// # Panics
    /// If the id is not below [`Tokenizer::vocab_size`].
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        &self.tables.bytes[id as usize]
    }

    /// The id of a character, or [`UNKNOWN`].
    fn id(&self, character: char) -> u32 {
        self.tables
            .ids
            .get(character as usize)
            .copied()
            .unwrap_or(UNKNOWN)
    }

    fn unknown_characters(&self, text: &str) -> TokenizerError {
        let unknown = text
            .chars()
            .filter(|&character| self.id(character) == UNKNOWN);
        let characters = unknown.collect::<BTreeSet<_>>();
        TokenizerError::UnknownCharacters {
            characters: characters.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn character_ids_follow_code_points() {
        let tokenizer = Tokenizer::char_from_alphabet("hello, \u{e9}\n".chars()).unwrap();
        assert_eq!(tokenizer.vocab_size(), 8);
        assert_eq!(
            tokenizer.encode("\n ,ehlo\u{e9}").unwrap(),
            [0, 1, 2, 3, 4, 5, 6, 7]
        );
        assert_eq!(tokenizer.token_bytes(7), "\u{e9}".as_bytes());
        assert_eq!(tokenizer.kind(), TokenizerKind::Char);
    }

    #[test]
    fn byte_ids_are_bytes() {
        let tokenizer = Tokenizer::byte();
        assert_eq!(tokenizer.vocab_size(), 256);
        assert_eq!(tokenizer.encode("\0a\u{e9}").unwrap(), [0, 97, 0xc3, 0xa9]);
        assert_eq!(tokenizer.encode_bytes(&[0xff, 0x80]).unwrap(), [255, 128]);
        assert_eq!(tokenizer.decode(&[0xff, 97]), "\u{fffd}a");
    }

    #[test]
    fn unknown_characters_are_all_named_once() {
        let tokenizer = Tokenizer::char_from_alphabet("abc".chars()).unwrap();
        let error = tokenizer.encode("a\u{1f525}b\n\u{e9}\n").unwrap_err();
        let message = error.to_string();
        for name in [
            "'\\n' (U+000A)",
            "'\u{e9}' (U+00E9)",
            "'\u{1f525}' (U+1F525)",
        ] {
            assert_eq!(message.matches(name).count(), 1, "{message}");
        }
        assert!(message.contains("kind = \"byte\""), "{message}");
    }

    #[test]
    fn a_long_list_of_unknown_characters_is_cut() {
        let tokenizer = Tokenizer::char_from_alphabet("a".chars()).unwrap();
        let text: String = ('\u{4e00}'..'\u{4f00}').collect();
        let message = tokenizer.encode(&text).unwrap_err().to_string();
        assert!(
            message.contains("256 characters") && message.contains("236 more"),
            "{message}"
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_by_a_character_tokenizer() {
        let tokenizer = Tokenizer::char_from_alphabet("abc".chars()).unwrap();
        let error = tokenizer.encode_bytes(b"ab\xff").unwrap_err();
        assert!(matches!(error, TokenizerError::NotUtf8 { offset: 2 }));
    }

    #[test]
    fn an_empty_alphabet_is_refused() {
        let error = Tokenizer::char_from_alphabet([]).unwrap_err();
        assert!(matches!(error, TokenizerError::EmptyAlphabet));
    }

    proptest! {
        #[test]
        fn text_comes_back_exactly(text in any::<String>(), more in "[\r\n\t \u{300}]{0,5}") {
            let text = text + "a" + &more;
            for tokenizer in
                [Tokenizer::char_from_alphabet(text.chars()).unwrap(), Tokenizer::byte()]
            {
                let ids = tokenizer.encode(&text).unwrap();
                prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
                prop_assert_eq!(tokenizer.decode(&ids), &*text);
                prop_assert_eq!(tokenizer.encode_bytes(text.as_bytes()).unwrap(), ids);
            }
        }
    }
}
