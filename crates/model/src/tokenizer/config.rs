//! `[tokenizer]`: how text becomes tokens.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::section::{MAX_SIZE, Problems};

/// The smallest vocabulary of byte-level BPE: all bytes and the end-of-text token.
const MIN_BPE_SIZE: usize = 257;

crate::sections! {
    /// `[tokenizer]`: how text becomes tokens.
    pub struct TokenizerConfig {
        /// The kind of tokens: `char` (a character, from the alphabet of the text), `byte` (any text, 256 tokens),
        /// `bpe` (a frequent piece of text, found in the training split) or `file` (as an existing `tokenizer.json`
        /// defines).
        pub kind: TokenizerKind = TokenizerKind::default(),
        /// Only with `bpe`: the most tokens in the vocabulary. At least 257, the bytes and the end-of-text token;
        /// default 2048.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub vocab_size: Option<usize> = None,
        /// Whether `char` and `byte` have one more token, `<|endoftext|>`, which follows each document. `bpe` always
        /// has it, and `file` has it if its file does.
        pub end_of_text: bool = false,
        /// Only with `file`, and required there: a `tokenizer.json` of the tokenizers library; relative to the working
        /// directory.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub path: Option<PathBuf> = None,
    }
}

/// The kind of tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// One token per Unicode character of the corpus.
    #[default]
    Char,
    /// One token per byte: encodes any text with 256 tokens.
    Byte,
    /// Byte-level BPE trained on the training split: encodes any text with `vocab_size` tokens.
    Bpe,
    /// The tokenizer defined by the file at `path`.
    File,
}

impl TokenizerKind {
    /// Whether the tokens are a table of characters or bytes, which has an end-of-text token only if the config says so.
    pub fn is_table(self) -> bool {
        matches!(self, Self::Char | Self::Byte)
    }
}

impl TokenizerConfig {
    /// The `vocab_size` of a config with `kind = "bpe"` that does not give one.
    const DEFAULT_VOCAB_SIZE: usize = 2048;

    /// The defaults, with a value for each key that has none.
    pub fn with_every_key() -> Self {
        Self {
            vocab_size: Some(Self::DEFAULT_VOCAB_SIZE),
            path: Some(PathBuf::from("tokenizer.json")),
            ..Self::default()
        }
    }

    /// The vocabulary size of BPE: the given one, or the default.
    pub fn bpe_vocab_size(&self) -> usize {
        self.vocab_size.unwrap_or(Self::DEFAULT_VOCAB_SIZE)
    }
}

impl TokenizerConfig {
    /// Checks the rules of this section.
    pub fn check_into(&self, problems: &mut Problems) {
        let Self { kind, vocab_size, end_of_text: _, path } = self;
        let name = toml::Value::try_from(kind).expect("every kind has a name"); // in quotes
        match (kind, vocab_size) {
            (TokenizerKind::Bpe, Some(size)) => {
                let rule =
                    format!("be at least {MIN_BPE_SIZE}, the 256 bytes and the end of a text, and at most {MAX_SIZE}");
                problems.must((MIN_BPE_SIZE..=MAX_SIZE).contains(size), "tokenizer.vocab_size", size, &rule);
            }
            (_, Some(size)) => problems.0.push(format!(
                "tokenizer.vocab_size = {size} is only for tokenizer.kind = \"bpe\": with {name} it cannot \
                 be chosen; leave it out, or use kind = \"bpe\""
            )),
            (_, None) => {}
        }
        match (kind, path) {
            (TokenizerKind::File, Some(path)) if !path.as_os_str().is_empty() => {}
            (TokenizerKind::File, _) => problems.0.push(
                "tokenizer.path is missing or empty: with tokenizer.kind = \"file\" it names a tokenizer.json"
                    .to_owned(),
            ),
            (_, Some(path)) => problems.0.push(format!(
                "tokenizer.path = \"{}\" is only for tokenizer.kind = \"file\", and the kind is {name}; leave it \
                 out, or use kind = \"file\"",
                path.display()
            )),
            (_, None) => {}
        }
    }
}
