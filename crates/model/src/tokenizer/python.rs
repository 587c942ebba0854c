//! What chat templates have of Python: JSON and numbers as it writes them, and forms of its Jinja that minijinja lacks.

use std::io::{self, Write};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// The template with `{% generation %}`, a tag of transformers that marks an answer and prints nothing, as `{% with %}`, and
/// `'%s' % x` as `'%s' | format(x)`.
pub(super) fn in_minijinja(template: &str) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        text += before;
        let end = match tag.as_bytes().get(1) {
            Some(b'%') => tag.find("%}"),
            Some(b'{') => tag.find("}}"),
            Some(b'#') => tag.find("#}"),
            _ => None,
        };
        let (tag, after) = tag.split_at(end.unwrap_or(1));
        let name = tag.strip_prefix("{%").map(|name| name.trim_matches(['-', '+']).trim());
        text += &match name {
            Some("generation") => tag.replacen("generation", "with", 1),
            Some("endgeneration") => tag.replacen("endgeneration", "endwith", 1),
            _ if tag.starts_with("{#") => tag.to_owned(),
            _ => with_format(tag),
        };
        rest = after;
    }
    text + rest
}

/// The tag with `%` behind texts as the filter `format`.
fn with_format(tag: &str) -> String {
    let mut text = String::with_capacity(tag.len());
    let mut rest = tag;
    while let Some(at) = rest.find(['\'', '"']) {
        let (literal, after) = rest.split_at(at + literal_len(&rest[at..]));
        text += literal;
        rest = after;
        let operand = after.trim_start().strip_prefix('%').map(str::trim_start);
        let Some((operand, after)) = operand.map(|it| it.split_at(operand_len(it))).filter(|it| !it.0.is_empty())
        else {
            continue;
        };
        let arguments = operand.strip_prefix('(').and_then(|it| it.strip_suffix(')')).unwrap_or(operand);
        for part in [" | format(", arguments, ")"] {
            text += part;
        }
        rest = after;
    }
    text + rest
}

/// The length of the literal with which a text begins.
fn literal_len(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if !is_escaped && text.starts_with(c) {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

/// The length of the operand with which a text begins: a literal, or names and numbers with what they have in brackets.
fn operand_len(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(c) = text[at..].chars().next() {
        match c {
            '\'' | '"' => at += literal_len(&text[at..]) - 1,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            _ if depth > 0 || c.is_alphanumeric() || c == '_' || c == '.' => {}
            _ => break,
        }
        at += c.len_utf8();
    }
    at
}

/// A number with a point as Python writes it; `None` for any other value.
pub(super) fn float(value: &Value) -> Option<String> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    let number = f64::try_from(value.clone()).ok().filter(|_| is_float);
    number.map(written)
}

/// As Python writes it: the shortest digits, and two of an exponent at least.
fn written(number: f64) -> String {
    let text = format!("{number:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// The filter `tojson` of transformers, which is Python's `json.dumps`.
pub(super) fn tojson(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let indent: Option<Value> = kwargs.get("indent")?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) if indent.as_str().is_some() => indent.as_str().map(str::to_owned),
        Some(indent) => Some(" ".repeat(usize::try_from(indent)?.min(16))),
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let [between, behind_key] = match separators.as_deref() {
        Some([between, behind_key]) => [between.clone(), behind_key.clone()],
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: `separators` must be two texts")),
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
    };
    let ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorts = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut json = Vec::new();
    let dumps = Dumps { ascii, indent, between, behind_key, depth: 0, is_empty: true };
    let mut serializer = Serializer::with_formatter(&mut json, dumps);
    if sorts {
        let mut value = serde_json::to_value(&value).map_err(failed)?;
        value.sort_all_objects();
        value.serialize(&mut serializer).map_err(failed)?;
    } else {
        value.serialize(&mut serializer).map_err(failed)?;
    }
    Ok(String::from_utf8(json).expect("JSON is UTF-8").into())
}

struct Dumps {
    ascii: bool,
    indent: Option<String>,
    between: String,
    behind_key: String,
    /// The number of lists and objects around what is written.
    depth: usize,
    /// Whether the innermost of them has nothing so far.
    is_empty: bool,
}

impl Dumps {
    fn new_line(&self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        self.indent.as_ref().map_or(Ok(()), |indent| write!(out, "\n{}", indent.repeat(self.depth)))
    }

    fn begin(&mut self, out: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        (self.depth, self.is_empty) = (self.depth + 1, true);
        out.write_all(bracket)
    }

    fn begin_item(&mut self, out: &mut (impl Write + ?Sized), is_first: bool) -> io::Result<()> {
        self.is_empty = false;
        if !is_first {
            out.write_all(self.between.as_bytes())?;
        }
        self.new_line(out)
    }

    fn end(&mut self, out: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.new_line(out)?;
        }
        self.is_empty = false;
        out.write_all(bracket)
    }
}

impl Formatter for Dumps {
    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(written(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ascii {
            return out.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            match c {
                ' '..='~' => write!(out, "{c}")?,
                _ => c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))?,
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(out, first)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.behind_key.as_bytes())
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }
}
