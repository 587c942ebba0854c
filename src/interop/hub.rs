//! Models from the Hugging Face hub, into the cache that its own tools share.
//!
//! `HF_HOME` or `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean to those.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;

use super::InteropError;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Files that are downloaded where they are there.
const FILES: [&str; 6] = [
    CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
];

/// The tokenizer of older models.
const OLDER_FILES: [&str; 2] = ["vocab.json", "merges.txt"];

/// How often a download that broke off goes on, and after how long.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// How far the download of a file is: its name, the bytes that are there, and all of them.
pub type OnDownload<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// Downloads the model `OWNER/NAME`, as far as it is not in the cache, and returns its folder there.
///
/// # Errors
/// If there is no such model, the hub cannot be reached, or nothing can be written.
pub fn download(name: &str, on_download: OnDownload<'_>) -> Result<PathBuf, InteropError> {
    let fail = |reason: String, hint: &str| InteropError::Hub { name: name.to_owned(), reason, hint: hint.to_owned() };
    if !is_name(name) {
        return Err(fail("this is no name of a model".to_owned(), "write hf:OWNER/NAME, as the hub's pages show it"));
    }
    let cache = cache();
    let repo = Repo::model(name.to_owned());
    if is_set("HF_HUB_OFFLINE") {
        let config = cache.repo(repo).get(CONFIG);
        let folder = config.and_then(|config| Some(config.parent()?.to_owned()));
        let hint = "unset HF_HUB_OFFLINE to download it";
        return folder.ok_or_else(|| fail("HF_HUB_OFFLINE is set, and the model is not in the cache".to_owned(), hint));
    }
    let mut builder = ApiBuilder::from_cache(cache.clone()).with_progress(false);
    if let Ok(endpoint) = env::var("HF_ENDPOINT") {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    if let Ok(token) = env::var("HF_TOKEN") {
        builder = builder.with_token(Some(token));
    }
    let said = |error: ApiError| {
        let (reason, hint) = explained(&error);
        fail(reason, hint)
    };
    let api = builder.build().map_err(said)?;
    let info = api.repo(repo.clone()).info().map_err(said)?;
    if !info.sha.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(fail("the hub's answer names no revision".to_owned(), "check HF_ENDPOINT"));
    }
    // A file of this revision that is in the cache is the right one.
    let cached = cache.repo(repo.clone()).pointer_path(&info.sha);
    let pinned = api.repo(Repo::with_revision(name.to_owned(), RepoType::Model, info.sha.clone()));
    let there: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
    let has = |name: &str| there.iter().any(|it| it == name);
    let mut get = |file: &str| match cached.join(file) {
        path if path.exists() => Ok(path),
        _ => get(&pinned, file, on_download).map_err(said),
    };

    let is_older = !has("tokenizer.json");
    for file in FILES.into_iter().chain(OLDER_FILES.into_iter().filter(|_| is_older)).filter(|file| has(file)) {
        get(file)?;
    }
    if has(WEIGHTS) {
        get(WEIGHTS)?;
    } else if has(INDEX) {
        // Names that lead elsewhere are not there, and refused when the folder is opened.
        for file in shards(&get(INDEX)?).iter().filter(|file| has(file)) {
            get(file)?;
        }
    } else {
        let hint = "a model with .gguf files only can be downloaded by hand, and its file imported";
        return Err(fail("it has no safetensors files".to_owned(), hint));
    }
    cache.repo(repo).create_ref(&info.sha).map_err(|error| said(error.into()))?; // where offline use looks
    Ok(cached)
}

/// Whether it is `NAME` or `OWNER/NAME`, of the characters that the hub allows.
fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
    };
    name.split('/').count() <= 2 && name.split('/').all(is_part)
}

fn cache() -> Cache {
    match env::var_os("HF_HUB_CACHE") {
        Some(path) => Cache::new(path.into()),
        None => Cache::from_env(),
    }
}

fn is_set(variable: &str) -> bool {
    env::var(variable).is_ok_and(|value| ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str()))
}

/// The file in the cache, downloaded if it is not there. A download that breaks off goes on where it was.
fn get(api: &ApiRepo, file: &str, on_download: OnDownload<'_>) -> Result<PathBuf, ApiError> {
    let mut attempt = 1;
    loop {
        let counter = Counter { file: file.to_owned(), done: 0, all: 0, on_download: &mut *on_download };
        match api.download_with_progress(file, counter) {
            Err(error) if attempt < ATTEMPTS && is_broken_off(&error) => {
                attempt += 1;
                sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// The files that an index names.
fn shards(index: &Path) -> Vec<String> {
    let text = fs::read_to_string(index).unwrap_or_default();
    let index: Value = serde_json::from_str(&text).unwrap_or_default();
    let names = index["weight_map"].as_object().into_iter().flat_map(serde_json::Map::values);
    let mut names: Vec<String> = names.filter_map(|name| name.as_str().map(str::to_owned)).collect();
    names.sort();
    names.dedup();
    names
}

/// Whether it is worth another attempt: the connection, and not what was asked for, failed.
fn is_broken_off(error: &ApiError) -> bool {
    match error {
        ApiError::IoError(_) => true,
        ApiError::RequestError(error) => status(&error.to_string()).is_none_or(|status| status >= 500),
        _ => false,
    }
}

/// The status in the message of a request's error.
fn status(message: &str) -> Option<u16> {
    message.strip_prefix("http status: ")?.parse().ok()
}

/// The error, with a hint.
fn explained(error: &ApiError) -> (String, &'static str) {
    let ApiError::RequestError(request) = error else {
        return (error.to_string(), "try again: what was downloaded is kept");
    };
    let message = request.to_string();
    match status(&message) {
        Some(status @ (401 | 403 | 404)) => (
            format!("the hub answers {status}: there is no such model, or it is not for everybody"),
            "check the name; for a model that needs an account set HF_TOKEN",
        ),
        Some(status) => (format!("the hub answers {status}"), "try again later"),
        None => (
            format!("the hub cannot be reached: {message}"),
            "check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what was downloaded before",
        ),
    }
}

struct Counter<'a> {
    file: String,
    done: u64,
    all: u64,
    on_download: OnDownload<'a>,
}

impl Progress for Counter<'_> {
    fn init(&mut self, size: usize, _: &str) {
        (self.done, self.all) = (0, size as u64);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        (self.on_download)(&self.file, self.done, self.all);
    }

    fn finish(&mut self) {}
}
