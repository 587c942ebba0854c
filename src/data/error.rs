//! What can be wrong with a corpus.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use super::fetch_hint::missing_hint;
use super::record::RecordError;
use crate::tokenizer::TokenizerError;

/// Why there is no corpus to train on.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// There is nothing of that name.
    #[error("there is no file or folder `{}`\n  hint: {}", path.display(), missing_hint(path, nearest.as_deref()))]
    Missing {
        /// What was given.
        path: PathBuf,
        /// What is there and has a name like that.
        nearest: Option<PathBuf>,
    },
    /// A link in a folder of text leads nowhere.
    #[error(
        "`{}` is a link to `{}`, which is not there\n  hint: remove the link, or put back what it \
         leads to",
        path.display(),
        target.display()
    )]
    DanglingLink {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// A file or folder of the corpus cannot be read.
    #[error("cannot read the text `{}`: {source}\n  hint: {}", path.display(), read_hint(source))]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The path is a device, a pipe or the like, which cannot be read twice.
    #[error(
        "`{}` is neither a file nor a folder\n  hint: save the text to a file, or pipe it in with \
         path = \"-\"",
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
    /// A file belongs to two texts.
    #[error(
        "`{}` is in two sources, `{}` and `{}`: what one keeps for validation, the other would \
         train on\n  hint: name each file in one of them; a weight says how often it is drawn",
        file.display(),
        first.display(),
        second.display()
    )]
    InTwoSources {
        /// The file.
        file: PathBuf,
        /// The one text.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// There are files, but not a single byte in them.
    #[error(
        "the text `{}` is empty\n  hint: put text into it, or name another",
        path.display()
    )]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
    /// A file is something else than text.
    #[error("`{}` is not text, but {what}\n  hint: {advice}", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// How to make text of it.
        advice: &'static str,
    },
    /// A file is not UTF-8, so it has no characters.
    #[error(
        "`{}` is not UTF-8 at byte {offset}\n  hint: save it as UTF-8; a model trained with kind = \
         \"byte\" under [tokenizer] takes any file",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first byte, counted from 0 and unpacked, that is not part of a character.
        offset: u64,
    },
    /// A file is damaged, or no gzip although its name says so.
    #[error(
        "`{}` is not a whole gzip file: {source}\n  hint: get it anew; `gzip -t` tells whether it \
         is whole",
        path.display()
    )]
    Gzip {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        source: io::Error,
    },
    /// A line of a JSON Lines file has no text.
    #[error("line {line} of `{}` {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        source: RecordError,
    },
    /// Standard input is a keyboard.
    #[error(
        "the text is to come through standard input, which is a terminal\n  hint: pipe it in, as in \
         `cat *.txt | tinderbox train ...`, or name a file instead of \"-\""
    )]
    Terminal,
    /// What came through standard input is a text, but looks like records.
    #[error(
        "the first line of standard input is a record of JSON Lines, with a field \"{field}\"\n  hint: \
         data.format = \"jsonl\" takes that field of each line for the text, data.format = \"text\" the lines \
         as they are; of a file, the name tells"
    )]
    TextOrRecords {
        /// The field in which records have their text.
        field: String,
    },
    /// A text came through standard input, and is not kept any more.
    #[error(
        "the text came through standard input, and `{}` is gone, where it was kept\n  hint: save \
         the same text to a file, and name that with --set data.path=FILE",
        path.display()
    )]
    NotKept {
        /// Where it was kept.
        path: PathBuf,
    },
    /// The tokenizer's file cannot be used.
    #[error("cannot use tokenizer.path: {0}")]
    Tokenizer(#[source] TokenizerError),
    /// The texts have no characters.
    #[error(transparent)]
    Alphabet(TokenizerError),
    /// The text has what the tokenizer cannot encode.
    #[error("cannot encode the text `{}`: {source}", path.display())]
    Encode {
        /// The file or folder.
        path: PathBuf,
        /// What the tokenizer does not know.
        source: TokenizerError,
    },
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
    /// A text on its own has nothing to predict.
    #[error(
        "the text `{}` is too short: it has {n_tokens} tokens, and at least 2 are needed to predict \
         one\n  hint: give a longer text",
        path.display()
    )]
    TooShort {
        /// The file or folder.
        path: PathBuf,
        /// Its tokens.
        n_tokens: u64,
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
    /// Whoever watched it put an end to it.
    #[error("stopped while the text was read")]
    Stopped,
    /// The text is not the one that a run was trained on.
    #[error(
        "the text {} is another than it was when the run began\n  hint: put it back as it was",
        in_quotes(paths)
    )]
    OtherText {
        /// The files or folders, all together.
        paths: Vec<PathBuf>,
    },
    /// The token files would become text of the next run.
    #[error(
        "the token files of data.cache_dir = \"{}\" would lie within the text \
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
        "cannot keep the encoded text in `{}`: {source}\n  hint: {}",
        path.display(),
        cache_hint(source)
    )]
    Cache {
        /// The token file, or its folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Names of texts, one after the other.
pub(crate) fn in_quotes(paths: &[PathBuf]) -> String {
    let quoted = paths.iter().map(|path| format!("`{}`", path.display()));
    quoted.collect::<Vec<_>>().join(", ")
}

fn read_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::PermissionDenied => "check that you may read it",
        _ => "check the path, and that the file can be read elsewhere",
    }
}

fn cache_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "make room there, or name a folder with more of it as data.cache_dir; a token takes two \
             bytes (four with a vocabulary above 65,536)"
        }
        _ => "data.cache_dir names another folder",
    }
}
