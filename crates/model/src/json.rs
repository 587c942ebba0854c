//! JSON in which no object has a name twice: readers would differ in which of the values they take.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::format::cut_in_the_middle;

/// Parses JSON.
///
/// # Errors
/// If it is not JSON, or an object has a name twice.
pub fn parse(json: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(json).map(|Unique(value)| value)
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyValue).map(Self)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Unique(item)) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut entries = Map::new();
        while let Some((name, Unique(value))) = object.next_entry::<String, Unique>()? {
            if entries.contains_key(&name) {
                let name = cut_in_the_middle(&name, 100);
                return Err(A::Error::custom(format!("an object has the name {name:?} twice")));
            }
            entries.insert(name, value);
        }
        Ok(Value::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_returns_json_of_unique_names() {
        let json = r#"{"b": [1, -2, 2.5, 18446744073709551615, "\u00e9", true, null], "a": {"b": {}}, "": []}"#;
        let expected: Value = serde_json::from_str(json).expect("the text is JSON");
        assert_eq!(parse(json.as_bytes()).expect("the text is JSON"), expected);
        for (json, part) in [
            (r#"{"a": 1, "b": {"c": 1, "d": 2, "c": 1}}"#, r#"the name "c" twice"#),
            (r#"[{"a": 1, "\u0061": 1}]"#, r#"the name "a" twice"#),
            (r#"{"a": 1} x"#, "trailing characters"),
        ] {
            let error = parse(json.as_bytes()).expect_err(json).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
