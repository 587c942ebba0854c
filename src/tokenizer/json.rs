//! The `tokenizer.json` of the `tokenizers` library, written and recognised.
//!
//! Both kinds are its BPE model without any merges. Characters stand for themselves and are joined
//! when decoded; bytes go through its byte-level alphabet, as GPT-2's do, which has a printable
//! character for each byte.

use std::path::Path;

use tokenizers::decoders::fuse::Fuse;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::{Tokenizer, TokenizerError, TokenizerKind};

/// The content of the tokenizer's file.
pub(super) fn write(tokenizer: &Tokenizer) -> String {
    let library = to_library(tokenizer);
    library
        .to_string(true)
        .expect("a tokenizer of our own can be written as JSON")
}

/// The tokenizer of which this is the file; `path` is how errors call it.
pub(super) fn read(text: &str, path: &Path) -> Result<Tokenizer, TokenizerError> {
    let unsupported = |reason: String| TokenizerError::Unsupported {
        path: path.to_owned(),
        reason,
    };
    let library =
        tokenizers::Tokenizer::from_bytes(text).map_err(|error| TokenizerError::Malformed {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
    let vocab = library.get_vocab(true);
    let tokenizer = if library.get_pre_tokenizer().is_some() {
        Tokenizer::byte()
    } else {
        let alphabet: Option<Vec<char>> = vocab.keys().map(|token| only_char(token)).collect();
        let alphabet = alphabet.ok_or_else(|| {
            unsupported("its tokens are neither single characters nor bytes".to_owned())
        })?;
        Tokenizer::char_from_alphabet(alphabet)?
    };
    // The library is asked for every setting at once, rather than one by one here: whatever makes
    // it split or number text in another way shows in what it writes.
    let canonical = library
        .to_string(true)
        .map_err(|error| unsupported(error.to_string()))?;
    if canonical == tokenizer.to_json() {
        Ok(tokenizer)
    } else {
        let n_tokens = vocab.len();
        Err(unsupported(format!(
            "it numbers or splits its {n_tokens} tokens in another way"
        )))
    }
}

/// The same tokenizer, as the library has it.
fn to_library(tokenizer: &Tokenizer) -> tokenizers::Tokenizer {
    let bpe = |vocab: Vocab| {
        BPE::builder()
            .vocab_and_merges(vocab, Vec::new())
            .build()
            .expect("there are no merges")
    };
    match tokenizer.kind() {
        TokenizerKind::Char => {
            let texts = (0..).zip(&tokenizer.tables.bytes);
            let vocab = texts.map(|(id, text)| {
                (
                    String::from_utf8(text.to_vec()).expect("each token is a character"),
                    id,
                )
            });
            let mut library = tokenizers::Tokenizer::new(bpe(vocab.collect()));
            library.with_decoder(Some(Fuse::new()));
            library
        }
        TokenizerKind::Byte => {
            let vocab = byte_level_alphabet()
                .map(|(byte, character)| (character.to_string(), u32::from(byte)));
            let mut library = tokenizers::Tokenizer::new(bpe(vocab.collect()));
            let byte_level = ByteLevel::new(false, true, false);
            library
                .with_pre_tokenizer(Some(byte_level))
                .with_decoder(Some(byte_level));
            library
        }
    }
}

/// Each byte with the character that stands for it in a byte-level vocabulary: itself where it is
/// printable, and otherwise the next free one from U+0100 on.
///
/// Source: Radford et al. 2019, `bytes_to_unicode` in GPT-2's `encoder.py`.
fn byte_level_alphabet() -> impl Iterator<Item = (u8, char)> {
    let mut free = '\u{100}'..;
    (0..=u8::MAX).map(move |byte| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (byte, char::from(byte)),
        _ => (
            byte,
            free.next().expect("there are more characters than bytes"),
        ),
    })
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
        [
            Tokenizer::char_from_alphabet(text.chars()).unwrap(),
            Tokenizer::byte(),
        ]
    }

    fn reread(json: &str) -> Result<Tokenizer, TokenizerError> {
        read(json, Path::new("tokenizer.json"))
    }

    #[test]
    fn what_is_written_is_recognised() {
        for tokenizer in both_for(TRICKY) {
            let again = reread(&tokenizer.to_json()).unwrap();
            assert_eq!(again, tokenizer);
            assert_eq!(again.to_json(), tokenizer.to_json());
        }
    }

    #[test]
    fn the_alphabet_is_the_librarys() {
        let ours = byte_level_alphabet().map(|(_, character)| character);
        assert_eq!(ours.collect::<std::collections::BTreeSet<_>>().len(), 256);
        assert!(byte_level_alphabet().all(|(_, c)| ByteLevel::alphabet().contains(&c)));
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
    fn other_tokenizers_are_refused() {
        let bytes = Tokenizer::byte().to_json();
        let characters = Tokenizer::char_from_alphabet("ab".chars())
            .unwrap()
            .to_json();
        assert!(matches!(
            reread("{}"),
            Err(TokenizerError::Malformed { .. })
        ));
        let changed = [
            bytes.replace("\"add_prefix_space\": false", "\"add_prefix_space\": true"),
            bytes
                .replace("\"a\": 97", "\"a\": 98")
                .replace("\"b\": 98", "\"b\": 97"),
            characters
                .replace("\"a\": 0", "\"a\": 1")
                .replace("\"b\": 1", "\"b\": 0"),
            characters.replace("\"b\": 1", "\"bc\": 1"),
            characters
                .replace("\"merges\": []", "\"merges\": [[\"a\", \"b\"]]")
                .replace("\"b\": 1", "\"b\": 1, \"ab\": 2"),
            characters.replace(
                "\"normalizer\": null",
                "\"normalizer\": {\"type\": \"Lowercase\"}",
            ),
        ];
        for json in changed {
            assert!(json != bytes && json != characters, "nothing was changed");
            let error = reread(&json).unwrap_err();
            assert!(
                matches!(error, TokenizerError::Unsupported { .. }),
                "{error}\n{json}"
            );
        }
    }
}
