//! The parts of a `tokenizer.json` that may take long or make much of little: patterns, replacements and tables.
//!
//! They are tried before the library reads the file, in a process that can be stopped.

use std::collections::BTreeSet;
use std::iter::repeat_n;

use fancy_regex::RegexBuilder;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::{Decoder, DecoderWrapper, NormalizedString, Normalizer, NormalizerWrapper};

use super::library::caught;
use super::safe_splits::KNOWN_PATTERNS;

/// The bytes of a compiled pattern: several times those of the known patterns.
const MAX_COMPILED: usize = 1 << 20;

/// The characters of a text that a pattern is tried on: a pattern that looks ahead from each to the end takes minutes.
const LONG: usize = 1 << 14;

/// The most characters of its own that a pattern is tried on.
const MAX_OWN: usize = 16;

/// Characters of every class that patterns distinguish.
const CLASSES: &str = "aA\u{e9}\u{301}\u{4e2d}0 \n.\u{1f525}";

/// A normalizer or decoder may make this many times its text of it, and [`PREFIX`] bytes.
const MAX_GROWTH: usize = 64;
const PREFIX: usize = 4096;

/// A part to try.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Part {
    /// A regular expression.
    Pattern(String),
    Normalizer(Value),
    Decoder(Value),
}

impl Part {
    /// The parts of a file to try: none for the files of most models.
    pub(super) fn all_of(normalizer: Value, pre_tokenizer: Value, decoder: Value) -> Vec<Self> {
        let mut patterns = BTreeSet::new();
        for value in [&normalizer, &pre_tokenizer, &decoder] {
            visit(value, &mut |object| {
                let pattern = object["pattern"]["Regex"].as_str();
                patterns.extend(pattern.filter(|pattern| !KNOWN_PATTERNS.contains(pattern)).map(str::to_owned));
            });
        }
        let mut parts: Vec<Self> = patterns.into_iter().map(Self::Pattern).collect();
        parts.extend(Some(normalizer).filter(grows).map(Self::Normalizer));
        parts.extend(Some(decoder).filter(grows).map(Self::Decoder));
        parts
    }

    /// Tries it in this process, without limits: [`Part::check`] has them.
    pub(super) fn try_out(self) -> Result<(), String> {
        let tried = caught(|| match self {
            Self::Pattern(pattern) => try_pattern(&pattern),
            // The library says what is malformed.
            Self::Normalizer(value) => {
                serde_json::from_value(value.clone()).map_or(Ok(()), |part: NormalizerWrapper| {
                    try_growth(&value, |text| {
                        let mut normalized = NormalizedString::from(text);
                        part.normalize(&mut normalized).map(|()| normalized.get().len())
                    })
                })
            }
            Self::Decoder(value) => serde_json::from_value(value.clone()).map_or(Ok(()), |part: DecoderWrapper| {
                try_growth(&value, |text| part.decode(vec![text.to_owned()]).map(|text| text.len()))
            }),
        });
        tried.flatten()
    }
}

/// Calls `each` with every object in a value.
fn visit(value: &Value, each: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(object) => {
            each(value);
            object.values().for_each(|value| visit(value, each));
        }
        Value::Array(values) => values.iter().for_each(|value| visit(value, each)),
        _ => {}
    }
}

/// Whether a normalizer or decoder can make more of a text than a few bytes for each character.
fn grows(value: &Value) -> bool {
    let mut grows = false;
    let length = |value: &Value| value.as_str().map_or(0, |text| text.chars().count());
    visit(value, &mut |object| {
        grows |= object["type"] == "Precompiled"
            || length(&object["content"]) > length(&object["pattern"]["String"])
            || length(&object["prepend"]) > 16;
    });
    grows
}

/// Runs of each character that may matter to a pattern, and all of them in turn.
fn try_pattern(pattern: &str) -> Result<(), String> {
    let regex = RegexBuilder::new(pattern).delegate_size_limit(MAX_COMPILED).build().map_err(|e| e.to_string())?;
    let own: BTreeSet<char> = pattern.chars().filter(|c| c.is_alphanumeric()).take(MAX_OWN).collect();
    let all: Vec<char> = own.into_iter().chain(CLASSES.chars()).collect();
    let runs = all.iter().map(|character| repeat_n(*character, LONG).collect::<String>());
    for text in runs.chain([all.iter().cycle().take(LONG).collect()]) {
        for found in regex.find_iter(&text) {
            found.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Texts of usual characters, and of those that the part replaces.
fn try_growth(part: &Value, len_of: impl Fn(&str) -> tokenizers::Result<usize>) -> Result<(), String> {
    let mut texts = vec![CLASSES.repeat(100), "The cat sat.".repeat(100)];
    visit(part, &mut |object| {
        let replaced = object["pattern"]["String"].as_str();
        texts.extend(replaced.filter(|replaced| replaced.len() <= LONG).map(|replaced| replaced.repeat(100)));
    });
    for text in texts {
        let n = len_of(&text).map_err(|error| error.to_string())?;
        if n > text.len() * MAX_GROWTH + PREFIX {
            return Err(format!("it makes {n} bytes of {}", text.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn split(pattern: &str) -> Value {
        json!({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}}]})
    }

    #[test]
    fn patterns_that_are_large_or_backtrack_are_refused() {
        for pattern in ["a{0,30000}b", "(?:a{0,1000}){0,1000}", "(?:a+(?!b))+c", "("] {
            let parts = Part::all_of(Value::Null, split(pattern), Value::Null);
            let [part] = &parts[..] else { panic!("{parts:?}") };
            let error = part.clone().check().expect_err(pattern);
            assert!(error.starts_with(&format!("its pattern `{pattern}` is refused: ")), "{error}");
        }
    }

    #[test]
    fn patterns_of_models_are_allowed() {
        let deepseek =
            r"[!-/:-~]?[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        for pattern in KNOWN_PATTERNS.into_iter().chain([deepseek, r"\p{N}{1,3}", " {2,}", r"\d+|[^\d]+"]) {
            assert_eq!(Part::Pattern(pattern.to_owned()).try_out(), Ok(()), "{pattern}");
        }
        assert_eq!(Part::all_of(Value::Null, split(KNOWN_PATTERNS[0]), Value::Null), []);
    }

    #[test]
    fn growing_replacements_are_refused() {
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let doubled: Vec<Value> = vec![replace("a", "aa"); 12];
        for (normalizer, is_refused) in [
            (json!({"type": "Sequence", "normalizers": doubled}), true),
            (replace("q", &"x".repeat(10_000)), true),
            (json!({"type": "Prepend", "prepend": "x".repeat(1 << 20)}), true),
            (replace("``", "\""), false),
            (replace("\u{2026}", "..."), false),
        ] {
            let parts = Part::all_of(normalizer.clone(), Value::Null, Value::Null);
            let refused = parts.into_iter().try_for_each(Part::check);
            assert_eq!(refused.is_err(), is_refused, "{normalizer}: {refused:?}");
        }
    }
}
