//! Reads the keys of a `config.json`, and reports all problems at once.

use serde_json::{Map, Value, json};

/// A `config.json` or a table in it, with the unsupported keys so far, each as `KEY = VALUE: SUPPORTED VALUES`.
pub(crate) struct ConfigJson<'a> {
    map: &'a Map<String, Value>,
    pub(crate) problems: Vec<String>,
}

impl<'a> ConfigJson<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, problems: Vec::new() }
    }

    /// The value of a key; `None` if it is missing or null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether a key exists, even if null.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The value of a key as `read` understands it; the default if the key is missing or null, or after a problem.
    fn read_or<T>(&mut self, key: &str, default: T, expected: &str, read: impl Fn(&Value) -> Option<T>) -> T {
        let Some(value) = self.get(key) else { return default };
        read(value).unwrap_or_else(|| {
            self.problem(key, value, &format!("{expected} is expected"));
            default
        })
    }

    /// Reports a required key that is missing or null.
    fn require(&mut self, key: &str) {
        if self.get(key).is_none() {
            self.problems.push(format!("{key} is missing"));
        }
    }

    pub(crate) fn size(&mut self, key: &str) -> usize {
        self.require(key);
        self.size_or(key, 1)
    }

    pub(crate) fn size_or(&mut self, key: &str, default: usize) -> usize {
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|size| *size > 0);
        self.read_or(key, default, "a whole number above 0", size)
    }

    pub(crate) fn number_or(&mut self, key: &str, default: f64) -> f64 {
        self.read_or(key, default, "a number", number)
    }

    pub(crate) fn number(&mut self, key: &str) -> f64 {
        self.require(key);
        self.number_or(key, 1.0)
    }

    /// A number; `None` if the key is missing or null.
    pub(crate) fn optional_number(&mut self, key: &str) -> Option<f64> {
        self.get(key)?;
        Some(self.number(key))
    }

    /// A required list of numbers.
    pub(crate) fn numbers(&mut self, key: &str) -> Vec<f64> {
        self.require(key);
        self.read_or(key, Vec::new(), "a list of numbers", |value| value.as_array()?.iter().map(number).collect())
    }

    pub(crate) fn flag_or(&mut self, key: &str, default: bool) -> bool {
        self.read_or(key, default, "true or false", Value::as_bool)
    }

    /// A key that must be missing, null or equal to `expected`.
    pub(crate) fn only(&mut self, key: &str, expected: impl Into<Value>) {
        let expected = expected.into();
        if let Some(value) = self.get(key).filter(|value| **value != expected) {
            self.problem(key, value, &format!("{expected} is supported"));
        }
    }

    /// A switch that must equal another one.
    pub(crate) fn as_other(&mut self, key: &str, expected: bool, other: &str) {
        let value = self.flag_or(key, false);
        if value != expected {
            self.problem(key, &value.into(), &format!("{expected} is supported, as {other} is"));
        }
    }

    /// A key that must be missing or null.
    pub(crate) fn none(&mut self, key: &str, supported: &str) {
        if let Some(value) = self.get(key) {
            self.problem(key, value, supported);
        }
    }

    /// The meaning of a name from a list. A missing key means the first one.
    pub(crate) fn one_of<T: Copy>(&mut self, key: &str, names: &[(&str, T)]) -> T {
        let default = names[0].1;
        let Some(value) = self.get(key) else { return default };
        let known = names.iter().find(|(name, _)| value == name);
        known.map_or_else(
            || {
                let names: Vec<String> = names.iter().map(|(name, _)| json!(name).to_string()).collect();
                let verb = if names.len() == 1 { "is" } else { "are" };
                self.problem(key, value, &format!("{} {verb} supported", names.join(", ")));
                default
            },
            |(_, meaning)| *meaning,
        )
    }

    /// The width of a head, `width / heads`, which must be an integer. Both come with their keys.
    pub(crate) fn head_dim(&mut self, (width_key, width): (&str, usize), (heads_key, heads): (&str, usize)) -> usize {
        if !width.is_multiple_of(heads) {
            self.problems.push(format!("{width_key} = {width}: it must be divisible by {heads_key} = {heads}"));
        }
        (width / heads).max(1)
    }

    pub(crate) fn problem(&mut self, key: &str, value: &Value, supported: &str) {
        const LONGEST: usize = 200;
        let mut value = value.to_string();
        if let Some((end, _)) = value.char_indices().nth(LONGEST) {
            value.truncate(end);
            value.push_str(" ..");
        }
        self.problems.push(format!("{key} = {value}: {supported}"));
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}
