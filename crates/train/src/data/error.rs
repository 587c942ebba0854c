//! The errors of texts that cannot be used, with hints about how to fix them.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tinderbox_model::format::counted;
use tinderbox_model::tokenizer::{RenderError, TokenizerError};

/// What leaves out a file of a folder that is not text.
pub(crate) const LEAVE_OUT: &str = "data.exclude (--exclude) leaves files of a folder out, and data.skip_bad_files \
                                    (--skip-bad-files) all that are not text";

/// A type of file that is not text.
pub(super) const PARQUET: &str = "a Parquet file";

/// The reason why there is no corpus to train on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the variants and their fields")]
pub enum DataError {
    #[error(
        "this model was imported and has no text of its own\n  hint: name one with `--text FILE`, or train the model on \
         yours with `tinderbox train CONFIG --from RUN`"
    )]
    NoText,
    #[error("there is no file or folder `{path}`\n  hint: {}", missing_hint(path, nearest.as_deref()))]
    Missing { path: PathBuf, nearest: Option<PathBuf> },
    #[error(
        "there is no file or folder `{path}`\n  hint: relative paths start at the working directory, not at the config: \
         from here it is `{beside}`"
    )]
    BesideConfig { path: PathBuf, beside: PathBuf },
    #[error("`{path}` is a link to `{target}`, which is not there\n  hint: remove the link, or restore its target")]
    DanglingLink { path: PathBuf, target: PathBuf },
    #[error("cannot read the text `{path}`: {source}\n  hint: {}", read_hint(source))]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{path}` is neither a file nor a folder\n  hint: save the text to a file, or pipe it in with path = \"-\""
    )]
    NotAFile { path: PathBuf },
    /// `name` is in quotes.
    #[error(
        "no record of `{path}` has the field {name}\n  hint: --map (finetune.map) names it; name one that the records have"
    )]
    Unmapped { path: PathBuf, name: String },
    #[error(
        "there are no files in the folder `{path}`\n  hint: every file in it and its subfolders counts as text, except \
         those whose names begin with a dot, and what data.include, data.exclude and data.skip_bad_files leave out"
    )]
    NoFiles { path: PathBuf },
    #[error(
        "`{file}` is in two sources, `{first}` and `{second}`: what one keeps for validation, the other would train \
         on\n  hint: name each file in one of them; a weight says how often it is drawn"
    )]
    InTwoSources { file: PathBuf, first: PathBuf, second: PathBuf },
    /// `offset` is that of a zero byte, in the unpacked file.
    #[error(
        "`{path}` looks like a binary file: byte {offset} is 0, which no text has\n  hint: kind = \"byte\" under \
         [tokenizer] learns any file as it is, byte by byte; {LEAVE_OUT}; --force takes it for text"
    )]
    Binary { path: PathBuf, offset: usize },
    #[error(
        "the first line of `{path}` is a record of JSON Lines, with a field \"{field}\"\n  hint: format = \"jsonl\" under \
         [data] reads that field of each line as the text, format = \"text\" reads the lines as they are; so would a name \
         that ends in .jsonl"
    )]
    FileOfRecords { path: PathBuf, field: String },
    #[error(
        "`{path}` is a list of JSON objects or one object a line, which would be learned as text, braces and all\n  hint: `tinderbox \
         finetune RUN --data {path}` reads records such as conversations; format = \"jsonl\" under [data] reads the text in \
         the field \"{field}\" of each, and format = \"text\" takes the file as it is"
    )]
    ListOfRecords { path: PathBuf, field: String },
    #[error("the text `{path}` is empty\n  hint: put text into it, or name another")]
    Empty { path: PathBuf },
    #[error(
        "`{path}` is not text, but {what}\n  hint: {}; {LEAVE_OUT}",
        match *what {
            PARQUET => "format = \"jsonl\" under [data] reads the field data.text_field of its rows, as does a name that ends in \
                        .parquet; packed with gzip, it must be unpacked",
            _ => "save it as plain text (UTF-8), or pack it with gzip",
        }
    )]
    NotText { path: PathBuf, what: &'static str },
    /// `offset` is the first byte that is not part of a character, counted from 0 in the unpacked file.
    #[error(
        "`{path}` is not UTF-8 at byte {offset}\n  hint: save it as UTF-8, for instance with `iconv -f LATIN1 -t UTF-8` if \
         it is an older Western European text; {LEAVE_OUT}; a model trained with kind = \"byte\" under [tokenizer] (`init --tokenizer \
         byte`) takes any file"
    )]
    NotUtf8 { path: PathBuf, offset: u64 },
    #[error(
        "`{path}` is not a complete gzip file: {source}\n  hint: download or compress it again; `gzip -t` checks \
         whether it is complete; {LEAVE_OUT}"
    )]
    Gzip { path: PathBuf, source: io::Error },
    /// A record cannot be used; its place is a line or a number, counted from 1.
    #[error("{place} of `{path}` {problem}")]
    Record { path: PathBuf, place: String, problem: String },
    #[error("the Parquet file `{path}` {problem}")]
    Parquet { path: PathBuf, problem: String },
    #[error(
        "the first line of `{path}` cannot be read as CSV: {source}\n  hint: it names the fields; save the file as UTF-8"
    )]
    Table { path: PathBuf, source: csv::Error },
    #[error(
        "the chat template of the model cannot be read: {0}\n  hint: import the model again, with a template that is valid Jinja"
    )]
    ChatTemplate(#[source] RenderError),
    #[error("`{path}` has {n} records that can be used, and at least 2 are needed\n  hint: one is kept for validation")]
    TooFewRecords { path: PathBuf, n: usize },
    #[error(
        "{skipped} of the {n} records of `{path}` have no answer within the first {max_tokens} tokens, or an empty \
         one\n  hint: {}",
        skipped_hint(*max_tokens, *context_length)
    )]
    RecordsSkipped { path: PathBuf, skipped: usize, n: usize, max_tokens: usize, context_length: usize },
    #[error(
        "the text is to come through standard input, which is a terminal\n  hint: pipe it in, as in `cat *.txt | \
         tinderbox train ...`, or name a file instead of \"-\""
    )]
    Terminal,
    #[error(
        "the text came through standard input, and the copy kept as `{path}` is gone\n  hint: save the same text to a \
         file, and name that with --set data.path=FILE"
    )]
    NotKept { path: PathBuf },
    #[error("cannot use tokenizer.path: {0}")]
    Tokenizer(#[source] TokenizerError),
    #[error("cannot encode the text `{path}`: {source}")]
    Encode { path: PathBuf, source: TokenizerError },
    #[error(
        "the text `{path}` is too short: {n_train} of its {n_tokens} tokens are for training, and model.context_length = \
         {context_length} needs at least {}\n  hint: use more text, a shorter model.context_length or a smaller \
         data.val_fraction",
        context_length + 1
    )]
    TrainTooShort { path: PathBuf, n_tokens: u64, n_train: u64, context_length: usize },
    #[error(
        "the text `{path}` is too short: data.val_fraction = {val_fraction} leaves {n_val} of its {n_tokens} tokens for \
         validation, which needs at least 2\n  hint: use more text or a larger data.val_fraction"
    )]
    ValTooShort { path: PathBuf, n_tokens: u64, n_val: u64, val_fraction: f64 },
    #[error(
        "the text `{path}` is too short: it has {n_tokens} tokens, and at least 2 are needed to predict one\n  hint: \
         give a longer text"
    )]
    TooShort { path: PathBuf, n_tokens: u64 },
    #[error("the text `{path}` changed while it was read\n  hint: start again when nothing writes to it")]
    Changed { path: PathBuf },
    #[error("stopped while the text was read")]
    Stopped,
    #[error("the text {} has changed since the run began\n  hint: put it back as it was", in_quotes(paths))]
    OtherText { paths: Vec<PathBuf> },
    /// The next run would read the token files as text.
    #[error(
        "the token files of data.cache_dir = \"{cache_dir}\" would lie within the text \"{path}\"\n  hint: name a \
         folder outside of it"
    )]
    CacheInsideText { cache_dir: PathBuf, path: PathBuf },
    #[error(
        "the folder for encoded texts, `{path}`, belongs to another user, who could replace its files\n  hint: name \
         a folder of your own with the environment variable XDG_CACHE_HOME, or as data.cache_dir"
    )]
    CacheOfOthers { path: PathBuf },
    /// The token file was intact when it was opened.
    #[error(
        "cannot read the encoded text `{path}` any more: {source}\n  hint: start again, which encodes the text anew; a \
         run goes on with --resume"
    )]
    Tokens { path: PathBuf, source: io::Error },
    #[error("cannot keep the encoded text in `{path}`: {source}\n  hint: {}", cache_hint(source))]
    Cache { path: PathBuf, source: io::Error },
}

