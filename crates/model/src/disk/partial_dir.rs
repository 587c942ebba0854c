//! A hidden directory that is filled and then renamed: two processes that write the same directory at the same time
//! never mix their files, nor files of other programs.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::atomic::{create_dir_all, rename, sync_dir};
use super::file::{DIGITS, MOST_ATTEMPTS, PARTIAL, folder_of, is_at, remove_unused, start_of_name, unique_name};

/// A new directory `.NAME.NUMBER.partial` beside `target`, with a random number; removed on drop. Its lock
/// distinguishes it from one that a killed process left.
#[derive(Debug)]
pub struct PartialDir {
    target: PathBuf,
    path: PathBuf,
    /// `None` on systems that cannot lock a directory.
    _lock: Option<File>,
}

impl PartialDir {
    /// Creates an empty directory beside `target` and its missing parents, and removes those of killed processes.
    pub fn create(target: &Path) -> io::Result<Self> {
        create_dir_all(folder_of(target))?;
        remove_left_over_of(target);
        let mut n_attempts = 0;
        loop {
            n_attempts += 1;
            let path = unique_name(target);
            let lock = fs::create_dir(&path).and_then(|()| try_lock(&path));
            match lock {
                // Another process found it not yet locked, and is removing it.
                Err(error) if error.kind() != ErrorKind::WouldBlock && error.kind() != ErrorKind::NotFound => {
                    return Err(error);
                }
                Err(error) if n_attempts == MOST_ATTEMPTS => return Err(error),
                // Some file systems cannot tell directories apart.
                Ok(lock) if n_attempts == MOST_ATTEMPTS || lock.as_ref().is_none_or(|it| is_at(it, &path)) => {
                    return Ok(Self { target: target.to_owned(), path, _lock: lock });
                }
                _ => {}
            }
        }
    }

    /// Where the files are written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the directory to its target. An existing directory is replaced if `may_replace` allows it, while other
    /// processes that would replace it wait. `cannot_write` converts the system's error.
    ///
    /// # Errors
    /// That of `may_replace`, or if the directory cannot be renamed; then the old one stays.
    pub fn replace<E>(
        self,
        cannot_write: impl FnOnce(io::Error) -> E,
        may_replace: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let _waiting = lock_folder(folder_of(&self.target));
        may_replace()?;
        self.rename().map_err(cannot_write)
    }

    /// Renames the directory to its target, once its files are on the disk. An existing directory is moved away first
    /// and removed afterwards: the target never has only some of its files. Only where a lock keeps other processes
    /// away; elsewhere, [`PartialDir::replace`].
    pub fn rename(&self) -> io::Result<()> {
        sync_dir(&self.path)?;
        if self.target.symlink_metadata().is_err() {
            return rename(&self.path, &self.target);
        }
        let _old_lock = try_lock(&self.target); // or another process might take it for left over
        let old = unique_name(&self.target);
        fs::rename(&self.target, &old)?;
        rename(&self.path, &self.target).inspect_err(|_| {
            fs::rename(&old, &self.target).ok(); // the first error is the one to report
        })?;
        match old.symlink_metadata()?.is_dir() {
            true => fs::remove_dir_all(old),
            false => fs::remove_file(old), // a link to a directory, which stays as it is
        }
    }
}

impl Drop for PartialDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Locks `folder` between the check of a file in it and its change; waits for other processes that do the same. `None`
/// on systems that cannot lock a directory.
pub fn lock_folder(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    folder.lock().ok()?;
    Some(folder)
}

/// Removes the partial files and directories of `target` that killed processes left; those that a process has locked
/// stay.
pub fn remove_left_over_of(target: &Path) {
    let start = start_of_name(target);
    for entry in fs::read_dir(folder_of(target)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&*start)?.strip_suffix(PARTIAL));
        let is_number =
            |number: &str| number.len() == DIGITS && number.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !number.is_some_and(is_number) {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                if let Ok(Some(_lock)) = try_lock(&entry.path()) {
                    fs::remove_dir_all(entry.path()).ok(); // the next process tries again
                }
            }
            _ => _ = remove_unused(&entry.path()),
        }
    }
}

/// Locks a directory; `None` if the system cannot.
fn try_lock(dir: &Path) -> io::Result<Option<File>> {
    if !cfg!(unix) {
        return Ok(None);
    }
    let file = File::open(dir)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Err(ErrorKind::WouldBlock.into()),
        Err(fs::TryLockError::Error(_)) => Ok(None), // some network drives
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_other_processes_stay() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("hf");
        let names =
            [".hf.partial", ".hf.0123456789abcdeg.partial", ".hf.0123.partial", ".other.0123456789abcdef.partial"];
        for name in names {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let running = PartialDir::create(&target).unwrap();
        let killed = folder.path().join(".hf.0123456789abcdef.partial");
        fs::create_dir(&killed).unwrap();
        let second = PartialDir::create(&target).unwrap();
        assert!(names.iter().all(|name| folder.path().join(name).is_dir()));
        assert!(running.path().is_dir() && second.path().is_dir() && running.path() != second.path());
        assert_eq!(killed.exists(), !cfg!(unix));
        for (new, content) in [(second, "second"), (running, "first")] {
            fs::write(new.path().join("file"), content).unwrap();
            new.replace(|error| error, || Ok(())).unwrap();
            assert_eq!(fs::read_to_string(target.join("file")).unwrap(), content);
        }
        let third = PartialDir::create(&target).unwrap();
        third.replace(|error| error, || Err(ErrorKind::AlreadyExists.into())).unwrap_err();
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), names.len() + 1);
    }
}
