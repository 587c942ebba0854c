//! Downloads models from the Hugging Face hub into the cache that the tools of Hugging Face share. `HF_HOME` or
//! `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_DOWNLOAD_TIMEOUT` and `HF_HUB_OFFLINE` have the same meaning as in
//! those tools. The hub is not trusted: a file is kept only under the hash that it has and the hub lists.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use sha1::{Digest as _, Sha1};
use sha2::{Digest as _, Sha256};
use tinderbox_model::disk;
use ureq::Agent;
use ureq::config::RedirectAuthHeaders;

use super::InteropError;
use super::hf::adapter;
use super::hf::folder::is_plain;
use super::hf::{CONFIG, GENERATION, INDEX, PICKLES, WEIGHTS, conversion};

/// Files that are downloaded if they exist.
const FILES: [&str; 8] = [
    CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "additional_chat_templates/rag.jinja",
    GENERATION,
];

/// The tokenizer files of older models.
const OLDER_FILES: [&str; 4] = ["vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json"];

/// The number of times that a request is made whose connection fails, and the longest pause between them.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// The time without a byte from the hub after which a request has failed, unless `HF_HUB_DOWNLOAD_TIMEOUT` gives it.
const SILENCE: Duration = Duration::from_secs(30);

/// The size of the largest accepted list of files, in bytes: some 100,000 files.
const LARGEST_LIST: u64 = 1 << 24;

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
    let Some(home) = home() else {
        return Err(fail("you have no home directory for the cache".to_owned(), "set HF_HOME to a directory"));
    };
    let cache = variable("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from);
    let folder = cache.join(format!("models--{}", name.replace('/', "--")));
    let snapshot = |commit: &str| folder.join("snapshots").join(commit);
    let reference = folder.join("refs").join(revision);
    if is_set("HF_HUB_OFFLINE") {
        let commit = fs::read_to_string(&reference).unwrap_or_default();
        let cached = snapshot(commit.trim());
        let path = cached.join(file.unwrap_or(CONFIG));
        if !is_hash(commit.trim()) || !path.exists() {
            let what = file.map_or("the model".to_owned(), |file| format!("its file {file}"));
            let reason = format!("HF_HUB_OFFLINE is set, and {what} is not in the cache");
            return Err(fail(reason, "unset HF_HUB_OFFLINE to download it"));
        }
        return Ok(if file.is_some() { path } else { cached });
    }
    let silence = match variable("HF_HUB_DOWNLOAD_TIMEOUT") {
        None => SILENCE,
        Some(seconds) => seconds
            .parse::<f64>()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .filter(|silence| !silence.is_zero())
            .ok_or_else(|| fail(format!("HF_HUB_DOWNLOAD_TIMEOUT is `{seconds}`"), "give a number of seconds"))?,
    };
    let hub = Hub::new(name, &folder, silence, home);
    let said = |failure: Failure| {
        let (reason, hint) = failure.explained(silence);
        fail(reason.replace(char::is_control, "\u{fffd}"), hint)
    };
    let Info { sha, siblings } = hub.info(revision).map_err(said)?;
    // A cached file of this revision is up to date.
    let cached = snapshot(&sha);
    let has = |name: &str| siblings.iter().any(|it| it.rfilename == name);
    let mut get = |name: &str| {
        let path = cached.join(name);
        match siblings.iter().find(|it| it.rfilename == name) {
            Some(file) if !path.exists() => hub.get(&sha, file, &path, on_download).map_err(said)?,
            _ => {}
        }
        Ok::<_, InteropError>(path)
    };
    // Read when offline.
    let done = || {
        let write = || {
            fs::create_dir_all(disk::folder_of(&reference))?;
            disk::write_atomically(&reference, sha.as_bytes())
        };
        write().map_err(|error| said(Failure::Cache(error)))
    };

    let ggufs = listed_ggufs(&siblings);
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
        let of_adapters = [adapter::CONFIG, adapter::WEIGHTS];
        if of_adapters.iter().all(|file| has(file)) {
            for file in of_adapters {
                get(file)?;
            }
            done()?;
            return Ok(cached);
        }
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
fn listed_ggufs(there: &[Sibling]) -> Option<String> {
    let is_shown = |name: &&str| is_gguf(name) && is_plain(name) && !name.contains(char::is_control);
    let files: Vec<&str> = there.iter().map(|file| &*file.rfilename).filter(is_shown).collect();
    (!files.is_empty()).then(|| format!("there are {}", files.join(", ")))
}

/// Whether a text is a hash as git and the hub write it: of SHA-1 or SHA-256.
fn is_hash(text: &str) -> bool {
    [40, 64].contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The folder of the tools of Hugging Face, which has the cache and the token; `None` if its location is unknown.
fn home() -> Option<PathBuf> {
    let home = variable("HF_HOME").map(PathBuf::from);
    home.or_else(|| Some(env::home_dir()?.join(".cache").join("huggingface")))
}

/// The value of an environment variable; `None` if it is unset or empty.
fn variable(name: &str) -> Option<String> {
    let value = env::var(name).ok()?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str()))
}

