//! The `tokenizer.json` of the `tokenizers` library, written and recognised.
//!
//! Characters and bytes are its BPE model without any merges. Characters stand for themselves and are
//! joined when decoded; bytes go through its byte-level alphabet, as GPT-2's do, which has a printable
//! character for each byte. Any other file stays as it is.

use std::path::Path;

use serde_json::Value;
use tokenizers::ModelWrapper;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::library::Library;
use super::table::Table;
use super::{Tokenizer, TokenizerError, TokenizerKind, bpe, bytes};

/// The content of the file of a tokenizer of characters or bytes.
pub(super) fn write(table: &Table) -> String {
    let library = to_library(table);
    library.to_string(true).expect("a tokenizer of our own can be written as JSON")
}

/// The tokenizer of which this is the file; `path` is how errors call it.
pub(super) fn read(text: String, path: &Path) -> Result<Tokenizer, TokenizerError> {
    let malformed = |reason: String| TokenizerError::Malformed { path: path.to_owned(), reason };
    let value: Value =
        serde_json::from_str(&text).map_err(|error| malformed(format!("not JSON: {error}")))?;
    if !value["model"].is_object() {
        let reason = "it is JSON, but without a `model`, which holds the vocabulary";
        return Err(malformed(reason.to_owned()));
    }
    let library =
        tokenizers::Tokenizer::from_bytes(&text).map_err(|error| malformed(error.to_string()))?;
    if let Some(table) = as_table(&library) {
        return Ok(Tokenizer::from_table(table));
    }
    let kind = match is_trained_here(&value) {
        true => TokenizerKind::Bpe,
        false => TokenizerKind::File,
    };
    Library::new(library, text, kind, path).map(Tokenizer::from_library)
}

/// The table that does what this tokenizer does, if there is one.
fn as_table(library: &tokenizers::Tokenizer) -> Option<Table> {
    let ModelWrapper::BPE(model) = library.get_model() else {
        return None;
    };
    let table = if library.get_pre_tokenizer().is_some() {
        (model.get_vocab().len() == 256).then(Table::bytes)?
    } else {
        let vocab = model.get_vocab();
        let alphabet: Option<Vec<char>> = vocab.keys().map(|token| only_char(token)).collect();
        Table::characters(alphabet?).ok()?
    };
    // The library is asked for every setting at once, rather than one by one here: whatever makes
    // it split or number text in another way shows in what it writes.
    (library.to_string(true).ok()? == write(&table)).then_some(table)
}

/// Whether all but the vocabulary is what training here writes.
fn is_trained_here(value: &Value) -> bool {
    let ours = bpe::empty().to_string(false);
    let ours: Value = serde_json::from_str(&ours.expect("plain data")).expect("just written");
    let same = |section: &str| value[section] == ours[section];
    let same_in_model = |key: &str| value["model"][key] == ours["model"][key];
    ["added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"]
        .into_iter()
        .all(same)
        && ["type", "dropout", "unk_token", "ignore_merges"].into_iter().all(same_in_model)
}

/// The same tokenizer, as the library has it.
fn to_library(table: &Table) -> tokenizers::Tokenizer {
    let bpe = |vocab: Vocab| {
        BPE::builder().vocab_and_merges(vocab, Vec::new()).build().expect("there are no merges")
    };
    if table.kind == TokenizerKind::Byte {
        let vocab =
            bytes::alphabet().map(|(byte, character)| (character.to_string(), u32::from(byte)));
        let mut library = tokenizers::Tokenizer::new(bpe(vocab.collect()));
        let byte_level = ByteLevel::new(false, true, false);
        library.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
        return library;
    }
    let texts = (0..).zip(&table.bytes);
    let vocab = texts.map(|(id, text)| {
        let text = String::from_utf8(text.to_vec()).expect("each token is a character");
        (text, id)
    });
    let mut library = tokenizers::Tokenizer::new(bpe(vocab.collect()));
    library.with_decoder(Some(Fuse::new()));
    library
}

fn only_char(text: &str) -> Option<char> {
    let mut characters = text.chars();
    characters.next().filter(|_| characters.next().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRICKY: &str = "a\r\n\n\t  b\u{e9}e\u{301}\u{1f525}\0\u{feff}\u{200d}<s>\u{fffd} ";

    fn both_for(text: &str) -> [Tokenizer; 2] {
        [Tokenizer::char_from_alphabet(text.chars()).unwrap(), Tokenizer::byte()]
    }

    fn reread(json: &str) -> Result<Tokenizer, TokenizerError> {
        read(json.to_owned(), Path::new("tokenizer.json"))
    }

    #[test]
    fn what_is_written_is_recognised() {
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

    #[test]
    fn nothing_is_decoded_from_nothing_whatever_the_decoder() {
        let characters = Tokenizer::char_from_alphabet("ab".chars()).unwrap();
        let decoder = "\"type\": \"BPEDecoder\", \"suffix\": \"</w>\"";
        let json = characters.to_json().replace("\"type\": \"Fuse\"", decoder);
        let tokenizer = reread(&json).unwrap();
        assert_eq!(tokenizer.kind(), TokenizerKind::File);
        assert_eq!(tokenizer.decode(&[]), "");
        assert_eq!(tokenizer.decode(&[1, 0]), "ba");
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
}
