//! Standard input as a text: kept in a file, since a text is read several times, and once more when
//! its run goes on.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use super::DataError;
use super::cache::{Cache, cache_error};
use super::watch::{self, Purpose, Reading, Watch};

/// The path that stands for standard input.
const NAME: &str = "-";

/// What came through standard input, in a file that is gone with this value unless it is kept.
#[derive(Debug)]
pub(super) struct Received {
    file: PathBuf,
    is_kept: bool,
}

/// Whether a path stands for standard input.
pub(super) fn is_meant(path: &Path) -> bool {
    path == Path::new(NAME)
}

impl Received {
    /// Reads all of standard input.
    ///
    /// # Errors
    /// If it is a terminal, where nobody knows that something is waited for, or if it cannot be
    /// read or written down, and if `watch` puts an end to it.
    pub(super) fn all(cache: &Cache, watch: Watch<'_>) -> Result<Self, DataError> {
        let stdin = io::stdin().lock();
        if stdin.is_terminal() {
            return Err(DataError::Terminal);
        }
        Self::from(stdin, cache, watch)
    }

    fn from(mut input: impl Read, cache: &Cache, watch: Watch<'_>) -> Result<Self, DataError> {
        let received = Self {
            file: cache.temporary_path(),
            is_kept: false,
        };
        let failed = |source| cache_error(&received.file, source);
        let mut file = File::create(&received.file).map_err(failed)?;
        let _ = file.try_lock(); // says that it is in use, where the file system has locks
        let mut buffer = vec![0; 1 << 16];
        let mut reading = Reading {
            path: Path::new(NAME),
            purpose: Purpose::Survey,
            bytes: 0,
            of: None,
        };
        loop {
            watch::tell(watch, &reading)?;
            // Not `io::copy`, which does not tell which of both sides failed.
            match input.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    io::Write::write_all(&mut file, &buffer[..n]).map_err(failed)?;
                    reading.bytes += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(super::source::read_error(Path::new(NAME), source)),
            }
        }
        watch::tell(watch, &reading)?; // what sent it may have heard the same Ctrl-C, and broken off
        file.sync_all().map_err(failed)?;
        Ok(received)
    }

    /// Where the text is.
    pub(super) fn path(&self) -> &Path {
        &self.file
    }

    /// Keeps the text for a run that goes on, under its hash, and says where it is now.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub(super) fn keep(mut self, cache: &Cache, text_sha256: &str) -> Result<PathBuf, DataError> {
        let path = path_of(cache, text_sha256);
        fs::rename(&self.file, &path).map_err(|source| cache_error(&path, source))?;
        self.is_kept = true;
        Ok(path)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.file);
        }
    }
}

/// The text of this hash that came through standard input once.
///
/// # Errors
/// If it is not kept any more.
pub(super) fn find_kept(cache: &Cache, text_sha256: &str) -> Result<PathBuf, DataError> {
    let path = path_of(cache, text_sha256);
    match path.is_file() {
        true => Ok(path),
        false => Err(DataError::NotKept { path }),
    }
}

fn path_of(cache: &Cache, text_sha256: &str) -> PathBuf {
    cache.folder().join(format!("{text_sha256}.text"))
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::config::DataConfig;

    /// Reads a little, and then fails.
    struct Broken(usize);

    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match std::mem::take(&mut self.0) {
                0 => Err(io::Error::other("unplugged")),
                n => Ok(n.min(buffer.len())),
            }
        }
    }

    #[test]
    fn what_is_received_is_gone_or_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&DataConfig {
            cache_dir: Some(folder.path().to_owned()),
            ..DataConfig::default()
        });
        let cache = cache.unwrap();
        let n_files = || fs::read_dir(folder.path()).unwrap().count();
        let received = Received::from(&b"abc"[..], &cache, &watch::nobody).unwrap();
        assert_eq!(fs::read(received.path()).unwrap(), b"abc");
        drop(received);
        let error = Received::from(Broken(3), &cache, &watch::nobody).unwrap_err();
        assert!(error.to_string().contains("unplugged"), "{error}");
        let stop_at_end = |reading: &Reading<'_>| match reading.bytes {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        let error = Received::from(&b"abc"[..], &cache, &stop_at_end).unwrap_err();
        assert!(matches!(error, DataError::Stopped), "{error}");
        assert_eq!(n_files(), 0);

        let received = Received::from(&b"abc"[..], &cache, &watch::nobody).unwrap();
        assert!(find_kept(&cache, "1234").is_err());
        let path = received.keep(&cache, "1234").unwrap();
        assert_eq!(find_kept(&cache, "1234").unwrap(), path);
        assert_eq!(fs::read(path).unwrap(), b"abc");
        assert_eq!(n_files(), 1);
    }
}
