//! The folder of token files and trained tokenizers, each named by a hash of everything it is derived from. Above a
//! size limit the least recently used files are removed, except those in use. Texts from standard input are kept there,
//! too: they cannot be read again, so they stay until someone deletes them. A note with the purpose of each file lies
//! next to it.

use std::fs;
use std::io;
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::DataError;
use super::source::TextSource;
use crate::config::DataConfig;
use tinderbox_model::disk::{self, Temporary, remove_unused};

/// An unlocked temporary file this old was left by a killed process; a younger one may not be locked yet.
const LEFT_OVER_AFTER: Duration = Duration::from_hours(1);

/// Hexadecimal digits in the names of cached files, and of texts from standard input.
const DIGITS: usize = 32;
const DIGITS_OF_TEXT: usize = 64;

/// The extension of notes, and the most bytes of one that are read.
const NOTE: &str = ".note";
const MAX_NOTE_BYTES: u64 = 1 << 12;

/// A cache folder, which exists.
#[derive(Debug)]
pub(super) struct Cache {
    pub folder: PathBuf,
    limit_bytes: u64,
}

/// A file of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CachedFile {
    /// The path of the file.
    #[serde(serialize_with = "tinderbox_model::format::serialize_path")]
    pub path: PathBuf,
    /// Its content.
    pub kind: CachedKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// The time of its last use, in seconds since 1970.
    pub used_unix_s: u64,
    /// Its purpose; `None` if an older version made it.
    pub made_for: Option<String>,
}

/// The content of a cached file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CachedKind {
    /// An encoded text.
    Tokens,
    /// A trained tokenizer.
    Tokenizer,
    /// A text of standard input. Its runs cannot be resumed without it.
    Text,
    /// A file that a process is writing, or that a killed one left.
    Temporary,
}

/// Files that were removed from a cache, and those that stay.
#[derive(Clone, Debug, Default)]
pub struct Cleared {
    /// The removed files.
    pub removed: Vec<CachedFile>,
    /// Files in use.
    pub in_use: Vec<CachedFile>,
    /// Texts of standard input, if they were not to be removed.
    pub texts: Vec<CachedFile>,
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

    /// Notes the purpose of a file for human readers; errors are ignored.
    pub(super) fn note(&self, path: &Path, made_for: &str) {
        let note = note_of(path);
        let written = temporary(&self.folder).and_then(|mut temporary| {
            temporary.file.write_all(made_for.as_bytes())?;
            temporary.rename(&note)
        });
        written.ok();
    }

    /// Rejects a folder that is part of a text: the next run would read its files.
    pub(super) fn check_apart(&self, source: &TextSource) -> Result<(), DataError> {
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

    pub(super) fn path(&self, key: &[u8; 32], extension: &str) -> PathBuf {
        let number = u128::from_be_bytes(*key.first_chunk().expect("16 of 32 bytes"));
        self.folder.join(format!("{number:032x}.{extension}"))
    }

    pub(super) fn kept_text(&self, text_sha256: &str) -> PathBuf {
        self.folder.join(format!("{text_sha256}.text"))
    }

    /// Removes the least recently used files until the rest fits the limit, and temporary files of killed processes.
    /// Files in use stay. Errors are ignored: the next run tries again.
    pub(super) fn clean_up(&self) {
        let _ = self.remove_old();
    }

    fn remove_old(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let Some(kind) = kind_of(&entry.file_name().to_string_lossy()) else { continue };
            let metadata = entry.metadata()?;
            let modified = metadata.modified()?;
            match kind {
                CachedKind::Tokens | CachedKind::Tokenizer => kept.push((modified, entry.path(), metadata.len())),
                CachedKind::Temporary if modified.elapsed().unwrap_or_default() > LEFT_OVER_AFTER => {
                    remove_unused(&entry.path())?;
                }
                CachedKind::Temporary | CachedKind::Text => {}
            }
        }
        kept.sort();
        let mut bytes: u64 = kept.iter().map(|(.., length)| length).sum();
        for (_, path, length) in kept {
            if bytes <= self.limit_bytes {
                break;
            }
            if remove(&path)? {
                bytes -= length;
            }
        }
        Ok(())
    }
}

/// The cache of a config with this `data.cache_dir`, and its files, the most recently used first. Nothing is created.
pub fn list_cache(cache_dir: Option<&Path>) -> Result<(PathBuf, Vec<CachedFile>), DataError> {
    let folder = match cache_dir {
        Some(folder) => folder.to_owned(),
        None => home_folder().unwrap_or_else(|| shared_folder_of(&std::env::temp_dir())),
    };
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((folder, Vec::new())),
        entries => entries.map_err(|source| DataError::cache(&folder, source))?,
    };
    let file = |entry: fs::DirEntry| {
        let kind = kind_of(&entry.file_name().to_string_lossy())?;
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?; // it may be gone by now
        let used = metadata.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let (path, bytes, used_unix_s) = (entry.path(), metadata.len(), used.as_secs());
        Some(CachedFile { kind, bytes, used_unix_s, made_for: read_note(&path), path })
    };
    let mut files: Vec<CachedFile> = entries.flatten().filter_map(file).collect();
    files.sort_by(|a, b| b.used_unix_s.cmp(&a.used_unix_s).then(a.path.cmp(&b.path)));
    Ok((folder, files))
}

