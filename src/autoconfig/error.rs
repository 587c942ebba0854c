//! Why there is no config for a text.

use std::path::PathBuf;

use super::profile::MIN_TOKENS;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::format::{counted, grouped};

/// Why there is no config for a text.
#[derive(Debug, thiserror::Error)]
pub enum AutoconfigError {
    /// The text cannot be read, is empty, or is not UTF-8.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The file is not text.
    #[error(
        "`{}` looks like a binary file: byte {offset} is 0, which no text has\n  hint: --tokenizer byte learns any \
         file as it is, byte by byte; in a folder every file counts, except those whose name begins with a dot",
        path.display()
    )]
    Binary {
        /// The file or folder.
        path: PathBuf,
        /// The first byte that is 0, counted from 0.
        offset: usize,
    },
    /// The text is too short.
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
    /// The text has too few tokens to be split for training and validation.
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
    /// Standard input cannot be read again when training begins.
    #[error(
        "a config names its text, and standard input is gone when training begins\n  hint: save it as a \
         file first, as in `... > my.txt`, then --from-text my.txt"
    )]
    StandardInput,
    /// The text repeats a single character or byte.
    #[error(
        "there is nothing to learn in `{}`: it is {} times {repeated}\n  hint: is it the right file?",
        path.display(),
        grouped(*n_tokens)
    )]
    Constant {
        /// The file or folder.
        path: PathBuf,
        /// How long it is.
        n_tokens: u64,
        /// The character or byte that it consists of.
        repeated: String,
    },
    /// The path cannot be written as TOML, which is UTF-8.
    #[error(
        "the path `{}` is not UTF-8, and cannot stand in a config\n  hint: rename the file",
        path.display()
    )]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// The training time is out of range.
    #[error("a training takes more than 0 and at most {max} minutes, which are a year")]
    Minutes {
        /// The longest time, minutes.
        max: f64,
    },
    /// The requested tokenizer does not suit the text.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device failed while it was measured.
    #[error(
        "{device} failed while a training step was measured: {message}\n  hint: choose another with \
         --device, such as --device cpu"
    )]
    Device {
        /// The device's name.
        device: String,
        /// Its error.
        message: String,
    },
}
