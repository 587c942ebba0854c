//! The folder of results that can be computed again: token files and trained tokenizers.
//!
//! The files are named by everything that they follow from, so nothing stale is ever found. The folder is kept
//! below a size: the files unused for longest are removed first, and none that is in use. Texts that came
//! through standard input lie there, too; they cannot be had again, and stay until someone deletes them.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::DataError;
use super::source::Source;
use crate::config::DataConfig;

/// A temporary file this old without a lock is left over from a process that was killed. A younger one may not
/// have been locked yet.
const LEFT_OVER_AFTER: Duration = Duration::from_hours(1);

/// The file that a process locks while it removes others.
const LOCK: &str = ".lock";

/// Hexadecimal digits in the names of cached files.
const DIGITS: usize = 32;

/// The folder, which exists.
#[derive(Debug)]
pub(super) struct Cache {
    pub folder: PathBuf,
    limit_bytes: u64,
}

impl Cache {
    /// Creates the folder if it is missing.
    pub(super) fn open(data: &DataConfig) -> Result<Self, DataError> {
        let folder = data.cache_dir.clone().unwrap_or_else(default_folder);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "above 0, and a limit beyond 2^64 bytes is none"
        )]
        let limit_bytes = (data.cache_limit_gib * f64::from(1 << 30)) as u64;
        fs::create_dir_all(&folder).map_err(|source| DataError::cache(&folder, source))?;
        Ok(Self { folder, limit_bytes })
    }

    /// Makes sure that the folder is not part of a text: the next run would read its files.
    pub(super) fn check_apart(&self, source: &Source) -> Result<(), DataError> {
        if !source.path.is_dir() {
            return Ok(());
        }
        let fail = |source| DataError::cache(&self.folder, source);
        let whole = self.folder.canonicalize().map_err(fail)?;
        let text_folder = source.path.canonicalize().map_err(fail)?;
        let is_hidden = |part: Component| part.as_os_str().as_encoded_bytes().starts_with(b".");
        match whole.strip_prefix(text_folder) {
            Ok(within) if !within.components().any(is_hidden) => {
                Err(DataError::CacheInsideText { cache_dir: self.folder.clone(), path: source.path.clone() })
            }
            _ => Ok(()),
        }
    }

    /// The path of the file with this key.
    pub(super) fn path(&self, key: &[u8; 32], extension: &str) -> PathBuf {
        let (half, _) = key.split_at(DIGITS / 2);
        let number = u128::from_be_bytes(half.try_into().expect("16 bytes"));
        self.folder.join(format!("{number:032x}.{extension}"))
    }

    /// Where a text of standard input is kept.
    pub(super) fn kept_text(&self, text_sha256: &str) -> PathBuf {
        self.folder.join(format!("{text_sha256}.text"))
    }

    /// Removes the files unused for longest until the rest is below the limit, and temporary files of processes
    /// that were killed. Files in use stay. An error is ignored, since the next run tries again.
    pub(super) fn clean_up(&self) {
        let Ok(lock) = File::create(self.folder.join(LOCK)) else {
            return;
        };
        if lock.try_lock().is_ok() {
            let _ = self.remove_old(SystemTime::now());
        } // else another process does it now
    }

    fn remove_old(&self, now: SystemTime) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let name = entry.file_name();
            let Some(kind) = name.to_str().and_then(kind_of) else {
                continue;
            };
            let metadata = entry.metadata()?;
            let modified = metadata.modified()?;
            match kind {
                Kind::Cached => kept.push((modified, entry.path(), metadata.len())),
                Kind::Temporary => {
                    let age = now.duration_since(modified).unwrap_or_default();
                    if age > LEFT_OVER_AFTER {
                        remove_unused(&entry.path())?;
                    }
                }
            }
        }
        kept.sort();
        let mut bytes: u64 = kept.iter().map(|(.., length)| length).sum();
        for (_, path, length) in kept {
            if bytes <= self.limit_bytes {
                break;
            }
            if remove_unused(&path)? {
                bytes -= length;
            }
        }
        Ok(())
    }
}

/// A file to write to: locked, with a name no other process uses, and removed with this value unless renamed.
#[derive(Debug)]
pub(super) struct Temporary {
    pub file: File,
    path: PathBuf,
}

