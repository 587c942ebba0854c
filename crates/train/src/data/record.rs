//! The text in a record: a line of a JSON Lines file. It is located in the line and taken out in pieces, so that long
//! texts need no second copy.

use std::ops::Range;

use serde::de::IgnoredAny;

/// The UTF-8 byte order mark, which is not part of the text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The names of other fields that an error lists, and the bytes of each.
const MAX_NAMES: usize = 12;
const MAX_NAME_BYTES: usize = 40;

/// The place of the text of a field in the line of a record, as JSON writes it, without its quotes; or the reason why
/// it is missing, with a hint. [`take_text`] reads it.
pub(super) fn find_text(line: &[u8], field: &str) -> Result<Range<usize>, String> {
    let start = line.len() - line.trim_ascii_start().len();
    if line.get(start) != Some(&b'{') || serde_json::from_slice::<IgnoredAny>(line).is_err() {
        return Err(no_record(line));
    }
    let fields = Fields { line, at: start + 1 };
    // The last one counts, as it does to most readers of JSON.
    let found = fields.filter(|(name, _)| is_name(&line[name.clone()], field)).last();
    match found.map(|(_, value)| value) {
        Some(value) if line[value.start] == b'"' => Ok(value.start + 1..value.end - 1),
        Some(value) => Err(format!(
            "has {} in its field \"{field}\", not a text\n  hint: data.text_field names the field that holds the text",
            kind_of(line[value.start])
        )),
        None => Err(without_field(line, start, field)),
    }
}

/// Appends about `max_bytes` of the text that is left in `place` to `text`, at least a character, and removes them from
/// `place`. Fails with the reason if they stand for no text.
pub(super) fn take_text(
    line: &[u8],
    place: &mut Range<usize>,
    max_bytes: usize,
    text: &mut Vec<u8>,
) -> Result<(), String> {
    let piece = &line[place.start..place.start + length_of_piece(&line[place.clone()], max_bytes)];
    place.start += piece.len();
    if piece.contains(&b'\\') {
        text.extend(unescaped(piece)?.into_bytes());
    } else {
        let piece = std::str::from_utf8(piece).map_err(|_| no_json("invalid unicode code point"))?;
        text.extend_from_slice(piece.as_bytes());
    }
    Ok(())
}

/// Whether the first line of `head` is a record with text in `field`.
pub(super) fn begins_with_record(head: &[u8], field: &str) -> bool {
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    let first_line = head.trim_ascii_start().split(|byte| *byte == b'\n').next();
    find_text(first_line.unwrap_or_default(), field).is_ok()
}

/// The bytes of `text`, as JSON writes it, up to the first possible cut from `max_bytes` on: not within a character, an
/// escape, or a pair of escapes for one character.
fn length_of_piece(text: &[u8], max_bytes: usize) -> usize {
    if text.len() <= max_bytes {
        return text.len();
    }
    let mut at = 0;
    while at < max_bytes {
        at += match &text[at..] {
            [b'\\', b'u', b'd' | b'D', b'8'..=b'9' | b'a'..=b'b' | b'A'..=b'B', ..] => 12,
            [b'\\', b'u', ..] => 6,
            [b'\\', ..] => 2,
            _ => 1,
        };
        at = at.min(text.len());
    }
    at + text[at..].iter().take_while(|byte| **byte & 0xc0 == 0x80).count()
}

/// A string that JSON writes like this between quotes.
fn unescaped(text: &[u8]) -> Result<String, String> {
    let quoted = [b"\"", text, b"\""].concat();
    serde_json::from_slice(&quoted).map_err(|error| no_json(reason(&error.to_string())))
}

fn is_name(name: &[u8], field: &str) -> bool {
    /// The longest escape of a byte of text, such as \u0041.
    const ESCAPE_BYTES: usize = 6;
    if name.contains(&b'\\') {
        name.len() <= ESCAPE_BYTES * field.len() && unescaped(name).is_ok_and(|name| name == field)
    } else {
        name == field.as_bytes()
    }
}

/// The fields of an object that is known to be JSON: the places of the name, without its quotes, and of the value.
struct Fields<'a> {
    line: &'a [u8],
    at: usize,
}

impl Fields<'_> {
    fn skip_to(&mut self, is_end: impl Fn(u8) -> bool) {
        let rest = self.line.get(self.at..).unwrap_or_default();
        self.at += rest.iter().position(|byte| is_end(*byte)).unwrap_or(rest.len());
    }

    /// Skips a string, whose first quote is next.
    fn skip_string(&mut self) {
        self.at += 1;
        loop {
            self.skip_to(|byte| matches!(byte, b'"' | b'\\'));
            match self.line.get(self.at) {
                Some(b'\\') => self.at += 2,
                _ => break self.at += 1,
            }
        }
    }

    /// Skips a value, whose first byte is next.
    fn skip_value(&mut self) {
        let mut depth = 0_usize;
        loop {
            match self.line.get(self.at) {
                Some(b'"') => self.skip_string(),
                Some(b'{' | b'[') => (depth, self.at) = (depth + 1, self.at + 1),
                Some(b'}' | b']') if depth > 0 => (depth, self.at) = (depth - 1, self.at + 1),
                _ => self.skip_to(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']' | b',')),
            }
            match self.line.get(self.at) {
                Some(_) if depth > 0 => self.skip_to(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']')),
                _ => break,
            }
        }
    }
}

impl Iterator for Fields<'_> {
    type Item = (Range<usize>, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        self.skip_to(|byte| matches!(byte, b'"' | b'}'));
        if self.line.get(self.at) != Some(&b'"') {
            return None;
        }
        let name = self.at + 1;
        self.skip_string();
        let name = name..self.at - 1;
        self.skip_to(|byte| byte == b':');
        self.at += 1;
        self.skip_to(|byte| !byte.is_ascii_whitespace());
        let value = self.at;
        self.skip_value();
        Some((name, value..self.at))
    }
}

