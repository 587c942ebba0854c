//! The text in a record: a line of a JSON Lines file.

use std::fmt;

use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};

/// The UTF-8 byte order mark, which is not part of the text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The names of other fields that an error lists, and the characters of each.
const MAX_NAMES: usize = 12;
const MAX_NAME_LENGTH: usize = 40;

/// The text in a field of a record; fails with the reason, which continues a sentence about the line.
pub(super) fn text_of(line: &[u8], field: &str) -> Result<String, String> {
    let mut others = Vec::new();
    let mut json = serde_json::Deserializer::from_slice(line.trim_ascii());
    let text = json.deserialize_map(TextField { field, others: &mut others });
    match text.and_then(|text| json.end().map(|()| text)) {
        Ok(Some(text)) => Ok(text),
        Ok(None) => {
            let cut = |name: &String| format!("\"{}\"", name.chars().take(MAX_NAME_LENGTH).collect::<String>());
            let names: Vec<String> = others.iter().map(cut).collect();
            let only = if names.is_empty() { "" } else { ", only " };
            let is_conversation =
                |name: &String| ["messages", "conversations", "prompt", "instruction"].contains(&&**name);
            let hint = match others.iter().any(is_conversation) {
                true => {
                    "`tinderbox finetune RUN --data FILE` reads records such as conversations; data.text_field names a text"
                }
                false => "data.text_field names the one that holds the text",
            };
            Err(format!("has no field \"{field}\"{only}{}\n  hint: {hint}", names.join(", ")))
        }
        Err(error) => {
            let hint = "JSON Lines is one object a line, such as {\"text\": \"...\"}; data.text_field names the field, and \
                        format = \"text\" under [data] takes the file as it is";
            Err(match error.is_data() {
                true => format!("is not an object with a text in its field \"{field}\"\n  hint: {hint}"),
                false => not_json(&error, line, hint),
            })
        }
    }
}

/// Whether the first line of `head` is a record with text in `field`.
pub(super) fn begins_with_record(head: &[u8], field: &str) -> bool {
    text_of(first_line(head), field).is_ok()
}

/// Whether the first line of `head` is an object.
pub(super) fn begins_with_object(head: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Map<_, _>>(first_line(head)).is_ok()
}

fn first_line(head: &[u8]) -> &[u8] {
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    head.trim_ascii_start().split(|byte| *byte == b'\n').next().unwrap_or_default()
}

/// Whether `head` begins with a list of objects.
pub(super) fn begins_with_list(head: &[u8]) -> bool {
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head).trim_ascii_start();
    head.strip_prefix(b"[").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"{"))
}

/// The problem with a record that is not JSON, with a hint: the given one unless the cause is known.
pub(super) fn not_json(error: &serde_json::Error, record: &[u8], hint: &str) -> String {
    let message = error.to_string();
    let reason = message.split_once(" at line ").map_or(&*message, |(reason, _)| reason);
    let line = record.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let at = line.get(error.column().saturating_sub(2)..).unwrap_or_default();
    let begins = |word: &[u8]| at.windows(word.len()).take(2).any(|part| part == word);
    let hint = match reason {
        _ if record.contains(&0) => "it has zero bytes, as in UTF-16 and UTF-32: save it as UTF-8",
        _ if begins(b"NaN") || begins(b"Infinity") => {
            "JSON has no NaN and no Infinity: leave the field out, or write null (in Python json.dumps has allow_nan=False)"
        }
        reason if reason.ends_with("hex escape") => {
            "an escape such as \\ud83e alone is half a character: the text was cut within one, such as an emoji; remove the \
             half, or cut the text again between characters"
        }
        _ => hint,
    };
    format!("is not JSON: {reason} at column {}\n  hint: {hint}", error.column())
}

/// The problem with a record of more than so many bytes.
pub(super) fn too_long(max_bytes: usize) -> String {
    let mib = max_bytes as f64 / f64::from(1 << 20);
    format!(
        "is longer than {mib} MiB, the limit of a record\n  hint: data.record_limit_mib raises it; reading takes up to three \
         times as much memory"
    )
}

/// Reads the text of a field, of the last one if it is repeated, and the names of the first few others.
struct TextField<'a> {
    field: &'a str,
    others: &'a mut Vec<String>,
}

impl<'de> Visitor<'de> for TextField<'_> {
    type Value = Option<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut text = None;
        while let Some(name) = fields.next_key::<String>()? {
            if name == self.field {
                text = Some(fields.next_value()?);
                continue;
            }
            fields.next_value::<IgnoredAny>()?;
            if self.others.len() < MAX_NAMES {
                self.others.push(name);
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_found_among_other_fields() {
        let line = br#" {"id": 3, "meta": {"text": "no"}, "te\u0078t": "a \u00e9\n\ud83d\udd25", "z": [1]}"#;
        assert_eq!(text_of(line, "text").unwrap(), "a \u{e9}\n\u{1f525}");
        assert_eq!(text_of(br#"{"a.b": ""}"#, "a.b").unwrap(), "");
        assert_eq!(text_of(br#"{"text": "a", "text": "b"}"#, "text").unwrap(), "b");
    }

    #[test]
    fn lines_without_text_are_explained() {
        for (line, expected) in [
            (&br#"{"id": {"a": ["]}"]}, "body": "x"}"#[..], r#"has no field "text", only "id", "body""#),
            (b"{}", r#"has no field "text""#),
            (br#"{"messages": []}"#, "has no field \"text\", only \"messages\"\n  hint: `tinderbox finetune RUN"),
            (br#"{"text": null}"#, r#"is not an object with a text in its field "text""#),
            (br#"["a"]"#, "is not an object"),
            (br#""a""#, "is not an object"),
            (b"once upon", "is not JSON: expected value at column 1\n"),
            (b"{\n", "is not JSON: EOF while parsing an object at column 1\n"),
            (br#"{"text": "a"} {"text": "b"}"#, "is not JSON: trailing characters"),
            (br#"{"text": "\ud800"}"#, "is not JSON: "),
            (br#"{"text": "a"#, "is not JSON: EOF while parsing a string"),
            (b"{\"text\": \"\xff\"}", "is not JSON: "),
        ] {
            let error = text_of(line, "text").unwrap_err();
            assert!(error.starts_with(expected) && error.contains("hint: "), "{error}");
        }
    }
}
