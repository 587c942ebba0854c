//! Logs of one JSON object per line, written and read.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{RunError, cannot_read, cannot_write};

/// The readable lines of a log.
#[derive(Debug)]
pub(crate) struct Lines<T> {
    pub lines: Vec<T>,
    /// Lines that could not be read, except for the last: a crash or a running process may leave it torn.
    pub broken: usize,
}

/// The longest line that is read: head metrics of some 2,500 heads.
const LONGEST_LINE: u64 = 1 << 20;

/// Reads a log of one JSON object per line; a missing file has no lines.
pub(crate) fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Lines<T>, RunError> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Lines { lines: Vec::new(), broken: 0 }),
        opened => BufReader::new(opened.map_err(cannot_read(path))?),
    };
    let (mut lines, mut broken, mut is_last_broken, mut line) = (Vec::new(), 0, false, Vec::new());
    loop {
        line.clear();
        if (&mut file).take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(cannot_read(path))? == 0 {
            return Ok(Lines { lines, broken });
        }
        if line == b"\n" {
            continue;
        }
        if line.len() as u64 == LONGEST_LINE && !line.ends_with(b"\n") {
            file.skip_until(b'\n').map_err(cannot_read(path))?;
            line.clear(); // not JSON
        }
        broken += usize::from(is_last_broken);
        let parsed = serde_json::from_slice(&line);
        is_last_broken = parsed.is_err();
        lines.extend(parsed);
    }
}

#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    pub(crate) fn open(path: PathBuf) -> Result<Self, RunError> {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        Ok(Self { file: file.map_err(cannot_write(&path))?, path })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), RunError> {
        self.file.write_all(bytes).map_err(cannot_write(&self.path))
    }

    /// Writes a line of JSON with its keys in alphabetical order, leaving out keys that are `None`.
    pub(crate) fn line(&mut self, line: &impl Serialize) -> Result<(), RunError> {
        self.write(json_line(line).as_bytes())
    }

    pub(crate) fn sync(&self) -> Result<(), RunError> {
        self.file.sync_data().map_err(cannot_write(&self.path))
    }

    pub(super) fn is_empty(&self) -> Result<bool, RunError> {
        Ok(self.file.metadata().map_err(cannot_write(&self.path))?.len() == 0)
    }
}

pub(super) fn json_line(line: &impl Serialize) -> String {
    let mut line = serde_json::to_value(line).expect("plain data serializes");
    if let Value::Object(keys) = &mut line {
        keys.retain(|_, value| !value.is_null());
    }
    line.sort_all_objects();
    format!("{line}\n")
}

/// The current time, in seconds since 1970.
pub fn unix_s() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