/// The reason why a line is no object.
fn no_record(line: &[u8]) -> String {
    let problem = match serde_json::from_slice::<IgnoredAny>(line) {
        Ok(_) => format!("is {}, not an object", kind_of(*line.trim_ascii_start().first().unwrap_or(&b'0'))),
        Err(error) => {
            let message = error.to_string();
            let reason = reason(&message);
            match error.line() {
                1 => return no_json(&format!("{reason} at column {}", error.column())),
                _ => return no_json(reason), // the line ended too early
            }
        }
    };
    with_hint(&problem)
}

fn no_json(reason: &str) -> String {
    with_hint(&format!("is not JSON: {reason}"))
}

fn with_hint(problem: &str) -> String {
    format!(
        "{problem}\n  hint: JSON Lines is one object a line, such as {{\"text\": \"...\"}}; format = \"text\" under \
         [data] takes the file as it is"
    )
}

/// The message of a parser's error without the place.
pub(super) fn reason(message: &str) -> &str {
    message.split_once(" at line ").map_or(message, |(reason, _)| reason)
}

/// The error of an object, which begins at `start`, without the field.
fn without_field(line: &[u8], start: usize, field: &str) -> String {
    let mut fields = Fields { line, at: start + 1 };
    let shown = |(name, _): (Range<usize>, Range<usize>)| {
        let name = &line[name];
        let cut = length_of_piece(name, MAX_NAME_BYTES);
        let more = if cut < name.len() { "..." } else { "" };
        format!("\"{}{more}\"", String::from_utf8_lossy(&name[..cut]))
    };
    let mut names: Vec<String> = fields.by_ref().take(MAX_NAMES).map(shown).collect();
    names.sort();
    if fields.next().is_some() {
        names.push("...".to_owned());
    }
    let names = if names.is_empty() { "{}".to_owned() } else { names.join(", ") };
    format!("has no field \"{field}\", only {names}\n  hint: data.text_field names the one that holds the text")
}

/// The kind of a value, by its first byte.
fn kind_of(first: u8) -> &'static str {
    match first {
        b'n' => "null",
        b't' | b'f' => "true or false",
        b'"' => "a text",
        b'[' => "a list",
        b'{' => "an object",
        _ => "a number",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text of a record, taken out in pieces of this length.
    fn text_in_pieces(line: &[u8], field: &str, max_bytes: usize) -> Result<String, String> {
        let mut place = find_text(line, field)?;
        let mut text = Vec::new();
        while !place.is_empty() {
            let before = place.start;
            take_text(line, &mut place, max_bytes, &mut text)?;
            assert!(place.start > before);
        }
        Ok(String::from_utf8(text).unwrap())
    }

    fn record_text(line: &[u8], field: &str) -> Result<String, String> {
        text_in_pieces(line, field, usize::MAX)
    }

    proptest! {
        #[test]
        fn found_text_equals_parsed_text(
            names in prop::collection::vec("te?xt|[a\"\\\\{}\\[\\],: ]{0,4}", 0..5),
            texts in prop::collection::vec("(?s:.{0,12})|[\"\\\\{}\\[\\],: \u{1f525}\n\u{e9}]{0,12}", 5),
            kinds in prop::collection::vec(0..4_u8, 5),
            escape in any::<bool>(),
            max_bytes in 1_usize..9,
        ) {
            let quoted = |text: &str| {
                let plain = serde_json::to_string(text).unwrap();
                let escaped = |unit: u16| format!("\\u{unit:04x}");
                if escape { format!("\"{}\"", text.encode_utf16().map(escaped).collect::<String>()) } else { plain }
            };
            let value = |text: &str, kind| match kind {
                0 => format!("[{}, {{{}: [1]}}]", quoted(text), quoted(text)),
                1 => "-1.5e3".to_owned(),
                _ => quoted(text),
            };
            let fields = names.iter().zip(&texts).zip(&kinds);
            let fields: Vec<String> =
                fields.map(|((name, text), kind)| format!(" {} : {} ", quoted(name), value(text, *kind))).collect();
            let line = format!(" {{{}}} \n", fields.join(","));
            let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
            let expected = parsed.get("text").and_then(|text| text.as_str());
            let found = text_in_pieces(line.as_bytes(), "text", max_bytes);
            prop_assert_eq!(found.as_deref().ok(), expected, "{}", line);
        }
    }

    #[test]
    fn text_is_found_among_other_fields() {
        let line = br#" {"id": 3, "meta": {"text": "no"}, "te\u0078t": "a \u00e9\n\ud83d\udd25", "z": [1]}"#;
        assert_eq!(record_text(line, "text").unwrap(), "a \u{e9}\n\u{1f525}");
        assert_eq!(record_text(br#"{"a.b": ""}"#, "a.b").unwrap(), "");
    }

    #[test]
    fn lines_without_text_are_explained() {
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
            (r#"{"text": "a"#, "is not JSON: EOF while parsing a string"),
            (
                r#"{"id": {"a": ["]}"]}, "n": 1, "o": -1.5 , "p": null}"#,
                r#"has no field "text", only "id", "n", "o", "p""#,
            ),
        ] {
            let error = record_text(line.as_bytes(), "text").unwrap_err();
            assert!(error.starts_with(expected), "{line}: {error}");
            assert!(error.contains("hint: "), "{error}");
        }
        let invalid = record_text(b"{\"text\": \"\xff\"}", "text").unwrap_err();
        assert!(invalid.starts_with("is not JSON"), "{invalid}");
    }
}
