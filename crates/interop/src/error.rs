//! The errors of importing models of other projects and exporting models to them.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::Family;
use tinderbox_model::tokenizer::TokenizerError;
use tinderbox_train::run::RunError;

/// The reason why a model cannot be imported or exported.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum InteropError {
    #[error(
        "there is no model at `{0}`\n  hint: name a folder with a config.json and safetensors files, or a .gguf file; \
         import downloads hf:OWNER/NAME"
    )]
    NotFound(PathBuf),
    #[error("`{path}` is not a model that can be imported: {reason}\n  hint: {hint}")]
    NotAModel { path: PathBuf, reason: String, hint: String },
    #[error("cannot read `{path}`: {source}\n  hint: check that it is there and that you may read it")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{path}`: {source}\n  hint: {}", write_hint(source))]
    Write { path: PathBuf, source: io::Error },
    #[error("`{path}` is damaged: {reason}\n  hint: download or write it again")]
    Damaged { path: PathBuf, reason: String },
    #[error("`{path}` names `{name}`, which is outside of the folder\n  hint: all files of a model lie in its folder")]
    Outside { path: PathBuf, name: String },
    #[error("the model in `{path}` is not supported:{}", listed(problems))]
    Unsupported { path: PathBuf, problems: Vec<String> },
    #[error(
        "the tensors in `{path}` do not fit its config:{}\n  hint: the file is incomplete, or its config is that of \
         another model",
        listed(problems)
    )]
    Tensors { path: PathBuf, problems: Vec<String> },
    #[error(
        "no model family of other projects matches this run:{}\n  hint: train one that matches, such as the configs of \
         `tinderbox init`; `tinderbox plan CONFIG` says whether a config is portable",
        listed(unsupported_keys)
    )]
    NotPortable { unsupported_keys: Vec<String> },
    #[error(
        "the run cannot be the model in `{path}`, which is of the family {family}:{}\n  hint: compare it with a model \
         that it was imported from or exported to",
        listed(unsupported_keys)
    )]
    OtherFamily { path: PathBuf, family: &'static Family, unsupported_keys: Vec<String> },
    #[error(
        "the run `{0}` has no adapter: all of its weights were trained\n  hint: leave out --adapter; the export has the \
         whole model"
    )]
    NoAdapter(PathBuf),
    #[error(
        "the run `{0}` has also trained the vectors of some tokens, which adapter files cannot hold\n  hint: leave out \
         --adapter: the export then merges them with the weights"
    )]
    TokensOfAdapter(PathBuf),
    #[error("the adapters in `{path}` cannot be used with this model:{}", listed(problems))]
    Adapters { path: PathBuf, problems: Vec<String> },
    #[error("the text has no tokens\n  hint: give another one with --prompt")]
    EmptyText,
    #[error("this model cannot be a GGUF file: {reason}\n  hint: export it as a Hugging Face folder, with --to hf")]
    NoGguf { reason: String },
    #[error("`{0}` already exists; nothing was written\n  hint: choose another place, or replace it with --overwrite")]
    Exists(PathBuf),
    #[error("`{0}` does not name a folder that can be created\n  hint: give it a name, such as my-model")]
    NoName(PathBuf),
    #[error("`{0}` exists and holds no model, so it is not replaced\n  hint: choose another place")]
    NotAnExport(PathBuf),
    #[error(
        "nothing was written to `{path}`: these files are not from an export, or were changed since:{}\n  \
         hint: choose another place, or move them elsewhere",
        listed(others)
    )]
    InTheWay { path: PathBuf, others: Vec<String> },
    #[error("cannot get the model `{name}` from the Hugging Face hub: {reason}\n  hint: {hint}")]
    Hub { name: String, reason: String, hint: String },
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Run(#[from] RunError),
}

impl InteropError {
    /// The error of adapters, at `path`, where a model is needed; `base` is the name of theirs.
    pub(crate) fn adapters_alone(path: &Path, base: Option<&str>) -> Self {
        let of = base.map(|base| format!(" of the model `{base}`")).unwrap_or_default();
        Self::NotAModel {
            path: path.to_owned(),
            reason: format!("it holds adapters{of}, without the model"),
            hint: "import their model first; then name its run: --base RUN".to_owned(),
        }
    }
}

/// The problems, one per line, truncated if there are many.
fn listed(problems: &[String]) -> String {
    const MOST: usize = 20;
    let rest = problems.len().saturating_sub(MOST);
    let rest = (rest > 0).then(|| format!("and {rest} more"));
    problems.iter().take(MOST).chain(&rest).fold(String::new(), |list, problem| list + "\n  - " + problem)
}

fn write_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room on the disk",
        _ => "choose a place that you may write to",
    }
}

pub(super) fn cannot_read(path: &Path) -> impl Fn(io::Error) -> InteropError {
    move |source| InteropError::Read { path: path.to_owned(), source }
}

pub(super) fn cannot_write(path: &Path) -> impl Fn(io::Error) -> InteropError {
    move |source| InteropError::Write { path: path.to_owned(), source }
}

pub(super) fn damaged(path: &Path, reason: impl Into<String>) -> InteropError {
    InteropError::Damaged { path: path.to_owned(), reason: reason.into() }
}
