//! What can be wrong with a corpus.

use std::path::PathBuf;

use crate::tokenizer::TokenizerError;

/// Why there is no corpus to train on.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or folder of the corpus cannot be read.
    #[error("cannot read the text `{}`: {source}\n  hint: {}", path.display(), read_hint(source))]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The path is a device, a pipe or the like, which cannot be read twice.
    #[error(
        "`{}` is neither a file nor a folder\n  hint: save the text to a file, and name that as \
         data.path",
        path.display()
    )]
    NotAFile {
        /// What was given.
        path: PathBuf,
    },
    /// The folder has no text.
    #[error(
        "there are no files in the folder `{}`\n  hint: every file in it and its subfolders counts \
         as text, save those whose name begins with a dot",
        path.display()
    )]
    NoFiles {
        /// The folder.
        path: PathBuf,
    },
    /// There are files, but not a single byte in them.
    #[error("the text `{}` is empty", path.display())]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
    /// A file is not UTF-8, so it has no characters.
    #[error(
        "`{}` is not UTF-8 at byte {offset}\n  hint: save it as UTF-8, or use kind = \"byte\" under \
         [tokenizer], which takes any file",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first byte, counted from 0, that is not part of a character.
        offset: u64,
    },
    /// The text has what the tokenizer cannot encode.
    #[error("cannot encode the text `{}`: {source}", path.display())]
    Encode {
        /// The file or folder.
        path: PathBuf,
        /// What the tokenizer does not know.
        source: TokenizerError,
    },
    /// The tokenizer's file cannot be used.
    #[error("cannot use tokenizer.path: {0}")]
    Tokenizer(#[source] TokenizerError),
    /// The training split is shorter than one window and the token after it.
    #[error(
        "the text `{}` is too short: {n_train} of its {n_tokens} tokens are for training, and \
         model.context_length = {context_length} needs at least {}\n  hint: use more text, a shorter \
         model.context_length or a smaller data.val_fraction",
        path.display(),
        context_length + 1
    )]
    TrainTooShort {
        /// The file or folder.
        path: PathBuf,
        /// Tokens of the whole text.
        n_tokens: u64,
        /// Tokens of the training split.
        n_train: u64,
        /// What the model sees at once.
        context_length: usize,
    },
    /// The validation split has nothing to predict.
    #[error(
        "the text `{}` is too short: data.val_fraction = {val_fraction} leaves {n_val} of its \
         {n_tokens} tokens for validation, which needs at least 2\n  hint: use more text or a larger \
         data.val_fraction",
        path.display()
    )]
    ValTooShort {
        /// The file or folder.
        path: PathBuf,
        /// Tokens of the whole text.
        n_tokens: u64,
        /// Tokens of the validation split.
        n_val: u64,
        /// The share that was asked for.
        val_fraction: f64,
    },
    /// The text was different when it was read for the second time.
    #[error(
        "the text `{}` changed while it was read\n  hint: start again when nothing writes to it",
        path.display()
    )]
    Changed {
        /// The file or folder.
        path: PathBuf,
    },
    /// The token files would become text of the next run.
    #[error(
        "the token files of data.cache_dir = \"{}\" would lie within the text data.path = \
         \"{}\"\n  hint: name a folder outside of it",
        cache_dir.display(),
        path.display()
    )]
    CacheInsideText {
        /// Where token files are kept.
        cache_dir: PathBuf,
        /// The folder of text.
        path: PathBuf,
    },
    /// The token file cannot be written or mapped.
    #[error(
        "cannot keep the encoded text in `{}`: {source}\n  hint: it takes two bytes a token (four \
         with a vocabulary above 65,536); data.cache_dir names another folder",
        path.display()
    )]
    Cache {
        /// The token file, or its folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}

fn read_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::NotFound => {
            "check data.path, which starts at the working directory; scripts/fetch_data.sh \
             downloads tiny Shakespeare"
        }
        _ => "check data.path, and that you may read it",
    }
}
