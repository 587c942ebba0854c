//! Tokenizers with one token for each character of an alphabet, or for each byte.
//!
//! To the library they are BPE models without merges. Characters stand for themselves and are joined when decoded;
//! bytes go through GPT-2's byte-level alphabet.

use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;

use tokenizers::decoders::fuse::Fuse;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

use super::byte_alphabet::byte_alphabet;
use super::{END_OF_TEXT, TokenizerError, TokenizerKind};

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

pub(super) fn with_end_of_text(mut library: Tokenizer) -> Tokenizer {
    let added = library.add_special_tokens([AddedToken::from(END_OF_TEXT, true)]);
    assert_eq!(added.ok(), Some(1), "the tokenizer has no normalizer and no such token");
    library
}

fn without_merges(vocab: Vocab) -> Tokenizer {
    let model = BPE::builder().vocab_and_merges(vocab, Vec::new()).build();
    Tokenizer::new(model.expect("a vocabulary without merges is valid"))
}

/// Whether a tokenizer is equivalent to [`characters`] or [`bytes`], with or without an end-of-text token.
pub(super) fn kind_of(library: &Tokenizer) -> Option<TokenizerKind> {
    let ModelWrapper::BPE(model) = library.get_model() else {
        return None;
    };
    let (kind, table) = if library.get_pre_tokenizer().is_some() {
        (library.get_vocab_size(false) == 256).then(|| (TokenizerKind::Byte, bytes()))?
    } else {
        let alphabet: Option<Vec<char>> = model.get_vocab().keys().map(|token| only_char(token)).collect();
        (TokenizerKind::Char, characters(alphabet?).ok()?)
    };
    let table = match library.get_added_tokens_decoder().is_empty() {
        true => table,
        false => with_end_of_text(table),
    };
    // The JSON has every setting that affects how the library splits or numbers text.
    (library.to_string(true).ok()? == table.to_string(true).ok()?).then_some(kind)
}

/// Marks a character without an id.
const UNKNOWN: u32 = u32::MAX;

/// The id of each character, by code point, or [`UNKNOWN`].
#[derive(Debug)]
pub(super) struct CharacterIds(Vec<u32>);

impl CharacterIds {
    /// The ids of [`characters`].
    pub(super) fn from_library(library: &Tokenizer) -> Self {
        let mut ids = Vec::new();
        for (token, id) in library.get_vocab(false) {
            let code_point = only_char(&token).expect("every token is a character") as usize;
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

    /// The ids of a text; `end`, if given, is the id of [`END_OF_TEXT`].
    pub(super) fn encode(&self, text: &str, end: Option<u32>) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len());
        for (section, end) in sections(text.as_bytes(), end) {
            ids.extend(text[section].chars().map(|character| self.get(character)));
            ids.extend(end);
        }
        if !ids.contains(&UNKNOWN) {
            return Ok(ids);
        }
        let characters = sections(text.as_bytes(), end).flat_map(|(section, _)| text[section].chars());
        let unknown: BTreeSet<char> = characters.filter(|&character| self.get(character) == UNKNOWN).collect();
        Err(TokenizerError::UnknownCharacters { characters: unknown.into_iter().collect() })
    }
}

/// The ids of bytes; `end`, if given, is the id of [`END_OF_TEXT`].
pub(super) fn byte_ids(text: &[u8], end: Option<u32>) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len());
    for (section, end) in sections(text, end) {
        ids.extend(text[section].iter().map(|&byte| u32::from(byte)));
        ids.extend(end);
    }
    ids
}

/// The parts of a text between [`END_OF_TEXT`]s, each with the `end` after it; without `end`, the whole text.
fn sections(text: &[u8], end: Option<u32>) -> impl Iterator<Item = (Range<usize>, Option<u32>)> {
    let mut start = Some(0);
    iter::from_fn(move || {
        let from = start.take()?;
        let is_end = |at: &usize| text[*at] == b'<' && text[*at..].starts_with(END_OF_TEXT.as_bytes());
        match end.and_then(|end| Some(((from..text.len()).find(is_end)?, end))) {
            Some((at, end)) => {
                start = Some(at + END_OF_TEXT.len());
                Some((from..at, Some(end)))
            }
            None => Some((from..text.len(), None)),
        }
    })
}

/// The number of bytes at the end of a text that could become an [`END_OF_TEXT`] if the text continues.
pub(super) fn open_end(text: &[u8]) -> usize {
    let end = END_OF_TEXT.as_bytes();
    (1..end.len()).rev().find(|n| text.ends_with(&end[..*n])).unwrap_or(0)
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
    fn kind_of_recognises_tables_and_nothing_else() {
        let tables = [Tokenizer::byte(), Tokenizer::char_from_alphabet("ab".chars()).unwrap()];
        let ending = tables.clone().map(Tokenizer::with_end_of_text);
        for tokenizer in tables.iter().chain(&ending) {
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
            ending[1].to_json().replace("\"lstrip\": false", "\"lstrip\": true"),
            ending[0].to_json().replace("\"special\": true", "\"special\": false"),
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
    fn end_of_text_follows_table() {
        let characters = Tokenizer::char_from_alphabet("<|ab".chars()).unwrap().with_end_of_text();
        let bytes = Tokenizer::byte().with_end_of_text();
        for (tokenizer, end) in [(&characters, 4), (&bytes, 256)] {
            assert_eq!((tokenizer.end_of_text(), tokenizer.vocab_size()), (Some(end), end as usize + 1));
            assert_eq!(tokenizer.piece(end), END_OF_TEXT);
            assert_eq!(tokenizer.clone().with_end_of_text(), *tokenizer, "once is enough");
        }
        let error = characters.encode("a?<|endoftext|>!").unwrap_err();
        assert!(matches!(error, TokenizerError::UnknownCharacters { characters } if characters == ['!', '?']));
        assert_eq!(bytes.encode_bytes(b"\xff<|endoftext|>\x80").unwrap(), [255, 256, 128]);
    }

    #[test]
    fn safe_split_never_divides_end_of_text() {
        let bytes = Tokenizer::byte().with_end_of_text();
        for n in 1..END_OF_TEXT.len() {
            let text = format!("ab<|{}", &END_OF_TEXT[..n]);
            assert_eq!(bytes.safe_split(&text), Some(4), "{text}");
            assert_eq!(Tokenizer::byte().safe_split(&text), Some(text.len()));
            assert_eq!(bytes.safe_split(&END_OF_TEXT[..n]), None);
        }
    }

    #[test]
    fn no_ids_decode_to_empty_text_with_every_decoder() {
        let characters = Tokenizer::char_from_alphabet("ab".chars()).unwrap();
        let decoder = "\"type\": \"BPEDecoder\", \"suffix\": \"</w>\"";
        let json = characters.to_json().replace("\"type\": \"Fuse\"", decoder);
        let tokenizer = reread(&json).unwrap();
        assert_eq!(tokenizer.kind(), TokenizerKind::File);
        assert_eq!(tokenizer.decode(&[]), "");
        assert_eq!(tokenizer.decode(&[1, 0]), "ba");
    }
}
