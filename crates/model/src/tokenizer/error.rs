//! Errors of tokenizers and of text that they cannot encode.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// The reason why a text cannot be encoded, or a tokenizer cannot be created.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the variants and their fields")]
pub enum TokenizerError {
    /// The distinct characters of a text without a token, in code point order.
    #[error(
        "the tokenizer does not know {}\n  hint: leave out or replace these characters; a model trained with kind = \
         \"byte\" under [tokenizer] knows every character",
        described_characters(characters)
    )]
    UnknownCharacters { characters: Vec<char> },
    /// `offset` is the first byte that is not part of a character.
    #[error(
        "not UTF-8 at byte {offset}\n  hint: save the text as UTF-8; a model trained with kind = \"byte\" \
         under [tokenizer] takes any bytes"
    )]
    NotUtf8 { offset: usize },
    #[error("there are no characters to make a tokenizer from\n  hint: give a text with at least one")]
    EmptyAlphabet,
    /// A piece of text, as far as it is known and after normalization, has no token, and there is no unknown token.
    #[error(
        "the tokenizer has no token for {}: {reason}\n  hint: it is made for other texts, or lacks an unknown token; a \
         model trained with kind = \"byte\" or kind = \"bpe\" under [tokenizer] takes any text",
        text.as_ref().map_or_else(|| "a piece of the text".to_owned(), |text| shortened(text))
    )]
    NoToken { text: Option<String>, reason: String },
    /// The model has fewer rows than the tokenizer has ids.
    #[error(
        "model.vocab_size = {vocab_size} is less than the {n_ids} ids of the tokenizer\n  hint: leave the key out, or \
         give it at least {n_ids}"
    )]
    TooManyIds { n_ids: usize, vocab_size: usize },
    #[error("cannot read the tokenizer `{path}`: {source}\n  hint: {}", read_hint(source))]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{path}` is not a tokenizer.json: {reason}\n  hint: it is the file of that name beside a model of the Hugging \
         Face hub, or what `save` of the tokenizers library writes; vocab.json, tokenizer_config.json and \
         tokenizer.model are others"
    )]
    Malformed { path: PathBuf, reason: String },
    /// The `tokenizer_config.json` beside a `tokenizer.json` is malformed.
    #[error(
        "`{path}` is not a tokenizer_config.json: {reason}\n  hint: it is the file of that name beside a model of the \
         Hugging Face hub; without it the tokenizer.json alone is used"
    )]
    MalformedConfig { path: PathBuf, reason: String },
    /// The file is a tokenizer, but not one for text.
    #[error(
        "the tokenizer `{path}` cannot be used: {reason}\n  hint: name the tokenizer.json of a model for text, or use \
         kind = \"bpe\" under [tokenizer], which makes one"
    )]
    Unsupported { path: PathBuf, reason: String },
}

fn read_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound => "check the path, which starts at the working directory",
        ErrorKind::IsADirectory => "this is a folder; name the tokenizer.json in it",
        ErrorKind::InvalidData => {
            "a tokenizer.json is text; `tinderbox import` reads the tokenizer.model of sentencepiece, with its model"
        }
        _ => "check that the file can be read",
    }
}

/// The most characters that an error names: a prompt in another script can hold hundreds.
const MAX_NAMED: usize = 20;

fn shortened(text: &str) -> String {
    let start: String = text.chars().take(MAX_NAMED).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("{start:?}{dots}")
}

/// The characters as they would be typed in a program, each with its code point.
pub fn described_characters(characters: &[char]) -> String {
    let name = |c: &char| format!("{c:?} (U+{:04X})", u32::from(*c));
    let mut names: Vec<String> = characters.iter().take(MAX_NAMED).map(name).collect();
    if characters.len() > MAX_NAMED {
        names.push(format!("and {} more", characters.len() - MAX_NAMED));
    }
    match characters.len() {
        1 => format!("the character {}", names[0]),
        n => format!("{n} characters: {}", names.join(", ")),
    }
}
