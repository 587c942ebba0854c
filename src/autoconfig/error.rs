//! Why there is no recipe for a text.

use std::path::PathBuf;

use super::profile::MIN_TOKENS;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::format::{counted, grouped};

/// Why there is no recipe for a text.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The text cannot be read, or is empty.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The file is no text.
    #[error(
        "`{}` looks like a binary file: {found}\n  hint: {}",
        path.display(),
        hint_for_bytes("")
    )]
    Binary {
        /// The file or folder.
        path: PathBuf,
        /// What no text has.
        found: String,
    },
    /// The text is in another encoding.
    #[error(
        "`{}` is not UTF-8 at byte {offset}\n  hint: {}",
        path.display(),
        hint_for_bytes("convert it, such as with `iconv -f ISO-8859-1 -t UTF-8`; ")
    )]
    NotUtf8 {
        /// The file or folder.
        path: PathBuf,
        /// The first byte, counted from 0, that is not part of a character.
        offset: usize,
    },
    /// There is next to nothing to learn from.
    #[error(
        "the text `{}` has only {n_tokens} {unit}\n  hint: the shortest text to train on has \
         {MIN_TOKENS}; it becomes interesting at about 100,000",
        path.display()
    )]
    TooShort {
        /// The file or folder.
        path: PathBuf,
        /// How many characters or bytes it has.
        n_tokens: u64,
        /// Which of the two.
        unit: &'static str,
    },
    /// In so few pieces it cannot be cut into what is learned from and what is held back.
    #[error(
        "the text `{}` becomes only {} with this tokenizer\n  hint: the shortest text to train on has \
         {MIN_TOKENS}; --tokenizer byte makes the most of them",
        path.display(),
        counted(*n_tokens, "token")
    )]
    TooFewTokens {
        /// The file or folder.
        path: PathBuf,
        /// How many there are.
        n_tokens: u64,
    },
    /// Standard input is gone when training begins.
    #[error(
        "a config names its text, and standard input is gone when training begins\n  hint: save it as a \
         file first, as in `... > my.txt`, then --from-text my.txt"
    )]
    StandardInput,
    /// The same thing over and over can be learned by nothing and by everything.
    #[error(
        "there is nothing to learn in `{}`: it is {} times {what}\n  hint: is it the right file?",
        path.display(),
        grouped(*n_tokens)
    )]
    Constant {
        /// The file or folder.
        path: PathBuf,
        /// How long it is.
        n_tokens: u64,
        /// The character or byte that it consists of.
        what: String,
    },
    /// TOML is UTF-8, and so must be what stands in it.
    #[error(
        "the path `{}` is not UTF-8, and cannot stand in a config\n  hint: rename the file",
        path.display()
    )]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// The time that was wished for is none.
    #[error("a training takes more than 0 and at most {most} minutes, which are a year")]
    Minutes {
        /// The longest time, minutes.
        most: f64,
    },
    /// The tokenizer that was wished for does not suit the text.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// A device failed while it was measured.
    #[error(
        "{device} failed while a training step was measured: {message}\n  hint: choose another with \
         --device, such as --device cpu"
    )]
    Device {
        /// Its name.
        device: String,
        /// What it said.
        message: String,
    },
}

fn hint_for_bytes(first: &str) -> String {
    format!(
        "{first}--tokenizer byte learns any file as it is, byte by byte; in a folder every file counts, \
         save those whose name begins with a dot"
    )
}