impl Temporary {
    /// Creates an empty file in the folder of a cache.
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        loop {
            // Processes in containers that share a folder may have the same number.
            let random = RandomState::new().hash_one(std::process::id());
            let path = folder.join(format!("{:032x}.{random:016x}.tmp", 0));
            let created = File::options().write(true).create_new(true).open(&path);
            let file = match created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            };
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {} // another process cleans up, and is about to remove it
                // A file system without locks can do without: young files are not removed.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Self { file, path }),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its final name, or removes it.
    pub(super) fn rename(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The kinds of files in the folder that this module may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Cached,
    Temporary,
}

fn kind_of(name: &str) -> Option<Kind> {
    let (number, rest) = name.split_at_checked(DIGITS)?;
    if !number.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    match rest {
        ".tokens" | ".tokenizer.json" => Some(Kind::Cached),
        _ => {
            let is_temporary = rest.starts_with('.') && rest.strip_suffix(".tmp").is_some();
            is_temporary.then_some(Kind::Temporary)
        }
    }
}

/// Removes a file unless it is locked, and says whether it did.
fn remove_unused(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    if file.try_lock().is_err() {
        return Ok(false);
    }
    fs::remove_file(path)?;
    Ok(true)
}

fn default_folder() -> PathBuf {
    dirs::cache_dir().unwrap_or_else(std::env::temp_dir).join("tinderbox").join("tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with files of these names, one hour younger each, of 100 bytes.
    fn cache(names: &[&str], limit_bytes: u64) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        for (hour, name) in (0..).zip(names) {
            let path = folder.path().join(name);
            fs::write(&path, [0; 100]).unwrap();
            let file = File::options().append(true).open(path).unwrap();
            let age = Duration::from_hours(100 - hour);
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        let cache = Cache { folder: folder.path().to_owned(), limit_bytes };
        (folder, cache)
    }

    fn names(cache: &Cache) -> Vec<String> {
        let entries = fs::read_dir(&cache.folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != LOCK).collect();
        names.sort();
        names
    }

    #[test]
    fn files_unused_for_longest_go_first() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|digit| digit.repeat(DIGITS));
        let [b, a, d] = [b, a, d].map(|number| number + ".tokens");
        let c = c + ".tokenizer.json";
        let (_folder, cache) = cache(&[&b, &a, &d, &c], 250);
        cache.clean_up();
        assert_eq!(names(&cache), [c.clone(), d.clone()]);
        cache.clean_up();
        assert_eq!(names(&cache), [c, d], "nothing more than needed");
    }

    #[test]
    fn files_in_use_or_of_others_stay() {
        let [used, unused] = ["a", "b"].map(|digit| digit.repeat(DIGITS) + ".tokens");
        let text = "c".repeat(64) + ".text";
        let (folder, cache) = cache(&[&used, &unused, &text, "notes.txt", "\u{e9}.tokens"], 0);
        let file = File::open(folder.path().join(&used)).unwrap();
        file.lock_shared().unwrap();
        cache.clean_up();
        assert_eq!(names(&cache), [&used, &text, "notes.txt", "\u{e9}.tokens"]);
        drop(file);
        cache.clean_up();
        assert_eq!(names(&cache), [&text, "notes.txt", "\u{e9}.tokens"]);
    }

    #[test]
    fn temporary_files_of_killed_processes_go() {
        let digits = "a".repeat(DIGITS);
        let [old, locked, young] = [1, 2, 3].map(|n| format!("{digits}.{n}-0.tmp"));
        let (folder, cache) = cache(&[&old, &locked], u64::MAX);
        fs::write(folder.path().join(&young), "x").unwrap();
        let file = File::open(folder.path().join(&locked)).unwrap();
        file.lock().unwrap();
        cache.clean_up();
        assert_eq!(names(&cache), [locked, young]);
    }

    #[test]
    fn temporary_files_have_different_names_and_are_locked() {
        let (folder, cache) = cache(&[], 0);
        let files: Vec<Temporary> = (0..9).map(|_| Temporary::create(folder.path()).unwrap()).collect();
        assert_eq!(names(&cache).len(), 9);
        for name in names(&cache) {
            assert_eq!(kind_of(&name), Some(Kind::Temporary));
            assert!(!remove_unused(&folder.path().join(name)).unwrap());
        }
        drop(files);
        assert_eq!(names(&cache).len(), 0);
    }

    #[test]
    fn only_one_process_cleans_up_at_a_time() {
        let file = "a".repeat(DIGITS) + ".tokens";
        let (folder, cache) = cache(&[&file], 0);
        let lock = File::create(folder.path().join(LOCK)).unwrap();
        lock.lock().unwrap();
        cache.clean_up();
        assert_eq!(names(&cache).len(), 1);
        drop(lock);
        cache.clean_up();
        assert!(names(&cache).is_empty());
    }
}
