//! Downloads models from the Hugging Face hub into the cache that the tools of Hugging Face share. `HF_HOME` or
//! `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` have the same meaning as in those tools.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;

use super::InteropError;
use super::hf::folder::is_plain;
use super::hf::{CONFIG, GENERATION, INDEX, PICKLES, WEIGHTS, conversion};

/// Files that are downloaded if they exist.
const FILES: [&str; 6] =
    [CONFIG, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", GENERATION];

/// The tokenizer files of older models.
const OLDER_FILES: [&str; 4] = ["vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json"];

/// The number of times that an interrupted download is resumed, and the pause before each.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// Receives the progress of a download: the file's name, the bytes so far, and the total.
pub type OnDownload<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// A model of the hub, `OWNER/NAME`, optionally with `@REVISION` and one of its files, `/FILE.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address<'a> {
    name: &'a str,
    revision: &'a str,
    file: Option<&'a str>,
}

impl<'a> Address<'a> {
    /// Parses an address; `None` if it is malformed.
    fn read(address: &'a str) -> Option<Self> {
        let is_file = is_gguf(address);
        let (name, revision, file) = match address.split_once('@') {
            Some((name, rest)) if is_file => {
                rest.split_once('/').map(|(revision, file)| (name, revision, Some(file)))?
            }
            Some((name, revision)) => (name, revision, None),
            None if is_file => {
                let (at, _) = address.match_indices('/').nth(1)?;
                (&address[..at], MAIN, Some(&address[at + 1..]))
            }
            None => (address, MAIN, None),
        };
        let is_good = is_name(name) && revision.split('/').all(is_part) && file.is_none_or(is_plain);
        is_good.then_some(Self { name, revision, file })
    }
}

/// The default revision.
const MAIN: &str = "main";

/// Downloads the missing files of a model into the cache: `OWNER/NAME`, or `OWNER/NAME@REVISION`, where a revision is a
/// branch, a tag or a commit. Returns its folder there; or, for `OWNER/NAME/FILE.gguf` or
/// `OWNER/NAME@REVISION/FILE.gguf`, that file.
pub fn download(address: &str, on_download: OnDownload<'_>) -> Result<PathBuf, InteropError> {
    let fail =
        |reason: String, hint: &str| InteropError::Hub { name: address.to_owned(), reason, hint: hint.to_owned() };
    let Some(Address { name, revision, file }) = Address::read(address) else {
        return Err(fail(
            "this is not the name of a model".to_owned(),
            "write hf:OWNER/NAME, as the hub's pages show it, hf:OWNER/NAME@REVISION or hf:OWNER/NAME/FILE.gguf",
        ));
    };
    let Some(cache) = cache() else {
        return Err(fail("you have no home directory for the cache".to_owned(), "set HF_HOME to a directory"));
    };
    let repo = Repo::with_revision(name.to_owned(), RepoType::Model, revision.to_owned());
    if is_set("HF_HUB_OFFLINE") {
        let reason = |what: &str| format!("HF_HUB_OFFLINE is set, and {what} is not in the cache");
        let fail = |what: &str| fail(reason(what), "unset HF_HUB_OFFLINE to download it");
        let cached = cache.repo(repo);
        if let Some(file) = file {
            return cached.get(file).ok_or_else(|| fail(&format!("its file {file}")));
        }
        let config = cached.get(CONFIG).ok_or_else(|| fail("the model"))?;
        return Ok(config.parent().expect("the file is in a folder").to_owned());
    }
    let mut builder = ApiBuilder::from_cache(cache.clone()).with_progress(false);
    if let Some(endpoint) = variable("HF_ENDPOINT") {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    if let Some(token) = variable("HF_TOKEN") {
        builder = builder.with_token(Some(token));
    }
    let said = |error: ApiError| {
        let (reason, hint) = explained(&error);
        fail(reason, hint)
    };
    let api = builder.build().map_err(said)?;
    let info = api.repo(repo.clone()).info().map_err(said)?;
    if info.sha.is_empty() || !info.sha.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(fail("the hub's answer names no revision".to_owned(), "check HF_ENDPOINT"));
    }
    // A cached file of this revision is up to date.
    let cached = cache.repo(repo.clone()).pointer_path(&info.sha);
    let pinned = Repo::with_revision(name.to_owned(), RepoType::Model, info.sha.clone());
    let there: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
    let has = |name: &str| there.iter().any(|it| it == name);
    let mut get = |file: &str| match cached.join(file) {
        path if path.exists() => Ok(path),
        _ => get(&api, &cache, &pinned, file, on_download).map_err(said),
    };
    // Read when offline.
    let done = || cache.repo(repo.clone()).create_ref(&info.sha).map_err(|error| said(error.into()));

    let ggufs = listed_ggufs(&there);
    if let Some(file) = file {
        if !has(file) {
            let hint = ggufs.unwrap_or_else(|| "it has no .gguf files at all".to_owned());
            return Err(fail(format!("it has no file {file}"), &hint));
        }
        let path = get(file)?;
        done()?;
        return Ok(path);
    }
    if !has(WEIGHTS) && !has(INDEX) {
        let hint = match (ggufs, PICKLES.into_iter().find(|pickle| has(pickle))) {
            (Some(ggufs), _) => format!("name a file, as in hf:{address}/FILE.gguf: {ggufs}"),
            (None, Some(pickle)) => {
                format!("its weights are in {pickle}, which can run any code: if you trust it, {}", conversion(name))
            }
            (None, None) => "name another model".to_owned(),
        };
        return Err(fail("it has no safetensors files".to_owned(), &hint));
    }
    let is_older = !has("tokenizer.json");
    for file in FILES.into_iter().chain(OLDER_FILES.into_iter().filter(|_| is_older)).filter(|file| has(file)) {
        get(file)?;
    }
    if has(WEIGHTS) {
        get(WEIGHTS)?;
    } else {
        // Names that lead outside the folder are rejected when it is opened.
        for file in shards(&get(INDEX)?).iter().filter(|file| is_plain(file) && has(file)) {
            get(file)?;
        }
    }
    done()?;
    Ok(cached)
}

