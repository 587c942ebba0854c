//! Standard input, which is saved to a file because a text is read more than once.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use super::DataError;
use super::cache::{Cache, temporary};
use super::file::{BUFFER_BYTES, OpenFile};
use super::reader::{OnProgress, Purpose, Reading, report};
use super::record::begins_with_record;
use super::source::STANDARD_INPUT;
use crate::config::{DataConfig, TextFormat};
use tinderbox_model::disk::Temporary;

/// The end of the first line is searched within this many bytes; a longer line counts as text.
const MAX_RECORD_BYTES: usize = 1 << 22;

/// Saves all of standard input to a temporary file, which is deleted when dropped unless it was renamed.
pub(super) fn receive(config: &DataConfig, cache: &Cache, on_progress: OnProgress<'_>) -> Result<Temporary, DataError> {
    let stdin = io::stdin().lock();
    if stdin.is_terminal() {
        return Err(DataError::Terminal); // the user would not see that input is awaited
    }
    let received = save(stdin, cache, on_progress)?;
    check_format(received.path(), config)?;
    Ok(received)
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

/// Rejects a first line that is a record, unless the format is given: there is no file name to go by.
fn check_format(saved: &Path, config: &DataConfig) -> Result<(), DataError> {
    if config.format != TextFormat::Auto {
        return Ok(());
    }
    let mut head = Vec::new();
    OpenFile::open(saved, Path::new(STANDARD_INPUT), false)?.read_text(MAX_RECORD_BYTES, &mut head)?;
    let field = config.text_field.clone();
    match begins_with_record(&head, &field) {
        true => Err(DataError::TextOrRecords { field }),
        false => Ok(()),
    }
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

    #[test]
    fn standard_input_of_records_needs_configured_format() {
        let folder = tempfile::tempdir().unwrap();
        let check = |input: &str, format| {
            let saved = save(input.as_bytes(), &cache(&folder), &ignore).unwrap();
            let config = DataConfig { format, ..DataConfig::default() };
            check_format(saved.path(), &config)
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