/// The hub's answer about a model.
#[derive(Deserialize)]
struct Info {
    /// The commit.
    sha: String,
    siblings: Vec<Sibling>,
}

/// A file of a model.
#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    /// Git's hash of a file that is stored in the repository.
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

/// A large file, which is stored elsewhere.
#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Sibling {
    /// The hash of the file, which is the name of its blob in the cache, and its size.
    fn announced(&self) -> Result<(&str, u64), Failure> {
        let announced = match (&self.lfs, &self.blob_id, self.size) {
            (Some(Lfs { sha256, size }), ..) => Some((sha256, *size, 64)),
            (None, Some(blob_id), Some(size)) => Some((blob_id, size, 40)),
            _ => None,
        };
        match announced {
            Some((hash, size, length)) if is_hash(hash) && hash.len() == length => Ok((hash, size)),
            _ => Err(Failure::Answer(format!("it lists no size and hash of {}", self.rfilename))),
        }
    }
}

/// A model of a hub.
struct Hub<'a> {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    name: &'a str,
    /// The model's folder in the cache.
    folder: &'a Path,
    pause: Duration,
}

impl<'a> Hub<'a> {
    fn new(name: &'a str, folder: &'a Path, silence: Duration, home: PathBuf) -> Self {
        let limit = Some(silence);
        let config = Agent::config_builder()
            .user_agent(concat!("tinderbox/", env!("CARGO_PKG_VERSION")))
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_resolve(limit)
            .timeout_connect(limit)
            .timeout_recv_response(limit)
            .timeout_per_read(limit)
            .timeout_per_write(limit);
        let token = variable("HF_TOKEN").or_else(|| {
            let token = fs::read_to_string(home.join("token")).ok()?;
            Some(token.trim().to_owned()).filter(|token| !token.is_empty())
        });
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Self { agent: config.build().into(), endpoint, token, name, folder, pause: PAUSE.min(silence) }
    }

    /// Asks again while the connection fails.
    fn retried<T>(&self, mut ask: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
        let mut attempt = 1;
        loop {
            match ask() {
                Err(failure) if attempt < ATTEMPTS && failure.may_pass() => {
                    attempt += 1;
                    sleep(self.pause);
                }
                result => return result,
            }
        }
    }

    /// The response to a request for a path, from this byte on.
    fn ask(&self, path: &str, from: u64) -> Result<ureq::http::Response<ureq::Body>, Failure> {
        let mut request = self.agent.get(format!("{}/{path}", self.endpoint));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        request.call().map_err(|error| Failure::Request(Box::new(error)))
    }

    fn info(&self, revision: &str) -> Result<Info, Failure> {
        let path = format!("api/models/{}/revision/{}?blobs=true", self.name, revision.replace('/', "%2F"));
        let mut response = self.ask(&path, 0)?;
        let body = response.body_mut().with_config().limit(LARGEST_LIST).read_to_vec();
        let text = body.map_err(|error| Failure::Body(Box::new(error)))?;
        let info: Info = serde_json::from_slice(&text).map_err(|error| Failure::Answer(format!("json: {error}")))?;
        if !is_hash(&info.sha) {
            return Err(Failure::Answer("it names no revision".to_owned()));
        }
        Ok(info)
    }

