//! The errors of making a config for a text.

use std::path::PathBuf;

use super::MAX_MINUTES;
use super::profile::MIN_TOKENS;
use crate::config::ConfigError;
use crate::data::DataError;

/// The reason why a config cannot be made for a text. Each path is that of the file or folder.
#[derive(Debug, thiserror::Error)]
pub enum AutoconfigError {
    /// The text cannot be read, is empty, or is not text.
    #[error("{}", in_flags(.0))]
    Data(DataError),
    /// The text is too short: its length, and its unit.
    #[error(
        "the text `{path}` has only {1} {2}\n  hint: the shortest text to train on has {MIN_TOKENS} (--tokenizer byte \
         makes most tokens); it becomes interesting at about 100,000",
        path = .0.display()
    )]
    TooShort(PathBuf, u64, &'static str),
    /// Standard input cannot be read again when training begins.
    #[error(
        "a config names its text, and standard input is gone when training begins\n  hint: save it as a \
         file first, as in `... > my.txt`, then --from-text my.txt"
    )]
    StandardInput,
    /// The path cannot be written as TOML, which is UTF-8.
    #[error("the path `{}` is not UTF-8, and cannot stand in a config\n  hint: rename the file", .0.display())]
    Path(PathBuf),
    /// The training time is out of range.
    #[error("a training takes more than 0 and at most {MAX_MINUTES} minutes, which are a year")]
    Minutes,
    /// The requested tokenizer does not suit the text.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The named device failed during measurement, with this error.
    #[error(
        "{0} failed while a training step was measured: {1}\n  hint: choose another with --device, such as \
         --device cpu"
    )]
    Device(String, String),
}

impl From<DataError> for AutoconfigError {
    fn from(error: DataError) -> Self {
        Self::Data(error) // not as its source, whose message would be shown as well
    }
}

/// The error with the flags of `init` instead of the keys that a config would have.
fn in_flags(error: &DataError) -> String {
    let flags = [
        ("kind = \"byte\" under [tokenizer] learns", "--tokenizer byte learns"),
        ("exclude under [data] leaves", "--exclude leaves"),
        ("; --force takes it for text", ""),
        ("data.text_field", "--text-field"),
        ("data.include", "--include"),
        ("data.exclude", "--exclude"),
        ("a model trained with kind = \"byte\" under [tokenizer] (`init --tokenizer byte`)", "--tokenizer byte"),
    ];
    flags.into_iter().fold(error.to_string(), |text, (key, flag)| text.replace(key, flag))
}
