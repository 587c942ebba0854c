//! The fields of a request, taken one by one: an invalid value is rejected with its name and range, and so is every
//! field that was not taken.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;
use crate::format::cut_in_the_middle;

/// The fields of a JSON object that were not yet taken.
pub(super) struct Fields {
    left: Map<String, Value>,
}

impl Fields {
    /// The fields of a request's body.
    pub(super) fn read(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(left)) => Ok(Self { left }),
            Ok(_) => Err(ApiError::bad_request("the body is JSON, but not an object: it must be {...}")),
            Err(error) => Err(ApiError::bad_request(format!("the body is not JSON: {error}"))),
        }
    }

    /// The fields of a nested object of a request.
    pub(super) fn of(left: Map<String, Value>) -> Self {
        Self { left }
    }

    /// A field's value; null counts as missing.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(name, &value, "true or false"))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(wrong(name, &value, "a string")),
        }
    }

    /// An integer in a range.
    pub(super) fn count(&mut self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let rule = format!("a whole number from {} to {}", range.start(), range.end());
        value.as_u64().filter(|n| range.contains(n)).map(Some).ok_or_else(|| wrong(name, &value, &rule))
    }

    /// Like [`Fields::count`], for a size in memory.
    pub(super) fn size(&mut self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, ApiError> {
        let range = *range.start() as u64..=*range.end() as u64;
        Ok(self.count(name, range)?.map(|n| usize::try_from(n).expect("within a range of sizes")))
    }

    /// A number in a range.
    pub(super) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let rule = format!("a number from {} to {}", range.start(), range.end());
        self.number_that(name, &rule, |x| range.contains(&x))
    }

    /// A number above 0 and at most `most`.
    pub(super) fn positive(&mut self, name: &str, most: f64) -> Result<Option<f64>, ApiError> {
        self.number_that(name, &format!("a number above 0 and at most {most}"), |x| x > 0.0 && x <= most)
    }

    fn number_that(&mut self, name: &str, rule: &str, is_good: impl Fn(f64) -> bool) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        value.as_f64().filter(|x| is_good(*x)).map(Some).ok_or_else(|| wrong(name, &value, rule))
    }

    /// Rejects an unsupported OpenAI parameter, unless its value has no effect.
    pub(super) fn only(&mut self, name: &str, neutral: &Value) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if value != *neutral && value.as_f64() != neutral.as_f64().or(Some(f64::NAN)) => {
                Err(ApiError::field(name, format!("`{name}` is not supported; leave it out, or set it to {neutral}")))
            }
            _ => Ok(()),
        }
    }

    /// Rejects the first field that was not taken.
    pub(super) fn finish(self) -> Result<(), ApiError> {
        match self.left.into_iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let name = cut_in_the_middle(&name, 100);
                Err(ApiError::field(&name, format!("`{name}` is not supported")))
            }
        }
    }
}

/// The error for an invalid value.
pub(super) fn wrong(name: &str, value: &Value, rule: &str) -> ApiError {
    let value = cut_in_the_middle(&value.to_string(), 100);
    ApiError::field(name, format!("`{name}` = {value} must be {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::read(json.as_bytes()).expect("an object")
    }

    #[test]
    fn a_wrong_value_is_named_with_its_range() {
        let mut wrong = fields(r#"{"a": 2.5, "b": -1, "c": "x", "d": 1.5, "e": [], "f": 0}"#);
        let errors = [
            wrong.number("a", 0.0..=2.0).map(drop),
            wrong.count("b", 0..=5).map(drop),
            wrong.flag("c").map(drop),
            wrong.size("d", 1..=9).map(drop),
            wrong.text("e").map(drop),
            wrong.positive("f", 1.0).map(drop),
        ];
        let bodies = errors.map(|error| error.expect_err("wrong").body());
        let rules = [
            "`a` = 2.5 must be a number from 0 to 2",
            "`b` = -1 must be a whole number from 0 to 5",
            "`c` = \\\"x\\\" must be true or false",
            "`d` = 1.5 must be a whole number from 1 to 9",
            "`e` = [] must be a string",
            "`f` = 0 must be a number above 0 and at most 1",
        ];
        for ((body, rule), name) in bodies.iter().zip(rules).zip("abcdef".chars()) {
            assert!(body.contains(rule) && body.contains(&format!("\"param\":\"{name}\"")), "{body}");
        }
    }

    #[test]
    fn what_nobody_takes_is_refused_and_null_is_nothing() {
        let mut some = fields(r#"{"temperature": 1, "suffix": null, "penalty": 0.0, "best_of": 1}"#);
        assert_eq!(some.number("temperature", 0.0..=2.0).expect("right"), Some(1.0));
        some.only("penalty", &0.into()).expect("it changes nothing");
        some.only("best_of", &1.into()).expect("it changes nothing");
        some.finish().expect("nothing is left");
        assert!(fields(r#"{"tools": []}"#).finish().unwrap_err().body().contains("`tools` is not supported"));
        assert!(fields(r#"{"a": true}"#).only("a", &false.into()).is_err());
        assert!(fields(r#"{"a": 0.5}"#).only("a", &0.into()).is_err());
        for body in ["", "[1]", "{\"a\": NaN}", "{\"a\": 1}}", "\u{0}"] {
            assert!(Fields::read(body.as_bytes()).is_err(), "{body}");
        }
    }
}
