//! Tokenizers with a table: one token for each character of an alphabet, or for each byte.
//!
//! Their `tokenizer.json` is a BPE model without merges. Characters stand for themselves and are joined when
//! decoded; bytes go through GPT-2's byte-level alphabet.

use std::collections::BTreeSet;

use tokenizers::ModelWrapper;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::words::byte_alphabet;
use super::{TokenizerError, TokenizerKind};

/// Characters or bytes, and their ids.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) kind: TokenizerKind,
    /// The bytes of each token, by id.
    pub(super) bytes: Vec<Box<[u8]>>,
    /// The id of each character, by code point, or [`UNKNOWN`]. Empty for bytes.
    ids: Vec<u32>,
}

/// Marks a character without an id.
const UNKNOWN: u32 = u32::MAX;

impl Table {
    /// One token for each distinct character, numbered in code point order.
    pub(super) fn characters(alphabet: impl IntoIterator<Item = char>) -> Result<Self, TokenizerError> {
        let mut alphabet: Vec<char> = alphabet.into_iter().collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        let last = *alphabet.last().ok_or(TokenizerError::EmptyAlphabet)?;
        let mut ids = vec![UNKNOWN; last as usize + 1];
        for (id, &character) in (0..).zip(&alphabet) {
            ids[character as usize] = id;
        }
        let bytes = alphabet.iter().map(|character| character.to_string().into_bytes().into());
        Ok(Self { kind: TokenizerKind::Char, bytes: bytes.collect(), ids })
    }

    /// One token for each byte; the id is the byte.
    pub(super) fn bytes() -> Self {
        let bytes = (0..=u8::MAX).map(|byte| [byte].into()).collect();
        Self { kind: TokenizerKind::Byte, bytes, ids: Vec::new() }
    }

    /// The table that does the same as a tokenizer of the library, if there is one.
    pub(super) fn of(library: &tokenizers::Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(model) = library.get_model() else {
            return None;
        };
        let vocab = model.get_vocab();
        let table = if library.get_pre_tokenizer().is_some() {
            (vocab.len() == 256).then(Self::bytes)?
        } else {
            let alphabet: Option<Vec<char>> = vocab.keys().map(|token| only_char(token)).collect();
            Self::characters(alphabet?).ok()?
        };
        // The JSON has every setting that makes the library split or number text in another way.
        (library.to_string(true).ok()? == table.to_json()).then_some(table)
    }

    pub(super) fn to_json(&self) -> String {
        let bpe = |vocab: Vocab| {
            let builder = BPE::builder().vocab_and_merges(vocab, Vec::new());
            tokenizers::Tokenizer::new(builder.build().expect("there are no merges"))
        };
        let mut library;
        if self.kind == TokenizerKind::Byte {
            let vocab = byte_alphabet().map(|(byte, c)| (c.to_string(), u32::from(byte)));
            library = bpe(vocab.collect());
            let byte_level = ByteLevel::new(false, true, false);
            library.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
        } else {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("a character");
            let vocab = self.bytes.iter().map(|bytes| text(bytes)).zip(0..);
            library = bpe(vocab.collect());
            library.with_decoder(Some(Fuse::new()));
        }
        library.to_string(true).expect("plain data")
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if self.kind == TokenizerKind::Byte {
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
            return Ok(ids);
        }
        let unknown = text.chars().filter(|&character| self.id(character) == UNKNOWN);
        let characters = unknown.collect::<BTreeSet<_>>().into_iter().collect();
        Err(TokenizerError::UnknownCharacters { characters })
    }

    /// The id of a character, or [`UNKNOWN`].
    fn id(&self, character: char) -> u32 {
        self.ids.get(character as usize).copied().unwrap_or(UNKNOWN)
    }
}

fn only_char(text: &str) -> Option<char> {
    let mut characters = text.chars();
    characters.next().filter(|_| characters.next().is_none())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::Tokenizer;

    const TRICKY: &str = "a\r\n\n\t  b\u{e9}e\u{301}\u{1f525}\0\u{feff}\u{200d}<s>\u{fffd} ";

    fn both_for(text: &str) -> [Tokenizer; 2] {
        [Tokenizer::char_from_alphabet(text.chars()).unwrap(), Tokenizer::byte()]
    }

    fn reread(json: &str) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_json(json.to_owned(), Path::new("tokenizer.json"))
    }

    #[test]
    fn written_tables_are_recognised() {
        for tokenizer in both_for(TRICKY) {
            let again = reread(&tokenizer.to_json()).unwrap();
            assert_eq!(again, tokenizer);
            assert_eq!(again.to_json(), tokenizer.to_json());
        }
    }

    fn assert_like_the_library(text: &str) {
        for tokenizer in both_for(text) {
            let library = tokenizers::Tokenizer::from_bytes(tokenizer.to_json()).unwrap();
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(library.encode(text, false).unwrap().get_ids(), ids);
            assert_eq!(library.decode(&ids, false).unwrap(), text);
            assert_eq!(library.get_vocab_size(true), tokenizer.vocab_size());
        }
    }

    #[test]
    fn the_library_gives_the_same_ids() {
        assert_like_the_library(TRICKY);
        // More than the library keeps in its cache of words, in one word.
        assert_like_the_library(&TRICKY.repeat(500));
    }

    proptest! {
        #[test]
        fn the_library_gives_the_same_ids_for_any_text(text in "\\PC{1,40}|(?s:.{1,40})") {
            assert_like_the_library(&text);
        }
    }

    #[test]
    fn other_tokenizers_are_not_taken_for_tables() {
        let bytes = Tokenizer::byte().to_json();
        let characters = Tokenizer::char_from_alphabet("ab".chars()).unwrap().to_json();
        assert!(matches!(reread("{}"), Err(TokenizerError::Malformed { .. })));
        let changed = [
            bytes.replace("\"add_prefix_space\": false", "\"add_prefix_space\": true"),
            bytes.replace("\"a\": 97", "\"a\": 98").replace("\"b\": 98", "\"b\": 97"),
            characters.replace("\"a\": 0", "\"a\": 1").replace("\"b\": 1", "\"b\": 0"),
            characters.replace("\"b\": 1", "\"bc\": 1"),
            characters
                .replace("\"merges\": []", "\"merges\": [[\"a\", \"b\"]]")
                .replace("\"b\": 1", "\"b\": 1, \"ab\": 2"),
            characters.replace("\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}"),
        ];
        for json in changed {
            assert!(json != bytes && json != characters, "nothing was changed");
            let other = reread(&json).unwrap();
            assert_eq!(other.kind(), TokenizerKind::File);
            assert_eq!(other.to_json(), json);
        }
    }

    #[test]
    fn no_ids_decode_to_no_text_whatever_the_decoder() {
        let characters = Tokenizer::char_from_alphabet("ab".chars()).unwrap();
        let decoder = "\"type\": \"BPEDecoder\", \"suffix\": \"</w>\"";
        let json = characters.to_json().replace("\"type\": \"Fuse\"", decoder);
        let tokenizer = reread(&json).unwrap();
        assert_eq!(tokenizer.kind(), TokenizerKind::File);
        assert_eq!(tokenizer.decode(&[]), "");
        assert_eq!(tokenizer.decode(&[1, 0]), "ba");
    }
}