/// Whether a name is `NAME` or `OWNER/NAME`, in characters that the hub allows.
fn is_name(name: &str) -> bool {
    name.split('/').count() <= 2 && name.split('/').all(is_part)
}

fn is_part(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
}

fn is_gguf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// The names of the .gguf files among those of a model, for an error; `None` if there are none.
fn listed_ggufs(there: &[String]) -> Option<String> {
    let files: Vec<&str> = there.iter().map(String::as_str).filter(|file| is_gguf(file)).collect();
    (!files.is_empty()).then(|| format!("there are {}", files.join(", ")))
}

/// The cache; `None` if its location is unknown.
fn cache() -> Option<Cache> {
    match variable("HF_HUB_CACHE") {
        Some(path) => Some(Cache::new(path.into())),
        None => (env::var_os("HF_HOME").is_some() || env::home_dir().is_some()).then(Cache::from_env),
    }
}

/// The value of an environment variable; `None` if it is unset or empty.
fn variable(name: &str) -> Option<String> {
    let value = env::var(name).ok()?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str()))
}

/// Downloads a file into the cache, resuming interrupted downloads.
fn get(api: &Api, cache: &Cache, repo: &Repo, file: &str, on_download: OnDownload<'_>) -> Result<PathBuf, ApiError> {
    let mut attempt = 1;
    loop {
        match get_once(api, repo, file, on_download) {
            Err(error) if attempt < ATTEMPTS && may_be_retried(&error) => {
                attempt += 1;
                if cannot_resume(&error) {
                    let etag = api.metadata(&api.repo(repo.clone()).url(file))?;
                    fs::remove_file(cache.repo(repo.clone()).blob_path(etag.etag()).with_extension("part"))?;
                } else {
                    sleep(PAUSE);
                }
            }
            result => return result,
        }
    }
}

/// Downloads a file and checks its length against the one that the hub reports, which the library does not do.
fn get_once(api: &Api, repo: &Repo, file: &str, on_download: OnDownload<'_>) -> Result<PathBuf, ApiError> {
    let mut all = 0;
    let counter = Counter { file: file.to_owned(), done: 0, all: &mut all, on_download };
    let path = api.repo(repo.clone()).download_with_progress(file, counter)?;
    let found = fs::metadata(&path)?.len();
    if found == all {
        return Ok(path);
    }
    let blob = path.canonicalize()?;
    fs::remove_file(&path)?;
    if blob.exists() {
        fs::remove_file(blob)?; // the path was a link to it
    }
    let reason = format!("{file} came with {found} bytes of {all}");
    Err(io::Error::new(ErrorKind::UnexpectedEof, reason).into())
}

