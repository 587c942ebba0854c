//! The folder of token files and trained tokenizers, each named by a hash of everything it is derived from. Above a
//! size limit the least recently used files are removed, except those in use. Texts from standard input are kept there,
//! too: they cannot be read again, so they stay until someone deletes them.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::DataError;
use super::source::Source;
use crate::config::DataConfig;
use crate::disk::{self, Temporary, remove_unused};

/// An unlocked temporary file this old was left by a killed process; a younger one may not be locked yet.
const LEFT_OVER_AFTER: Duration = Duration::from_hours(1);

/// The file that a process locks while it cleans up.
const LOCK: &str = ".lock";

/// Hexadecimal digits in the names of cached files.
const DIGITS: usize = 32;

/// A cache folder, which exists.
#[derive(Debug)]
pub(super) struct Cache {
    pub folder: PathBuf,
    limit_bytes: u64,
}

impl Cache {
    /// Creates the folder if it is missing.
    pub(super) fn open(data: &DataConfig) -> Result<Self, DataError> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "above 0, and 2^64 is no limit")]
        let limit_bytes = (data.cache_limit_gib * f64::from(1 << 30)) as u64;
        let folder = match &data.cache_dir {
            Some(folder) => {
                fs::create_dir_all(folder).map_err(|source| DataError::cache(folder, source))?;
                folder.clone()
            }
            None => default_folder()?,
        };
        Ok(Self { folder, limit_bytes })
    }

    /// Rejects a folder that is part of a text: the next run would read its files.
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
        let number = u128::from_be_bytes(*key.first_chunk().expect("16 of 32 bytes"));
        self.folder.join(format!("{number:032x}.{extension}"))
    }

    /// The path at which a text from standard input is kept.
    pub(super) fn kept_text(&self, text_sha256: &str) -> PathBuf {
        self.folder.join(format!("{text_sha256}.text"))
    }

    /// Removes the least recently used files until the rest fits the limit, and temporary files of killed processes.
    /// Files in use stay. Errors are ignored: the next run tries again.
    pub(super) fn clean_up(&self) {
        let Ok(lock) = disk::open_lock(&self.folder.join(LOCK)) else {
            return;
        };
        if lock.try_lock().is_ok() {
            let _ = self.remove_old();
        } // otherwise another process is cleaning up
    }

    fn remove_old(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let name = entry.file_name();
            let (number, rest) = name.to_str().and_then(|name| name.split_at_checked(DIGITS)).unwrap_or_default();
            let is_cached = matches!(rest, ".tokens" | ".tokenizer.json");
            let is_temporary = rest.starts_with('.') && rest.strip_suffix(".tmp").is_some();
            if !number.bytes().all(|byte| byte.is_ascii_hexdigit()) || !(is_cached || is_temporary) {
                continue; // not a file of this module
            }
            let metadata = entry.metadata()?;
            let modified = metadata.modified()?;
            if is_cached {
                kept.push((modified, entry.path(), metadata.len()));
            } else if modified.elapsed().unwrap_or_default() > LEFT_OVER_AFTER {
                remove_unused(&entry.path())?;
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

/// A temporary file in a cache folder, readable by its owner alone: the text may be private.
pub(super) fn temporary(folder: &Path) -> io::Result<Temporary> {
    Temporary::create_private(folder, &format!("{:032x}.", 0), ".tmp")
}

/// Creates the default folder, accessible to this user alone. Another user's folder is rejected: its owner could
/// replace the files written there.
fn default_folder() -> Result<PathBuf, DataError> {
    match dirs::cache_dir() {
        Some(home) => own_folder(home.join("tinderbox").join("tokens"), true),
        // A shared folder: another user may have created a symbolic link of that name first.
        None => own_folder(shared_folder_of(&std::env::temp_dir()), false),
    }
}

/// The path of this user's folder in a shared temporary folder.
fn shared_folder_of(temporary: &Path) -> PathBuf {
    #[cfg(unix)]
    let name = format!("tinderbox-{}", nix::unistd::getuid());
    #[cfg(not(unix))]
    let name = "tinderbox";
    temporary.join(name)
}

fn own_folder(folder: PathBuf, may_be_link: bool) -> Result<PathBuf, DataError> {
    let fail = |source| DataError::cache(&folder, source);
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(&folder).map_err(fail)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let found = if may_be_link { fs::metadata(&folder) } else { folder.symlink_metadata() }.map_err(fail)?;
        if !found.is_dir() || found.uid() != nix::unistd::getuid().as_raw() {
            return Err(DataError::CacheOfOthers { path: folder });
        }
        if found.mode() & 0o077 != 0 {
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).map_err(fail)?;
        }
    }
    #[cfg(not(unix))]
    let _ = may_be_link;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::SystemTime;

    use super::*;

    /// A cache with files of these names, of 100 bytes, each an hour newer than the one before.
    fn cache(names: &[&str], limit_bytes: u64) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        for (hour, name) in (0..).zip(names) {
            let path = folder.path().join(name);
            fs::write(&path, [0; 100]).unwrap();
            make_older(&File::options().append(true).open(path).unwrap(), 100 - hour);
        }
        let cache = Cache { folder: folder.path().to_owned(), limit_bytes };
        (folder, cache)
    }

    fn make_older(file: &File, hours: u64) {
        file.set_modified(SystemTime::now() - Duration::from_hours(hours)).unwrap();
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
        let [a, b, d] = ["a", "b", "d"].map(|digit| digit.repeat(DIGITS) + ".tokens");
        let c = "c".repeat(DIGITS) + ".tokenizer.json";
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
    fn temporary_files_have_different_names_and_go_when_old_and_not_locked() {
        let left_over = "a".repeat(DIGITS) + ".1-0.tmp";
        let (folder, cache) = cache(&[&left_over], u64::MAX);
        let files: Vec<Temporary> = (0..9).map(|_| temporary(folder.path()).unwrap()).collect();
        for temporary in &files {
            make_older(&temporary.file, 2);
        }
        let young = "a".repeat(DIGITS) + ".2-0.tmp";
        fs::write(folder.path().join(&young), "x").unwrap();
        cache.clean_up();
        assert_eq!(names(&cache).len(), 10);
        assert!(!names(&cache).contains(&left_over));
        drop(files);
        assert_eq!(names(&cache), [young]);
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

    #[cfg(unix)]
    #[test]
    fn the_lock_may_be_no_link() {
        let file = "a".repeat(DIGITS) + ".tokens";
        let (folder, cache) = cache(&[&file], 0);
        let thesis = folder.path().join("thesis.txt");
        fs::write(&thesis, "years of work").unwrap();
        std::os::unix::fs::symlink(&thesis, folder.path().join(LOCK)).unwrap();
        cache.clean_up();
        assert_eq!(fs::read(thesis).unwrap(), b"years of work");
    }

    #[cfg(unix)]
    #[test]
    fn the_default_folder_is_its_users_alone() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        let shared = tempfile::tempdir().unwrap();
        let folder = shared_folder_of(shared.path());
        for _ in 0..2 {
            own_folder(folder.clone(), false).unwrap();
            assert_eq!(mode(&folder), 0o700);
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink(shared.path(), &folder).unwrap();
        let shared_mode = mode(shared.path());
        let error = own_folder(folder.clone(), false).unwrap_err();
        assert!(matches!(error, DataError::CacheOfOthers { .. }), "{error}");
        assert_eq!(mode(shared.path()), shared_mode);
        // Only root can give a folder away.
        fs::remove_file(&folder).unwrap();
        own_folder(folder.clone(), false).unwrap();
        if std::os::unix::fs::chown(&folder, Some(12345), None).is_ok() {
            let error = own_folder(folder, true).unwrap_err();
            assert!(error.to_string().contains("somebody else's"), "{error}");
        }
    }
}
