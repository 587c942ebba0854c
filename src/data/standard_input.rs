//! Standard input as a text: kept in a file, since a text is read several times, and once more when
//! its run goes on.

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use super::cache::{Cache, Temporary, cache_error};
use super::file::{BYTE_ORDER_MARK, TextBytes};
use super::progress::{self, OnProgress, Purpose, Reading};
use super::{DataError, record};
use crate::config::{SourceConfig, TextFormat};

/// The path that stands for standard input.
const NAME: &str = "-";

/// How much is looked at to tell whether the first line is a record; a longer line is taken for text.
const MOST_BYTES_OF_A_LINE: usize = 1 << 22;

/// What came through standard input, in a file that is gone with this value unless it is kept.
#[derive(Debug)]
pub(super) struct Received(Temporary);

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
    pub(super) fn all(cache: &Cache, on_progress: OnProgress<'_>) -> Result<Self, DataError> {
        let stdin = io::stdin().lock();
        if stdin.is_terminal() {
            return Err(DataError::Terminal);
        }
        Self::from(stdin, cache, on_progress)
    }

    fn from(
        mut input: impl Read,
        cache: &Cache,
        on_progress: OnProgress<'_>,
    ) -> Result<Self, DataError> {
        let fail = |source| cache_error(cache.folder(), source);
        let mut temporary = Temporary::create(cache.folder()).map_err(fail)?;
        let mut buffer = vec![0; 1 << 16];
        let mut reading =
            Reading { path: Path::new(NAME), purpose: Purpose::Scan, bytes: 0, of: None };
        loop {
            progress::tell(on_progress, &reading)?;
            // Not `io::copy`, which does not tell which of both sides failed.
            match input.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    io::Write::write_all(&mut temporary.file, &buffer[..n]).map_err(fail)?;
                    reading.bytes += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(super::source::read_error(Path::new(NAME), source)),
            }
        }
        progress::tell(on_progress, &reading)?; // what sent it may have heard the same Ctrl-C, and broken off
        temporary.file.sync_all().map_err(fail)?;
        // Some systems let nobody read what is locked for writing; a shared lock says that it is in use, too.
        let _ = temporary.file.unlock();
        let _ = temporary.file.try_lock_shared();
        Ok(Self(temporary))
    }

    /// Makes sure that records are not taken for a text: there is no name that would tell.
    ///
    /// # Errors
    /// If the first line is a record with a text, and nothing says whether it is meant as one.
    pub(super) fn check_format(&self, config: &SourceConfig) -> Result<(), DataError> {
        if config.format.unwrap_or_default() != TextFormat::Auto {
            return Ok(());
        }
        let shown = Path::new(NAME);
        let mut head = Vec::new();
        TextBytes::open(self.path(), shown, false)?.read(MOST_BYTES_OF_A_LINE, &mut head, shown)?;
        let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&head);
        let first_line = head.trim_ascii_start().split(|byte| *byte == b'\n').next();
        let field = config.text_field.clone().unwrap_or_default();
        match record::text_of(first_line.unwrap_or_default(), &field) {
            Ok(_) => Err(DataError::TextOrRecords { field }),
            Err(_) => Ok(()),
        }
    }

    /// Where the text is.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Keeps the text for a run that goes on, under its hash, and says where it is now.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub(super) fn keep(self, cache: &Cache, text_sha256: &str) -> Result<PathBuf, DataError> {
        let path = path_of(cache, text_sha256);
        let renamed = self.0.rename(&path);
        renamed.map_err(|source| cache_error(&path, source))?;
        Ok(path)
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
    use std::fs;
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
        let received = Received::from(&b"abc"[..], &cache, &progress::ignore).unwrap();
        assert_eq!(fs::read(received.path()).unwrap(), b"abc");
        drop(received);
        let error = Received::from(Broken(3), &cache, &progress::ignore).unwrap_err();
        assert!(error.to_string().contains("unplugged"), "{error}");
        let stop_at_end = |reading: &Reading<'_>| match reading.bytes {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        let error = Received::from(&b"abc"[..], &cache, &stop_at_end).unwrap_err();
        assert!(matches!(error, DataError::Stopped), "{error}");
        assert_eq!(n_files(), 0);

        let received = Received::from(&b"abc"[..], &cache, &progress::ignore).unwrap();
        assert!(find_kept(&cache, "1234").is_err());
        let path = received.keep(&cache, "1234").unwrap();
        assert_eq!(find_kept(&cache, "1234").unwrap(), path);
        assert_eq!(fs::read(path).unwrap(), b"abc");
        assert_eq!(n_files(), 1);
    }

    #[test]
    fn records_are_not_taken_for_a_text_unless_the_config_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&DataConfig {
            cache_dir: Some(folder.path().to_owned()),
            ..DataConfig::default()
        });
        let cache = cache.unwrap();
        let check = |input: &str, format| {
            let received =
                Received::from(input.as_bytes(), &cache, &|_| ControlFlow::Continue(())).unwrap();
            let config = SourceConfig {
                format: Some(format),
                text_field: Some("text".to_owned()),
                ..SourceConfig::default()
            };
            received.check_format(&config)
        };
        let records = "\u{feff}\n{\"id\": 1, \"text\": \"a\"}\n{\"id\": 2, \"text\": \"b\"}\n";
        let error = check(records, TextFormat::Auto).unwrap_err().to_string();
        assert!(error.contains("field \"text\"") && error.contains("data.format = \"jsonl\""));
        for format in [TextFormat::Jsonl, TextFormat::Text] {
            check(records, format).unwrap();
        }
        for text in ["", "once", "{\"body\": \"a\"}\n", "{\n\"text\": \"a\"}", "[1]"] {
            check(text, TextFormat::Auto).unwrap();
        }
    }
}
