//! What can go wrong between text and tokens.

use std::path::PathBuf;

/// Why a text has no tokens, or a tokenizer cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A character tokenizer met characters that were not in the text it was made from.
    #[error(
        "the tokenizer does not know {}\n  hint: leave out or replace what it does not know; a \
         model trained with kind = \"byte\" under [tokenizer] knows every character",
        described_characters(characters)
    )]
    UnknownCharacters {
        /// The distinct characters, in code point order.
        characters: Vec<char>,
    },
    /// Bytes that are not UTF-8 have no characters.
    #[error(
        "not UTF-8 at byte {offset}\n  hint: save the text as UTF-8; a model trained with kind = \"byte\" \
         under [tokenizer] takes any bytes"
    )]
    NotUtf8 {
        /// The first byte that is not part of a character.
        offset: usize,
    },
    /// A character tokenizer needs at least one character.
    #[error(
        "there are no characters to make a tokenizer from\n  hint: give a text with at least one"
    )]
    EmptyAlphabet,
    /// A piece of text has no token, and the tokenizer has none for what is unknown.
    #[error(
        "the tokenizer has no token for {}: {reason}\n  hint: it is made for other texts, or lacks an \
         unknown token; a model trained with kind = \"byte\" or kind = \"bpe\" under [tokenizer] takes any \
         text",
        text.as_ref().map_or_else(|| "a piece of the text".to_owned(), |text| shortened(text))
    )]
    NoToken {
        /// The piece, as far as it is known, after the tokenizer's own normalization.
        text: Option<String>,
        /// What the `tokenizers` library said.
        reason: String,
    },
    /// The file cannot be read.
    #[error("cannot read the tokenizer `{}`: {source}\n  hint: {}", path.display(), read_hint(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is not a tokenizer.
    #[error(
        "`{}` is not a tokenizer.json: {reason}\n  hint: it is the file of that name beside a model of the \
         Hugging Face hub, or what `save` of the tokenizers library writes; vocab.json, \
         tokenizer_config.json and tokenizer.model are others",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the `tokenizers` library said.
        reason: String,
    },
    /// The file is a tokenizer, but not one for text.
    #[error(
        "the tokenizer `{}` cannot be used: {reason}\n  hint: name the tokenizer.json of a model for text, \
         or use kind = \"bpe\" under [tokenizer], which makes one",
        path.display()
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is different about it.
        reason: String,
    },
}

fn read_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::NotFound => "check the path, which starts at the working directory",
        std::io::ErrorKind::IsADirectory => "this is a folder; name the tokenizer.json in it",
        std::io::ErrorKind::InvalidData => {
            "a tokenizer.json is text; a tokenizer.model of sentencepiece has to be converted first"
        }
        _ => "check that the file can be read",
    }
}

/// The beginning of a text, quoted.
fn shortened(text: &str) -> String {
    let start: String = text.chars().take(MOST_NAMED).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("{start:?}{dots}")
}

/// How many characters an error names: a prompt in another script can hold hundreds.
const MOST_NAMED: usize = 20;

/// The characters as they would be typed in a program, each with its code point.
pub(crate) fn described_characters(characters: &[char]) -> String {
    let mut names: Vec<String> = characters
        .iter()
        .take(MOST_NAMED)
        .map(|character| format!("{character:?} (U+{:04X})", u32::from(*character)))
        .collect();
    if characters.len() > MOST_NAMED {
        names.push(format!("and {} more", characters.len() - MOST_NAMED));
    }
    match characters.len() {
        1 => format!("the character {}", names[0]),
        n => format!("{n} characters: {}", names.join(", ")),
    }
}
