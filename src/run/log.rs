//! Logs of one JSON object a line, as far as they can be read.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use super::RunsError;

/// The lines of a log.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Those that are objects, in order.
    pub objects: Vec<Map<String, Value>>,
    /// How many are not; the last line does not count, which a crash or a run in progress may leave half
    /// written.
    pub broken: usize,
}

/// Reads a log; one that is not there yet has no lines.
///
/// # Errors
/// If it is there and cannot be read.
pub(super) fn read(path: &Path) -> Result<Lines, RunsError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Lines::default()),
        Err(source) => {
            let path = path.to_owned();
            return Err(RunsError::Read { path, source });
        }
    };
    let mut lines = Lines::default();
    let mut is_last_broken = false;
    for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        lines.broken += usize::from(is_last_broken);
        let object = serde_json::from_slice(line);
        is_last_broken = object.is_err();
        lines.objects.extend(object);
    }
    Ok(lines)
}

/// Now, in seconds since 1970, as the logs have it.
#[must_use]
pub fn unix_s() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_lines_are_counted_but_for_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let read_text = |text: &[u8]| {
            fs::write(&path, text).unwrap();
            let lines = read(&path).unwrap();
            (lines.objects.len(), lines.broken)
        };
        assert_eq!(read_text(b"{\"a\":1}\n{\"a\":2}\n"), (2, 0));
        assert_eq!(read_text(b"{\"a\":1}\n{\"a\":"), (1, 0));
        assert_eq!(read_text(b"{\"a\":1}\n\xff\n7\n{\"a\":2}\n"), (2, 2));
        assert_eq!(read_text(b""), (0, 0));
        let lines = read(&dir.path().join("nowhere")).unwrap();
        assert_eq!(lines.objects.len(), 0);
    }
}
