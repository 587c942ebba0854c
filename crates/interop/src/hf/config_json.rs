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

    /// A required size.
    pub(crate) fn size(&mut self, key: &str) -> usize {
        if self.get(key).is_none() {
            self.problems.push(format!("{key} is missing"));
            return 1;
        }
        self.size_or(key, 1)
    }

    pub(crate) fn size_or(&mut self, key: &str, default: usize) -> usize {
        let Some(value) = self.get(key) else { return default };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
        size.unwrap_or_else(|| {
            self.problem(key, value, "a whole number above 0 is expected");
            1
        })
    }

    pub(crate) fn number_or(&mut self, key: &str, default: f64) -> f64 {
        let Some(value) = self.get(key) else { return default };
        number(value).unwrap_or_else(|| {
            self.problem(key, value, "a number is expected");
            default
        })
    }

    /// A required number.
    pub(crate) fn number(&mut self, key: &str) -> f64 {
        if self.get(key).is_none() {
            self.problems.push(format!("{key} is missing"));
        }
        self.number_or(key, 1.0)
    }

    /// A required list of numbers.
    pub(crate) fn numbers(&mut self, key: &str) -> Vec<f64> {
        let Some(value) = self.get(key) else {
            self.problems.push(format!("{key} is missing"));
            return Vec::new();
        };
        let numbers = value.as_array().and_then(|all| all.iter().map(number).collect());
        numbers.unwrap_or_else(|| {
            self.problem(key, value, "a list of numbers is expected");
            Vec::new()
        })
    }

    pub(crate) fn flag_or(&mut self, key: &str, default: bool) -> bool {
        let Some(value) = self.get(key) else { return default };
        value.as_bool().unwrap_or_else(|| {
            self.problem(key, value, "true or false is expected");
            default
        })
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

/// A finite number.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}