/// The files that an index names.
fn shards(index: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(index).unwrap_or_default();
    let index: Value = serde_json::from_str(&text).unwrap_or_default();
    let names = index["weight_map"].as_object().into_iter().flat_map(serde_json::Map::values);
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Whether another attempt may succeed: the connection failed, or the partial file was unusable.
fn may_be_retried(error: &ApiError) -> bool {
    let is_broken = match error {
        ApiError::IoError(error) => is_connection_error(error),
        ApiError::RequestError(error) => status(&error.to_string()).is_none_or(|status| status >= 500),
        _ => false,
    };
    is_broken || cannot_resume(error)
}

/// Whether an error concerns the connection rather than the disk.
fn is_connection_error(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, Other, TimedOut, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | Other | TimedOut | UnexpectedEof)
}

/// Whether the partial file cannot be continued: it is as long as the file, or longer.
fn cannot_resume(error: &ApiError) -> bool {
    match error {
        ApiError::InvalidResume => true,
        ApiError::RequestError(error) => status(&error.to_string()) == Some(416), // Range Not Satisfiable
        _ => false,
    }
}

/// The HTTP status in the message of a request error.
fn status(message: &str) -> Option<u16> {
    message.strip_prefix("http status: ")?.parse().ok()
}

/// The error, with a hint.
fn explained(error: &ApiError) -> (String, &'static str) {
    let request = match error {
        ApiError::RequestError(request) => request,
        ApiError::IoError(error) if !is_connection_error(error) => {
            let hint = "make room for the cache, where you may write: HF_HOME says where it is";
            return (format!("the cache cannot be written: {error}"), hint);
        }
        ApiError::LockAcquisition(_) => {
            return ("another program is downloading it".to_owned(), "try again when that is done");
        }
        ApiError::IoError(error) => {
            return (format!("the connection broke off: {error}"), "try again: what was downloaded is kept");
        }
        _ => return (error.to_string(), "try again: what was downloaded is kept"),
    };
    let message = request.to_string();
    match status(&message) {
        Some(status @ (401 | 403 | 404)) => (
            format!("the hub answers {status}: there is no such model, or it is not for everybody"),
            "check the name; for a model that needs an account set HF_TOKEN",
        ),
        Some(status) => (format!("the hub answers {status}"), "try again later"),
        None if message.starts_with("json: ") => {
            (format!("the answer is not the hub's: {message}"), "check the network and HF_ENDPOINT")
        }
        None => (
            format!("the hub cannot be reached: {message}"),
            "check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what was downloaded before",
        ),
    }
}

struct Counter<'a> {
    file: String,
    done: u64,
    all: &'a mut u64,
    on_download: OnDownload<'a>,
}

impl Progress for Counter<'_> {
    fn init(&mut self, size: usize, _: &str) {
        (self.done, *self.all) = (0, size as u64);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        (self.on_download)(&self.file, self.done, *self.all);
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_name_revision_and_file() {
        for (address, name, revision, file) in [
            ("gpt2", "gpt2", MAIN, None),
            ("a/b-1.5", "a/b-1.5", MAIN, None),
            ("a/b@v1.0", "a/b", "v1.0", None),
            ("gpt2@refs/pr/2", "gpt2", "refs/pr/2", None),
            ("a/b/c.Q4_K_M.gguf", "a/b", MAIN, Some("c.Q4_K_M.gguf")),
            ("a/b/d/c.GGUF", "a/b", MAIN, Some("d/c.GGUF")),
            ("a/b@0123/d/c.gguf", "a/b", "0123", Some("d/c.gguf")),
        ] {
            assert_eq!(Address::read(address), Some(Address { name, revision, file }), "{address}");
        }
        for address in ["", "a/b/c", "a/../b", "a/b@", "a/b@../c", "a/b@c@d", "a/b/../c.gguf", "a.gguf", "a/b@c.gguf"] {
            let read = Address::read(address);
            assert!(read.is_none(), "{address}: {read:?}");
        }
    }
}
