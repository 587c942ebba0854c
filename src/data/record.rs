//! The text of a JSON Lines record.

use std::fmt;

use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};

/// Why a line has no text.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The line is not JSON.
    #[error(
        "is not JSON: {reason}\n  hint: JSON Lines is one object a line, such as {{\"text\": \"...\"}}; \
         format = \"text\" under [data] takes the file as it is"
    )]
    NotJson {
        /// What the parser said.
        reason: String,
    },
    /// The line is JSON, but not an object.
    #[error(
        "is {found}, not an object\n  hint: JSON Lines is one object a line, such as \
         {{\"text\": \"...\"}}; format = \"text\" under [data] takes the file as it is"
    )]
    NotAnObject {
        /// What it is.
        found: &'static str,
    },
    /// The object does not have the field.
    #[error(
        "has no field \"{field}\", only {}\n  hint: data.text_field names the one that holds the text",
        named(found)
    )]
    NoField {
        /// The field that was asked for.
        field: String,
        /// Those that are there.
        found: Vec<String>,
    },
    /// The field is there, but holds no text.
    #[error(
        "has {found} in its field \"{field}\", not a text\n  hint: data.text_field names the field \
         that holds the text"
    )]
    NotAText {
        /// The field that was asked for.
        field: String,
        /// What it holds.
        found: &'static str,
    },
}

fn named(fields: &[String]) -> String {
    match fields {
        [] => "{}".to_owned(),
        fields => format!("\"{}\"", fields.join("\", \"")),
    }
}

/// The text in a field of a JSON object.
///
/// # Errors
/// If the line is no object, or has no text of that name.
pub(super) fn text_of(line: &[u8], field: &str) -> Result<String, RecordError> {
    let mut parser = serde_json::Deserializer::from_slice(line);
    let found = parser.deserialize_map(TextIn { field });
    match found.and_then(|text| parser.end().map(|()| text)) {
        Ok(Some(text)) => Ok(text),
        Ok(None) | Err(_) => Err(what_is_wrong(line, field)),
    }
}

/// Reads the line once more, whole, to say what is wrong with it.
fn what_is_wrong(line: &[u8], field: &str) -> RecordError {
    let object = match serde_json::from_slice(line) {
        Ok(serde_json::Value::Object(object)) => object,
        Ok(other) => {
            return RecordError::NotAnObject { found: kind_of(&other) };
        }
        Err(error) => {
            return RecordError::NotJson { reason: without_line(&error) };
        }
    };
    let field = field.to_owned();
    match object.get(&field) {
        Some(value) => RecordError::NotAText { field, found: kind_of(value) },
        None => RecordError::NoField { field, found: object.keys().cloned().collect() },
    }
}

/// What the parser says, with the column but not the line, which it counts within this one.
fn without_line(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let (reason, _) = message.split_once(" at line ").unwrap_or((&message, ""));
    match error.line() {
        1 => format!("{reason} at column {}", error.column()),
        _ => reason.to_owned(), // it ends with the line
    }
}

fn kind_of(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "true or false",
        serde_json::Value::Number(_) => "a number",
        serde_json::Value::String(_) => "a text",
        serde_json::Value::Array(_) => "a list",
        serde_json::Value::Object(_) => "an object",
    }
}

/// Takes one field out of an object and skips the others, which may be large.
struct TextIn<'a> {
    field: &'a str,
}

impl<'de> Visitor<'de> for TextIn<'_> {
    type Value = Option<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let mut text = None;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if key == self.field {
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
        assert_eq!(text_of(line, "text").unwrap(), "a \u{e9}\n\u{1f525}");
        assert_eq!(text_of(br#"{"a.b": ""}"#, "a.b").unwrap(), "");
    }

    #[test]
    fn what_is_wrong_is_said() {
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
            let error = text_of(line.as_bytes(), "text").unwrap_err().to_string();
            assert!(error.starts_with(expected), "{line}: {error}");
            assert!(error.contains("hint: "), "{error}");
        }
        let invalid = text_of(b"{\"text\": \"\xff\"}", "text").unwrap_err().to_string();
        assert!(invalid.starts_with("is not JSON"), "{invalid}");
    }
}
