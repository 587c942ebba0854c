//! Files opened without following links, temporary files with unique names, and checksums.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

const BUFFER_BYTES: usize = 1 << 18;

/// The most attempts to lock a file that may have been removed, for file systems that cannot tell files apart.
pub(super) const MOST_ATTEMPTS: usize = 8;

/// Whether `path` is a symbolic link, whatever its target.
pub fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
}

/// Opens a file for reading. Anything other than a regular file, such as a link or a pipe, is an error.
pub fn open_file(path: &Path) -> io::Result<File> {
    check_file(path)?;
    File::open(path)
}

fn check_file(path: &Path) -> io::Result<()> {
    match path.symlink_metadata()?.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is a link, or no file")),
    }
}

/// Opens a file for locking, or creates an empty one. Links are not followed, and an existing file is not changed.
pub fn open_lock(path: &Path) -> io::Result<File> {
    match File::options().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            check_file(path)?;
            File::options().write(true).open(path) // an exclusive lock on a network drive needs write access
        }
        created => created,
    }
}

/// Whether `path` still names the open file and not another file that replaced it. Always true on systems that cannot
/// tell files apart.
pub fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let (open, named) = (file.metadata().map(identity), path.symlink_metadata().map(identity));
        matches!((open, named), (Ok(open), Ok(named)) if open == named)
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        true
    }
}

/// The folder that `path` lies in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The suffix of names of half-written or half-removed files.
pub(super) const PARTIAL: &str = ".partial";

/// The start of the temporary names of what will be `target`.
pub(super) fn start_of_name(target: &Path) -> String {
    format!(".{}.", target.file_name().unwrap_or_default().to_string_lossy())
}

/// The number of hexadecimal digits of the random number in a unique name.
pub(super) const DIGITS: usize = 16;

/// An unused name in `folder`: a random number between `start` and `end`.
fn unique_path(folder: &Path, start: &str, end: &str) -> PathBuf {
    // Not the process id: processes in different containers that share a folder may have the same.
    let random = RandomState::new().hash_one(std::process::id());
    folder.join(format!("{start}{random:0DIGITS$x}{end}"))
}

/// An unused name beside `target` for something half written or half removed.
pub(super) fn unique_name(target: &Path) -> PathBuf {
    unique_path(target.parent().unwrap_or(Path::new("")), &start_of_name(target), PARTIAL)
}

/// A temporary file to write to: locked, with a unique name, and removed on drop unless it was renamed.
#[derive(Debug)]
pub struct Temporary {
    /// The open file.
    pub file: File,
    path: PathBuf,
}

impl Temporary {
    /// Creates an empty file in `folder`, named by a random number between `start` and `end`.
    pub fn create(folder: &Path, start: &str, end: &str) -> io::Result<Self> {
        Self::create_with(File::options().write(true).create_new(true), folder, start, end)
    }

    /// Creates a file in the same way, readable only by its owner.
    pub fn create_private(folder: &Path, start: &str, end: &str) -> io::Result<Self> {
        let mut options = File::options();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Self::create_with(options.write(true).create_new(true), folder, start, end)
    }

    fn create_with(options: &OpenOptions, folder: &Path, start: &str, end: &str) -> io::Result<Self> {
        let mut n_attempts = 0;
        loop {
            n_attempts += 1;
            let path = unique_path(folder, start, end);
            let file = options.open(&path)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {} // another process is cleaning up and about to remove it
                Ok(()) if n_attempts < MOST_ATTEMPTS && !is_at(&file, &path) => {} // it was removed
                // The file system may not support locks; cleaning up spares recent files anyway.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Self { file, path }),
            }
        }
    }

    /// Its temporary path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the file to its final name, or removes it if that fails.
    pub fn rename(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes a file unless it is locked; returns whether it was removed.
pub fn remove_unused(path: &Path) -> io::Result<bool> {
    let file = open_file(path)?;
    if file.try_lock().is_err() {
        return Ok(false);
    }
    fs::remove_file(path)?;
    Ok(true)
}

/// A writer that forwards bytes and computes their checksum.
#[derive(Debug)]
pub struct Summed<W> {
    /// Receives the bytes.
    pub to: W,
    /// The CRC-32C of all bytes so far.
    pub crc32c: u32,
}

impl<W: Write> Summed<W> {
    /// A writer to `to`, before its first byte.
    pub fn new(to: W) -> Self {
        Self { to, crc32c: 0 }
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.to.write(bytes)?;
        self.crc32c = crc32c::crc32c_append(self.crc32c, &bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The CRC-32C of everything from the current position to the end of the file.
pub fn crc32c_of(file: impl Read) -> io::Result<u32> {
    let mut crc32c = 0;
    each_chunk(file, |chunk| crc32c = crc32c::crc32c_append(crc32c, chunk))?;
    Ok(crc32c)
}

/// Passes everything from the current position to the end of the file to `take`, for a checksum.
pub fn each_chunk(mut file: impl Read, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => take(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_crc_32c() {
        // The check value from the catalogue of CRC algorithms.
        assert_eq!(crc32c_of(&b"123456789"[..]).unwrap(), 0xe306_9283);
        let mut written = Summed::new(Vec::new());
        written.write_all(b"1234").unwrap();
        written.write_all(b"56789").unwrap();
        assert_eq!((written.crc32c, &written.to[..]), (0xe306_9283, &b"123456789"[..]));
    }

    #[cfg(unix)]
    #[test]
    fn open_lock_follows_no_link_and_keeps_contents() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, dangling] = ["file", "link", "dangling"].map(|name| folder.path().join(name));
        fs::write(&file, "precious").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::os::unix::fs::symlink(folder.path().join("nowhere"), &dangling).unwrap();
        open_lock(&link).unwrap_err();
        open_lock(&dangling).unwrap_err();
        assert!(!folder.path().join("nowhere").exists());
        let opened = open_lock(&file).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"precious");
        assert!(is_at(&opened, &file) && !is_at(&opened, &link));
        fs::rename(&file, folder.path().join("moved")).unwrap();
        fs::write(&file, "another").unwrap();
        assert!(!is_at(&opened, &file));
    }
}
