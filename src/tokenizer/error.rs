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
        "not UTF-8 at byte {offset}\n  hint: save the text as UTF-8, or use kind = \"byte\" under \
         [tokenizer]"
    )]
    NotUtf8 {
        /// The first byte that is not part of a character.
        offset: usize,
    },
    /// A character tokenizer needs at least one character.
    #[error("there are no characters to make a tokenizer from")]
    EmptyAlphabet,
    /// The file cannot be read.
    #[error("cannot read the tokenizer `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is not a tokenizer.
    #[error("`{}` is not a tokenizer.json: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the `tokenizers` library said.
        reason: String,
    },
    /// The file is a tokenizer, but not one of characters or bytes.
    #[error(
        "the tokenizer `{}` cannot be used: {reason}\n  hint: this version reads the tokenizers of \
         characters and of bytes that it wrote itself",
        path.display()
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is different about it.
        reason: String,
    },
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
