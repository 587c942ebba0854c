//! The errors of making a config for a text.

use std::path::PathBuf;

use super::MAX_MINUTES;
use super::profile::MIN_TOKENS;
use crate::config::ConfigError;
use crate::data::{DataError, LEAVE_OUT};

/// The reason why a config cannot be made for a text. Each path is that of the file or folder.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the variants and their fields")]
pub enum AutoconfigError {
    #[error("{}", in_flags(.0))]
    Data(DataError),
    #[error(
        "the text `{path}` has only {1} {2}\n  hint: the shortest text to train on has {MIN_TOKENS} (--tokenizer byte \
         makes most tokens); it becomes interesting at about 100,000",
        path = .0.display()
    )]
    TooShort(PathBuf, u64, &'static str),
    #[error(
        "a config names its text, and standard input is gone when training begins\n  hint: save it as a \
         file first, as in `... > my.txt`, then --from-text my.txt"
    )]
    StandardInput,
    #[error("the path `{}` is not UTF-8, and cannot stand in a config\n  hint: rename the file", .0.display())]
    Path(PathBuf),
    #[error("a training takes more than 0 and at most {MAX_MINUTES} minutes, which are a year")]
    Minutes,
    #[error(transparent)]
    Config(#[from] ConfigError),
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
        (LEAVE_OUT, "--exclude PATTERN leaves files of a folder out, and --skip-bad-files all that are not text"),
        ("; --force takes it for text", ""),
        ("data.text_field", "--text-field"),
        ("data.include", "--include"),
        ("data.exclude", "--exclude"),
        ("data.skip_bad_files", "--skip-bad-files"),
        ("a model trained with kind = \"byte\" under [tokenizer] (`init --tokenizer byte`)", "--tokenizer byte"),
    ];
    flags.into_iter().fold(error.to_string(), |text, (key, flag)| text.replace(key, flag))
}
