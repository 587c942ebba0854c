//! A folder from an untrusted source: names and links that lead out of it are refused.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::InteropError;
use crate::error::{cannot_read, damaged};

/// The length of the longest file that is read whole. The largest `tokenizer.json` files are about 30 MB.
const LONGEST: u64 = 1 << 28;

/// A folder, and the folders that its links may point to.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// The folder's real path and, in a hub cache, the path of its blobs.
    allowed: Vec<PathBuf>,
}

impl Folder {
    pub(super) fn open(path: &Path) -> Result<Self, InteropError> {
        let real = path.canonicalize().map_err(cannot_read(path))?;
        // `models--OWNER--NAME/snapshots/REVISION` links to files in `models--OWNER--NAME/blobs`.
        let snapshots = real.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"));
        let blobs = snapshots.and_then(|snapshots| Some(snapshots.parent()?.join("blobs")));
        let allowed = std::iter::once(real.clone()).chain(blobs).collect();
        Ok(Self { path: path.to_owned(), allowed })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in the folder; `None` if there is none.
    pub(super) fn file(&self, name: &str) -> Result<Option<PathBuf>, InteropError> {
        let outside = || InteropError::Outside { path: self.path.clone(), name: name.to_owned() };
        if !is_plain(name) {
            return Err(outside());
        }
        let path = self.path.join(name);
        match path.canonicalize() {
            Ok(real) if self.allowed.iter().any(|allowed| real.starts_with(allowed)) => {
                Ok(real.is_file().then_some(path))
            }
            Ok(_) => Err(outside()),
            Err(_) => Ok(None),
        }
    }

    pub(super) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, InteropError> {
        let Some(path) = self.file(name)? else { return Ok(None) };
        let length = path.metadata().map_err(cannot_read(&path))?.len();
        if length > LONGEST {
            let reason = format!("it has {length} bytes, and {LONGEST} are the most that is read");
            return Err(damaged(&path, reason));
        }
        fs::read(&path).map(Some).map_err(cannot_read(&path))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, InteropError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| damaged(&self.path.join(name), "it is not UTF-8"))
    }

    /// The content of a JSON file in the folder, which must be an object; `None` if there is none.
    pub(super) fn json(&self, name: &str) -> Result<Option<serde_json::Map<String, serde_json::Value>>, InteropError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        object(&text, &self.path.join(name)).map(Some)
    }
}

/// Whether a name leads to a file within a folder.
pub(crate) fn is_plain(name: &str) -> bool {
    Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

/// The JSON object in the content of the file at `path`.
pub(super) fn object(text: &str, path: &Path) -> Result<serde_json::Map<String, serde_json::Value>, InteropError> {
    serde_json::from_str(text).map_err(|error| damaged(path, format!("it is not a JSON object: {error}")))
}
