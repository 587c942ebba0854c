//! Tokenizers with one token for each character of an alphabet, or for each byte.
//!
//! For the library they are BPE models without merges. Characters stand for themselves and are joined when decoded;
//! bytes go through GPT-2's byte-level alphabet.

use std::collections::BTreeSet;

use tokenizers::decoders::fuse::Fuse;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{ModelWrapper, Tokenizer};

use super::words::byte_alphabet;
use super::{TokenizerError, TokenizerKind};

/// One token for each distinct character, numbered in code point order.
pub(super) fn characters(alphabet: impl IntoIterator<Item = char>) -> Result<Tokenizer, TokenizerError> {
    let alphabet: BTreeSet<char> = alphabet.into_iter().collect();
    if alphabet.is_empty() {
        return Err(TokenizerError::EmptyAlphabet);
    }
    let mut library = without_merges(alphabet.iter().map(char::to_string).zip(0..).collect());
    library.with_decoder(Some(Fuse::new()));
    Ok(library)
}

/// One token for each byte; the id is the byte.
pub(super) fn bytes() -> Tokenizer {
    let vocab = byte_alphabet().map(|(byte, character)| (character.to_string(), u32::from(byte)));
    let mut library = without_merges(vocab.collect());
    let byte_level = ByteLevel::new(false, true, false);
    library.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
    library
}

fn without_merges(vocab: Vocab) -> Tokenizer {
    let model = BPE::builder().vocab_and_merges(vocab, Vec::new()).build();
    Tokenizer::new(model.expect("there are no merges"))
}

/// Whether a tokenizer does the same as [`characters`] or as [`bytes`].
pub(super) fn kind_of(library: &Tokenizer) -> Option<TokenizerKind> {
    let ModelWrapper::BPE(model) = library.get_model() else {
        return None;
    };
    let vocab = model.get_vocab();
    let (kind, table) = if library.get_pre_tokenizer().is_some() {
        (vocab.len() == 256).then(|| (TokenizerKind::Byte, bytes()))?
    } else {
        let alphabet: Option<Vec<char>> = vocab.keys().map(|token| only_char(token)).collect();
        (TokenizerKind::Char, characters(alphabet?).ok()?)
    };
    // The JSON has every setting that makes the library split or number text in another way.
    (library.to_string(true).ok()? == table.to_string(true).ok()?).then_some(kind)
}

/// Marks a character without an id.
const UNKNOWN: u32 = u32::MAX;

/// The id of each character, by code point, or [`UNKNOWN`].
#[derive(Debug)]
pub(super) struct CharacterIds(Vec<u32>);

impl CharacterIds {
    /// Those of [`characters`].
    pub(super) fn of(library: &Tokenizer) -> Self {
        let mut ids = Vec::new();
        for (token, id) in library.get_vocab(false) {
            let code_point = only_char(&token).expect("each token is a character") as usize;
            if ids.len() <= code_point {
                ids.resize(code_point + 1, UNKNOWN);
            }
            ids[code_point] = id;
        }
        Self(ids)
    }

    fn get(&self, character: char) -> u32 {
        self.0.get(character as usize).copied().unwrap_or(UNKNOWN)
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len());
        ids.extend(text.chars().map(|character| self.get(character)));
        if !ids.contains(&UNKNOWN) {
            return Ok(ids);
        }
        let unknown: BTreeSet<char> = text.chars().filter(|&character| self.get(character) == UNKNOWN).collect();
        Err(TokenizerError::UnknownCharacters { characters: unknown.into_iter().collect() })
    }
}

fn only_char(text: &str) -> Option<char> {
    let mut characters = text.chars();
    characters.next().filter(|_| characters.next().is_none())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Tokenizer;
    use super::*;

    fn reread(json: &str) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_json(json.to_owned(), Path::new("tokenizer.json"))
    }

    #[test]
    fn tables_are_recognised_and_other_tokenizers_are_not_taken_for_them() {
        let tables = [Tokenizer::byte(), Tokenizer::char_from_alphabet("ab".chars()).unwrap()];
        for tokenizer in &tables {
            let again = reread(&tokenizer.to_json()).unwrap();
            assert_eq!((again.kind(), &again), (tokenizer.kind(), tokenizer));
        }
        let [bytes, characters] = tables.map(|tokenizer| tokenizer.to_json());
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