/// Removes the files of a cache that are not in use; the texts of standard input only if `texts`, since they cannot be
/// made again.
pub fn clear_cache(cache_dir: Option<&Path>, texts: bool) -> Result<(PathBuf, Cleared), DataError> {
    let (folder, files) = list_cache(cache_dir)?;
    let mut cleared = Cleared::default();
    for file in files {
        if file.kind == CachedKind::Text && !texts {
            cleared.texts.push(file);
            continue;
        }
        match remove(&file.path) {
            Ok(true) => cleared.removed.push(file),
            Ok(false) => cleared.in_use.push(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // another process was faster
            Err(source) => return Err(DataError::cache(&file.path, source)),
        }
    }
    Ok((folder, cleared))
}

/// The kind of a file of this module, by its name; `None` for any other file.
fn kind_of(name: &str) -> Option<CachedKind> {
    let n_digits = name.bytes().take_while(u8::is_ascii_hexdigit).count();
    match (n_digits, &name[n_digits..]) {
        (DIGITS, ".tokens") => Some(CachedKind::Tokens),
        (DIGITS, ".tokenizer.json") => Some(CachedKind::Tokenizer),
        (DIGITS_OF_TEXT, ".text") => Some(CachedKind::Text),
        (DIGITS, rest) if rest.starts_with('.') && rest.strip_suffix(".tmp").is_some() => Some(CachedKind::Temporary),
        _ => None,
    }
}

fn note_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(NOTE);
    path.with_file_name(name)
}

fn read_note(path: &Path) -> Option<String> {
    let mut note = String::new();
    disk::open_file(&note_of(path)).ok()?.take(MAX_NOTE_BYTES).read_to_string(&mut note).ok()?;
    Some(note)
}

/// Removes a file and its note, unless it is in use; returns whether it was removed.
fn remove(path: &Path) -> io::Result<bool> {
    let is_removed = remove_unused(path)?;
    if is_removed {
        fs::remove_file(note_of(path)).ok(); // there may be none
    }
    Ok(is_removed)
}

/// A temporary file in a cache folder, readable by its owner alone: the text may be private.
pub(super) fn temporary(folder: &Path) -> io::Result<Temporary> {
    Temporary::create_private(folder, &format!("{:032x}.", 0), ".tmp")
}

/// Creates the default folder, accessible to this user alone. Another user's folder is rejected: its owner could
/// replace the files written there. If none in the home directory can be used, it is one for temporary files.
fn default_folder() -> Result<PathBuf, DataError> {
    // In a shared folder another user may have created a symbolic link of that name first.
    let temporary_folder = || own_folder(shared_folder_of(&std::env::temp_dir()), false);
    let Some(home) = home_folder() else { return temporary_folder() };
    let usable = own_folder(home, true).and_then(|folder| match temporary(&folder) {
        Ok(_) => Ok(folder),
        Err(source) => Err(DataError::cache(&folder, source)),
    });
    usable.or_else(|error| temporary_folder().map_err(|_| error))
}

fn home_folder() -> Option<PathBuf> {
    dirs::cache_dir().map(|home| home.join("tinderbox").join("tokens"))
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
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn cache_removes_least_recently_used_first() {
        let [a, b, d] = ["a", "b", "d"].map(|digit| digit.repeat(DIGITS) + ".tokens");
        let c = "c".repeat(DIGITS) + ".tokenizer.json";
        let (_folder, cache) = cache(&[&b, &a, &d, &c], 250);
        cache.clean_up();
        assert_eq!(names(&cache), [c.clone(), d.clone()]);
        cache.clean_up();
        assert_eq!(names(&cache), [c, d], "nothing more than needed");
    }

    #[test]
    fn cache_keeps_files_in_use_and_of_other_programs() {
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
    fn files_are_listed_and_removed_with_notes() {
        let [used, unused] = ["a", "b"].map(|digit| digit.repeat(DIGITS) + ".tokens");
        let text = "c".repeat(DIGITS_OF_TEXT) + ".text";
        let (folder, cache) = cache(&[&used, &unused, &text, "notes.txt"], 0);
        cache.note(&folder.path().join(&unused), "tokens of `a.txt`");
        let (found, files) = list_cache(Some(folder.path())).unwrap();
        assert_eq!(found, folder.path());
        let shown = |file: &CachedFile| (file.kind, file.bytes, file.made_for.clone());
        let made_for = Some("tokens of `a.txt`".to_owned());
        let expected =
            [(CachedKind::Text, 100, None), (CachedKind::Tokens, 100, made_for), (CachedKind::Tokens, 100, None)];
        assert_eq!(files.iter().map(shown).collect::<Vec<_>>(), expected);

        let file = File::open(folder.path().join(&used)).unwrap();
        file.lock_shared().unwrap();
        let cleared = clear_cache(Some(folder.path()), false).unwrap().1;
        assert_eq!((cleared.removed.len(), cleared.in_use.len(), cleared.texts.len()), (1, 1, 1));
        assert_eq!(names(&cache), [&used, &text, "notes.txt"], "and no note");
        drop(file);
        clear_cache(Some(folder.path()), true).unwrap();
        assert_eq!(names(&cache), ["notes.txt"]);
        let none = folder.path().join("none");
        assert!(list_cache(Some(&none)).unwrap().1.is_empty() && !none.exists());
    }

    #[test]
    fn old_unlocked_temporary_files_are_removed() {
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

    #[cfg(unix)]
    #[test]
    fn default_cache_folder_is_private() {
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
            assert!(error.to_string().contains("belongs to another user"), "{error}");
        }
    }
}