impl DataError {
    pub(super) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }

    pub(super) fn record(path: &Path, place: &str, number: u64, problem: String) -> Self {
        Self::Record { path: path.to_owned(), place: format!("{place} {number}"), problem }
    }

    pub(super) fn parquet(path: &Path, problem: String) -> Self {
        Self::Parquet { path: path.to_owned(), problem }
    }

    pub(super) fn cache(path: &Path, source: io::Error) -> Self {
        Self::Cache { path: path.to_owned(), source }
    }

    /// A file of the cache that was written just now cannot be opened.
    pub(super) fn not_as_written(path: &Path) -> Self {
        Self::cache(path, io::Error::other("the file that was written just now is not as it was written"))
    }
}

/// A line about the files of a folder that were left out.
pub(crate) fn about_left_out(paths: &[PathBuf]) -> String {
    const MOST: usize = 5;
    let more = paths.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let files = counted(paths.len() as u64, "file");
    format!("{files} left out, since not text in UTF-8: {}{more}", in_quotes(&paths[..paths.len().min(MOST)]))
}

/// Paths in backquotes, separated by commas.
pub fn in_quotes(paths: &[PathBuf]) -> String {
    let quoted = paths.iter().map(|path| format!("`{}`", path.display()));
    quoted.collect::<Vec<_>>().join(", ")
}

