//! Standard input, which is saved to a file because a text is read more than once.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use super::DataError;
use super::cache::{Cache, temporary};
use super::file::BUFFER_BYTES;
use super::reader::{OnProgress, Purpose, Reading, report};
use super::source::STANDARD_INPUT;
use tinderbox_model::disk::Temporary;

/// Saves all of standard input to a temporary file, which is deleted when dropped unless it was renamed.
pub(super) fn receive(cache: &Cache, on_progress: OnProgress<'_>) -> Result<Temporary, DataError> {
    let stdin = io::stdin().lock();
    if stdin.is_terminal() {
        return Err(DataError::Terminal); // the user would not see that input is awaited
    }
    save(stdin, cache, on_progress)
}

fn save(mut input: impl Read, cache: &Cache, on_progress: OnProgress<'_>) -> Result<Temporary, DataError> {
    let path = Path::new(STANDARD_INPUT);
    let fail = |source| DataError::cache(&cache.folder, source);
    let mut temporary = temporary(&cache.folder).map_err(fail)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut reading = Reading { path, purpose: Purpose::Scan, bytes: 0, of: None };
    loop {
        report(on_progress, &reading)?;
        // Not `io::copy`, which does not tell whether reading or writing failed.
        match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                temporary.file.write_all(&buffer[..n]).map_err(fail)?;
                reading.bytes += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(DataError::read(path, source)),
        }
    }
    report(on_progress, &reading)?; // the sender may have ended early on the same Ctrl-C
    temporary.file.sync_all().map_err(fail)?;
    // On some systems nobody can read a file locked for writing; a shared lock also marks it as in use.
    let _ = temporary.file.unlock();
    let _ = temporary.file.try_lock_shared();
    Ok(temporary)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;

    use flate2::read::GzDecoder;

    use super::super::reader::ignore;
    use super::*;
    use crate::config::DataConfig;

    fn cache(folder: &tempfile::TempDir) -> Cache {
        let cache_dir = Some(folder.path().to_owned());
        Cache::open(&DataConfig { cache_dir, ..DataConfig::default() }).unwrap()
    }

    #[test]
    fn standard_input_is_deleted_or_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        let n_files = || fs::read_dir(folder.path()).unwrap().count();
        let received = save(&b"abc"[..], &cache, &ignore).unwrap();
        assert_eq!(fs::read(received.path()).unwrap(), b"abc");
        drop(received);
        let broken = b"abc".as_slice().chain(GzDecoder::new(&b"no gzip at all"[..]));
        let error = save(broken, &cache, &ignore).unwrap_err();
        assert!(error.to_string().contains("cannot read the text `-`: invalid gzip header"), "{error}");
        let stop_at_end = |reading: &Reading<'_>| match reading.bytes {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        let error = save(&b"abc"[..], &cache, &stop_at_end).unwrap_err();
        assert!(matches!(error, DataError::Stopped), "{error}");
        assert_eq!(n_files(), 0);

        let received = save(&b"abc"[..], &cache, &ignore).unwrap();
        let path = cache.kept_text("1234");
        received.rename(&path).unwrap();
        assert_eq!(fs::read(path).unwrap(), b"abc");
        assert_eq!(n_files(), 1);
    }
}