    /// Downloads a file of a commit into the cache, and links it at `link`.
    fn get(&self, commit: &str, file: &Sibling, link: &Path, on_download: OnDownload<'_>) -> Result<(), Failure> {
        let (hash, size) = file.announced()?;
        let blobs = self.folder.join("blobs");
        fs::create_dir_all(&blobs).map_err(Failure::Cache)?;
        let blob = blobs.join(hash);
        let lock = disk::open_lock(&blob.with_extension("lock")).map_err(Failure::Cache)?;
        self.retried(|| match lock.try_lock() {
            Err(TryLockError::WouldBlock) => Err(Failure::Busy),
            _ => Ok(()), // some network drives do not support locks
        })?;
        if !hash_is(&blob, size, hash).unwrap_or(false) {
            let part = blob.with_extension("part");
            let path = format!("{}/resolve/{commit}/{}", self.name, encoded(&file.rfilename));
            let mut fetch = || self.fetch(&path, &part, &file.rfilename, (hash, size), on_download);
            // A part of other bytes is removed, and the whole file is fetched.
            let is_resumed = part.exists();
            match self.retried(&mut fetch) {
                Err(Failure::Content(_)) if is_resumed => self.retried(fetch)?,
                result => result?,
            }
            fs::rename(part, &blob).map_err(Failure::Cache)?;
        }
        place(&blob, link).map_err(Failure::Cache)
    }

    /// Downloads what is missing of a part of a file, and checks it.
    fn fetch(
        &self,
        path: &str,
        part: &Path,
        name: &str,
        (hash, size): (&str, u64),
        on_download: OnDownload<'_>,
    ) -> Result<(), Failure> {
        let mut file = File::options().append(true).create(true).open(part).map_err(Failure::Cache)?;
        let mut done = file.metadata().map_err(Failure::Cache)?.len();
        if done < size {
            let response = self.ask(path, done)?;
            let range = response.headers().get("Content-Range").and_then(|range| range.to_str().ok());
            match response.status().as_u16() {
                206 if range.is_some_and(|range| range.starts_with(&format!("bytes {done}-"))) => {}
                200 => {
                    file.set_len(0).map_err(Failure::Cache)?;
                    done = 0;
                }
                status => return Err(Failure::Answer(format!("it answers {status} for {name}"))),
            }
            let mut body = response.into_body().into_reader();
            let mut buffer = vec![0; 1 << 16];
            loop {
                on_download(name, done, size);
                let n = body.read(&mut buffer).map_err(|error| Failure::Body(Box::new(error.into())))?;
                if n == 0 || done > size {
                    break;
                }
                file.write_all(&buffer[..n]).map_err(Failure::Cache)?;
                done += n as u64;
            }
            if done < size {
                let reason = format!("{name} came with {done} bytes of {size}");
                return Err(Failure::Body(Box::new(io::Error::new(ErrorKind::UnexpectedEof, reason).into())));
            }
        }
        if hash_is(part, size, hash).map_err(Failure::Cache)? {
            return file.sync_all().map_err(Failure::Cache);
        }
        fs::remove_file(part).map_err(Failure::Cache)?;
        Err(Failure::Content(name.to_owned()))
    }
}

/// Why a model cannot be downloaded.
enum Failure {
    /// No response, or one of an error.
    Request(Box<ureq::Error>),
    /// The response broke off.
    Body(Box<ureq::Error>),
    /// The response is none of a hub.
    Answer(String),
    /// This file is not the one that the hub lists.
    Content(String),
    Cache(io::Error),
    /// Another program holds the lock.
    Busy,
}

impl Failure {
    /// Whether another attempt may succeed.
    fn may_pass(&self) -> bool {
        use ureq::Error::{ConnectionFailed, Io, StatusCode, Timeout};
        match self {
            Self::Busy => true,
            Self::Request(error) | Self::Body(error) => {
                matches!(**error, ConnectionFailed | Io(_) | Timeout(_) | StatusCode(500..))
            }
            _ => false,
        }
    }

