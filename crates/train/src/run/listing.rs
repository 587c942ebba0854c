//! Several runs: the runs in a folder, and the differences between their configs.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::path::Path;

use toml::{Table, Value};

use super::{RunDir, RunError, RunInfo, cannot_read, config_table};

/// The runs in a folder.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The runs.
    pub runs: Vec<RunInfo>,
    /// The reasons why the other folders are not listed, one line each.
    pub skipped: Vec<String>,
}

/// The order of a listing: by validation loss in bits per byte, lowest first, or by start, latest first. Runs without
/// the value come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[allow(missing_docs, reason = "the docs of the variants would be a part of the help")]
pub enum Order {
    Loss,
    Time,
}

/// Reads the runs in `folder`, in order of name.
pub fn list(folder: &Path) -> Result<Listing, RunError> {
    let entries = fs::read_dir(folder).map_err(|error| match error.kind() {
        ErrorKind::NotFound => RunError::NoFolder(folder.to_owned()),
        _ => cannot_read(folder)(error),
    })?;
    let mut entries = entries.collect::<io::Result<Vec<_>>>().map_err(cannot_read(folder))?;
    entries.sort_by_key(DirEntry::path);
    let (mut runs, mut skipped) = (Vec::new(), Vec::new());
    let is_visible = |entry: &DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    for path in entries.into_iter().filter(is_visible).map(|entry| entry.path()).filter(|path| path.is_dir()) {
        match RunDir::open(&path).and_then(|run| RunInfo::read(&run)) {
            Ok(info) => runs.push(info),
            Err(error) => skipped.push(error.first_line()),
        }
    }
    if runs.is_empty() {
        return Err(RunError::NoRuns { folder: folder.to_owned(), skipped });
    }
    Ok(Listing { runs, skipped })
}

/// Sorts runs; ties are broken by name.
pub fn sort(runs: &mut [RunInfo], order: Order) {
    let key = |info: &RunInfo| {
        let numbers = match order {
            Order::Loss => [info.val_bits_per_byte, info.val_loss],
            Order::Time => [info.began_unix_s.map(|began| -began), None],
        };
        numbers.map(|number| number.unwrap_or(f64::INFINITY))
    };
    runs.sort_by(|a, b| {
        let ([a1, a2], [b1, b2]) = (key(a), key(b));
        a1.total_cmp(&b1).then(a2.total_cmp(&b2)).then_with(|| a.run.cmp(&b.run))
    });
}

/// A config key that differs between runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The key with its section.
    pub key: String,
    /// Its value in each run; `None` if the run does not have it.
    pub values: Vec<Option<Value>>,
}

/// The keys that differ between the configs of `runs`, with their values in the order of the runs.
pub fn differences(runs: &[RunDir]) -> Result<Vec<Difference>, RunError> {
    let tables = runs.iter().map(config_table).collect::<Result<Vec<_>, _>>()?;
    Ok(differences_of(&tables))
}

/// The same for configs as tables.
pub(crate) fn differences_of<'a>(tables: &'a [Table]) -> Vec<Difference> {
    let keys_of = |(name, section): (&'a String, &'a Value)| {
        let keys = section.as_table().into_iter().flat_map(Table::keys);
        keys.map(move |key| (name.as_str(), key.as_str()))
    };
    let keys: BTreeSet<(&str, &str)> = tables.iter().flatten().flat_map(keys_of).collect();
    let of_key = |(section, key): (&str, &str)| Difference {
        key: format!("{section}.{key}"),
        values: tables.iter().map(|table| Some(table.get(section)?.get(key)?.clone())).collect(),
    };
    let differs = |of_key: &Difference| of_key.values.iter().any(|value| value != &of_key.values[0]);
    keys.into_iter().map(of_key).filter(differs).collect()
}