/// A hint about how to get the text that a shipped config calls `path`; `None` for any other text.
pub fn fetch_hint(path: &Path) -> Option<&'static str> {
    Some(match path.file_name()?.to_str()? {
        "stories.txt" => {
            "it comes with the program, which writes it to data/stories.txt for a config that names that path"
        }
        "tinyshakespeare.txt" => "`scripts/fetch_data.sh shakespeare` in the repository downloads it",
        "tinystories.txt" => "`scripts/fetch_data.sh tinystories` in the repository downloads it",
        "openwebtext" => "the config gpt2-124m.toml says where to get it",
        _ => return None,
    })
}

/// Advice for a text `path` that is missing: where to fetch it, or else the entry with the `nearest` name.
pub fn missing_hint(path: &Path, nearest: Option<&Path>) -> String {
    match (fetch_hint(path), nearest) {
        (Some(hint), _) => format!("{hint}; relative paths start at the working directory"),
        (None, Some(nearest)) => format!("did you mean `{}`?", nearest.display()),
        (None, None) => "relative paths start at the working directory".to_owned(),
    }
}

fn skipped_hint(max_tokens: usize, context_length: usize) -> &'static str {
    match max_tokens > context_length {
        true => {
            "the context of the model ends there: shorten these records or remove them, or, with rotary positions, --set \
             model.context_length=N"
        }
        false => "--set finetune.max_tokens=N reads more of them, or remove these records",
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn texts_of_shipped_configs_can_be_fetched() {
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        for file in std::fs::read_dir(configs).unwrap() {
            let config = Config::load(&file.unwrap().path(), &[]).unwrap();
            let path = &config.data.path;
            let hint = fetch_hint(path).unwrap_or_else(|| panic!("{}", path.display()));
            let script = include_str!("../../../../scripts/fetch_data.sh");
            let is_fetched = script.contains(&format!("target={}\n", path.display()));
            assert_eq!(hint.contains("fetch_data.sh"), is_fetched, "{hint}");
        }
    }
}
