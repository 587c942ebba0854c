//! The text in a record: a line of a JSON Lines file.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::file::BYTE_ORDER_MARK;

/// The text in a field of a JSON Lines record, or the reason why there is none, with a hint.
pub(super) fn record_text(line: &[u8], field: &str) -> Result<String, String> {
    let mut parser = serde_json::Deserializer::from_slice(line);
    let found = parser.deserialize_map(TextIn(field));
    match found.and_then(|text| parser.end().map(|()| text)) {
        Ok(Some(text)) => Ok(text),
        Ok(None) | Err(_) => Err(problem(line, field)),
    }
}

/// Whether the first line of `head` is a record with text in `field`.
pub(super) fn begins_with_record(head: &[u8], field: &str) -> bool {
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    let first_line = head.trim_ascii_start().split(|byte| *byte == b'\n').next();
    record_text(first_line.unwrap_or_default(), field).is_ok()
}

/// Parses the line again to describe the problem with it.
fn problem(line: &[u8], field: &str) -> String {
    let no_object = |problem: String| {
        format!(
            "{problem}\n  hint: JSON Lines is one object a line, such as {{\"text\": \"...\"}}; format = \"text\" under \
             [data] takes the file as it is"
        )
    };
    let object = match serde_json::from_slice(line) {
        Ok(Value::Object(object)) => object,
        Ok(other) => return no_object(format!("is {}, not an object", kind_of(&other))),
        Err(error) => {
            let message = error.to_string();
            let (reason, _) = message.split_once(" at line ").unwrap_or((&message, ""));
            return no_object(match error.line() {
                1 => format!("is not JSON: {reason} at column {}", error.column()),
                _ => format!("is not JSON: {reason}"), // the line ended too early
            });
        }
    };
    if let Some(value) = object.get(field) {
        let found = kind_of(value);
        return format!(
            "has {found} in its field \"{field}\", not a text\n  hint: data.text_field names the field that holds the text"
        );
    }
    let names: Vec<String> = object.keys().map(|name| format!("\"{name}\"")).collect();
    let names = if names.is_empty() { "{}".to_owned() } else { names.join(", ") };
    format!("has no field \"{field}\", only {names}\n  hint: data.text_field names the one that holds the text")
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Extracts one field from an object and skips the others, which may be large.
struct TextIn<'a>(&'a str);

impl<'de> Visitor<'de> for TextIn<'_> {
    type Value = Option<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let mut text = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == self.0 {
                text = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_found_among_other_fields() {
        let line = br#" {"id": 3, "meta": {"text": "no"}, "te\u0078t": "a \u00e9\n\ud83d\udd25", "z": [1]}"#;
        assert_eq!(record_text(line, "text").unwrap(), "a \u{e9}\n\u{1f525}");
        assert_eq!(record_text(br#"{"a.b": ""}"#, "a.b").unwrap(), "");
    }

    #[test]
    fn a_line_without_a_text_says_why() {
        for (line, expected) in [
            (r#"{"id": 3, "body": "x"}"#, r#"has no field "text", only "body", "id""#),
            ("{}", r#"has no field "text", only {}"#),
            (r#"{"text": null}"#, r#"has null in its field "text""#),
            (r#"{"text": ["a"]}"#, r#"has a list in its field "text""#),
            (r#"["a"]"#, "is a list, not an object"),
            (r#""a""#, "is a text, not an object"),
            ("once upon", "is not JSON: expected value at column 1\n"),
            ("{\n", "is not JSON: EOF while parsing an object\n"),
            (r#"{"text": "a"#, "is not JSON: EOF while parsing a string"),
            (r#"{"text": "a"} {"text": "b"}"#, "is not JSON: trailing characters"),
            (r#"{"text": "\ud800"}"#, "is not JSON"),
        ] {
            let error = record_text(line.as_bytes(), "text").unwrap_err();
            assert!(error.starts_with(expected), "{line}: {error}");
            assert!(error.contains("hint: "), "{error}");
        }
        let invalid = record_text(b"{\"text\": \"\xff\"}", "text").unwrap_err();
        assert!(invalid.starts_with("is not JSON"), "{invalid}");
    }
}