    /// The reason, and a hint.
    fn explained(&self, silence: Duration) -> (String, &'static str) {
        use ureq::Error::{
            BadUri, BodyExceedsLimit, LargeResponseHeader, Protocol, StatusCode, Timeout, TooManyRedirects,
        };
        match self {
            Self::Request(error) | Self::Body(error) => match &**error {
                StatusCode(status @ (401 | 403 | 404)) => (
                    format!("the hub answers {status}: there is no such model, or it is not for everybody"),
                    "check the name; for a model that needs an account set HF_TOKEN",
                ),
                StatusCode(status) => (format!("the hub answers {status}"), "try again later"),
                Timeout(_) => (
                    format!("the hub sent nothing for {} s", silence.as_secs_f64()),
                    "try again: what was downloaded is kept; HF_HUB_DOWNLOAD_TIMEOUT=SECONDS waits longer",
                ),
                BadUri(_) | BodyExceedsLimit(_) | LargeResponseHeader(..) | Protocol(_) | TooManyRedirects => {
                    Self::Answer(error.to_string()).explained(silence)
                }
                _ if matches!(self, Self::Body(_)) => {
                    let message = error.to_string();
                    let message = message.strip_prefix("io: ").unwrap_or(&message);
                    (format!("the connection broke off: {message}"), "try again: what was downloaded is kept")
                }
                _ => (
                    format!("the hub cannot be reached: {error}"),
                    "check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what was downloaded before",
                ),
            },
            Self::Answer(reason) => {
                (format!("the answer is not the hub's: {reason}"), "check the network and HF_ENDPOINT")
            }
            Self::Content(file) => (
                format!("{file} is not the file that the hub lists: its length or its hash is another"),
                "check the network and HF_ENDPOINT; nothing of the file was kept",
            ),
            Self::Cache(error) => (
                format!("the cache cannot be written: {error}"),
                "make room for the cache, where you may write: HF_HOME says where it is",
            ),
            Self::Busy => ("another program is downloading it".to_owned(), "try again when that is done"),
        }
    }
}

/// Whether the file at `path` has this size and hash: of 64 digits that of SHA-256, of 40 that of a blob of git.
fn hash_is(path: &Path, size: u64, hash: &str) -> io::Result<bool> {
    let file = File::open(path)?;
    if file.metadata()?.len() != size {
        return Ok(false);
    }
    let digits = |found: &[u8]| found.iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"));
    if hash.len() == 64 {
        let mut found = Sha256::new();
        disk::each_chunk(file, |chunk| found.update(chunk))?;
        return Ok(digits(&found.finalize()) == hash);
    }
    let mut found = Sha1::new_with_prefix(format!("blob {size}\0"));
    disk::each_chunk(file, |chunk| found.update(chunk))?;
    Ok(digits(&found.finalize()) == hash)
}

/// Links a blob at a path of a snapshot, relative, so that the cache can be moved; on a system without links it is moved
/// there.
fn place(blob: &Path, link: &Path) -> io::Result<()> {
    fs::create_dir_all(disk::folder_of(link))?;
    if disk::is_link(link) {
        fs::remove_file(link)?; // its blob is gone
    }
    #[cfg(unix)]
    {
        let root = blob.ancestors().nth(2).expect("a blob is in the model's folder");
        let up = link.strip_prefix(root).map_or(0, |path| path.components().count() - 1);
        let name = blob.strip_prefix(root).expect("a blob is in the model's folder");
        let up: PathBuf = std::iter::repeat_n("..", up).collect();
        std::os::unix::fs::symlink(up.join(name), link)
    }
    #[cfg(not(unix))]
    {
        fs::rename(blob, link)
    }
}

/// A file's name in the path of an address.
fn encoded(name: &str) -> String {
    name.bytes().fold(String::new(), |mut path, byte| match byte {
        b'/' | b'-' | b'_' | b'.' | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
            path.push(byte.into());
            path
        }
        _ => format!("{path}%{byte:02X}"),
    })
}

/// The files that an index names.
fn shards(index: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(index).unwrap_or_default();
    let index: Value = serde_json::from_str(&text).unwrap_or_default();
    let names = index["weight_map"].as_object().into_iter().flat_map(serde_json::Map::values);
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
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
