//! The metadata of a GGUF file by key, with type checks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::value::{Array, Number, Value};
use crate::InteropError;
use crate::error::damaged;

/// Named values, and the file that they come from.
#[derive(Clone, Debug)]
pub struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub(super) fn new(path: &Path, values: BTreeMap<String, Value>) -> Self {
        Self { path: path.to_owned(), values }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<&str>, InteropError> {
        self.get(key, "a text", |value| if let Value::String(text) = value { Some(text.as_str()) } else { None })
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, InteropError> {
        self.get(key, "true or false", Value::truth)
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f64>, InteropError> {
        self.get(key, "a number", Value::float)
    }

    /// A count or an id: a non-negative integer below 2^32.
    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, InteropError> {
        let fits = |value: &Value| u32::try_from(value.integer()?).ok().map(|n| n as usize);
        self.get(key, "a count", fits)
    }

    /// Like [`Metadata::count`], for a value per layer: a single number for all, or equal numbers.
    pub(super) fn same_count(&self, key: &str) -> Result<Option<usize>, InteropError> {
        let single = |value: &Value| match value.numbers() {
            None => value.integer(),
            Some(numbers) => {
                let first = numbers.first()?.integer()?;
                numbers.iter().all(|number| number.integer() == Some(first)).then_some(first)
            }
        };
        self.get(key, "one count for all layers", |value| u32::try_from(single(value)?).ok().map(|n| n as usize))
    }

    pub(super) fn strings(&self, key: &str) -> Result<Option<&[String]>, InteropError> {
        let strings =
            |value| if let &Value::Array(Array::Strings(ref texts)) = value { Some(&texts[..]) } else { None };
        self.get(key, "a list of texts", strings)
    }

    pub(super) fn floats(&self, key: &str) -> Result<Option<Vec<f64>>, InteropError> {
        let floats = |value: &Value| value.numbers()?.into_iter().map(Number::float).collect();
        self.get(key, "a list of numbers", floats)
    }

    pub(super) fn integers(&self, key: &str) -> Result<Option<Vec<i128>>, InteropError> {
        let integers = |value: &Value| value.numbers()?.into_iter().map(Number::integer).collect();
        self.get(key, "a list of integers", integers)
    }

    pub(super) fn required<T>(&self, key: &str, found: Option<T>) -> Result<T, InteropError> {
        found.ok_or_else(|| self.damaged(format!("`{key}` is missing in its metadata")))
    }

    pub(super) fn damaged(&self, reason: String) -> InteropError {
        damaged(&self.path, reason)
    }

    pub(super) fn unsupported(&self, key: &str, value: &str, supported: &str) -> InteropError {
        let problem = format!("{key} = {value}: supported are {supported}");
        InteropError::Unsupported { path: self.path.clone(), problems: vec![problem] }
    }

    pub(super) fn same_length(&self, key: &str, n: usize, other: &str, n_other: usize) -> Result<(), InteropError> {
        match n == n_other {
            true => Ok(()),
            false => Err(self.damaged(format!("`{key}` has {n} entries, and `{other}` {n_other}"))),
        }
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, InteropError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        match read(value) {
            Some(found) => Ok(Some(found)),
            None => Err(self.damaged(format!("`{key}` is {}, not {expected}", value.shown()))),
        }
    }
}

/// The metadata of an architecture, whose keys have its name as prefix.
pub(crate) struct ArchitectureKeys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: &'a str,
}

impl ArchitectureKeys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// A count, the same for all layers.
    pub(crate) fn optional_count(&self, name: &str) -> Result<Option<usize>, InteropError> {
        self.metadata.same_count(&self.key(name))
    }

    pub(super) fn count(&self, name: &str) -> Result<usize, InteropError> {
        self.required(name, self.optional_count(name)?)
    }

    pub(crate) fn float(&self, name: &str) -> Result<Option<f64>, InteropError> {
        self.metadata.float(&self.key(name))
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>, InteropError> {
        self.metadata.bool(&self.key(name))
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&str>, InteropError> {
        self.metadata.string(&self.key(name))
    }

    pub(super) fn required<T>(&self, name: &str, found: Option<T>) -> Result<T, InteropError> {
        self.metadata.required(&self.key(name), found)
    }

    pub(crate) fn unsupported(&self, name: &str, value: &str, supported: &str) -> InteropError {
        self.metadata.unsupported(&self.key(name), value, supported)
    }
}
