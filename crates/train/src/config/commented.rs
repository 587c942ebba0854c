//! The text of a config with its comments: written at one width, and read line by line.

use std::ops::Range;

use serde::Serialize;
use tinderbox_model::format;
use toml::{Table, Value};

use super::Config;

/// The width at which comments are wrapped, in columns.
const WIDTH: usize = 100;

/// A TOML value on one line: JSON strings are TOML strings, except for one character.
pub(crate) fn literal(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("a text in UTF-8");
    json.replace('\u{7f}', "\\u007F")
}

/// External text, without line breaks, which would end a comment.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// A text as a config comment, wrapped, ending in a line break.
pub(crate) fn comment(text: &str) -> String {
    wrapped(&format!("# {}", one_line(text)))
}

/// The text with its comments wrapped at word boundaries.
pub(crate) fn wrapped(text: &str) -> String {
    let wrapped = |line: &str| match line.strip_prefix("# ") {
        Some(prose) if !prose.starts_with(' ') => {
            let lines = format::wrapped(prose, WIDTH - "# ".len());
            let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
            format!("# {}\n", lines.join("\n# "))
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(wrapped).collect()
}

/// The lines of a section, without its header.
pub(crate) fn section_lines(lines: &[impl AsRef<str>], section: &str) -> Option<Range<usize>> {
    let header = format!("[{section}]");
    let start = lines.iter().position(|line| line.as_ref().trim() == header)? + 1;
    let length = lines[start..].iter().take_while(|line| !line.as_ref().starts_with('[')).count();
    Some(start..start + length)
}

/// Whether a line sets a key, behind a mark such as `# `.
pub(crate) fn sets(line: &str, mark: &str, key: &str) -> bool {
    let rest = line.trim_start().strip_prefix(mark).and_then(|rest| rest.strip_prefix(key));
    rest.is_some_and(|rest| rest.trim_start().starts_with('='))
}

/// The first of the comment lines right above a line, or the line itself.
pub(crate) fn comment_start(lines: &[impl AsRef<str>], at: usize) -> usize {
    at - lines[..at].iter().rev().take_while(|line| line.as_ref().starts_with('#')).count()
}

/// A value to write, and the reason for it, if there is one.
pub(crate) struct Change {
    pub path: String,
    pub value: Value,
    pub why: String,
}

/// The values of `config` that overrides have given.
pub(crate) fn given(overrides: &[String], config: &Config, why: &str) -> impl Iterator<Item = Change> {
    let table = Table::try_from(config).expect("a config can be written as TOML");
    let changes = overrides.iter().filter_map(move |text| {
        let path = text.split_once('=')?.0.trim();
        let (section, key) = path.split_once('.')?;
        let value = table.get(section)?.get(key)?.clone();
        Some(Change { path: path.to_owned(), value, why: why.to_owned() })
    });
    changes.collect::<Vec<_>>().into_iter()
}

/// The text of a config with the values in it that overrides have given, where `config` is that of both.
pub fn with_overrides(text: &str, overrides: &[String], config: &Config) -> String {
    edited(text, &given(overrides, config, "").collect::<Vec<_>>(), false)
}

/// The text with values changed line by line: a missing key is inserted after its default in a comment, or at the end
/// of its section. If the text `is_generated`, the comment above a value is its reason, and goes with it.
pub(crate) fn edited(text: &str, changes: &[Change], is_generated: bool) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for Change { path, value, why } in changes {
        let (section, key) = path.split_once('.').expect("keys are written section.key");
        let range = section_lines(&lines, section).unwrap_or_else(|| {
            lines.extend([String::new(), format!("[{section}]")]);
            lines.len()..lines.len()
        });
        let (start, own) = (range.start, &lines[range]);
        let find = |mark: &str| own.iter().position(|line| sets(line, mark, key)).map(|at| start + at);
        let filled = own.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |at| at + 1);
        let range = match (find(""), find("# ")) {
            (Some(at), _) if is_generated && !lines[at].ends_with(&format!("= {value}")) => {
                comment_start(&lines, at)..at + 1
            }
            (Some(at), _) => at..at + 1,
            (None, Some(at)) => at + 1..at + 1,
            (None, None) => start + filled..start + filled,
        };
        let why = if why.is_empty() { String::new() } else { comment(why) };
        let new = why.lines().map(str::to_owned).chain([format!("{key} = {value}")]);
        lines.splice(range, new.collect::<Vec<_>>());
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autoconfig::TITLE;

    #[test]
    fn edited_config_keeps_comments_and_gains_reasons() {
        let change = |path: &str, value: Value| Change { path: path.to_owned(), value, why: "Why.".to_owned() };
        let text = "[data]\npath = \"a.txt\"\n\n[model]\n# The width.\nd_model = 64 # wide\n# mlp = \"gelu\"\n\n[train]\nseed = 1\n";
        let changes = [
            change("model.d_model", 96.into()),
            change("model.mlp", "swiglu".into()),
            change("model.d_ff", 128.into()),
            change("optimizer.kind", "muon".into()),
        ];
        assert_eq!(
            edited(text, &changes, false),
            "[data]\npath = \"a.txt\"\n\n[model]\n# The width.\n# Why.\nd_model = 96\n# mlp = \"gelu\"\n# Why.\n\
             mlp = \"swiglu\"\n# Why.\nd_ff = 128\n\n[train]\nseed = 1\n\n[optimizer]\n# Why.\nkind = \"muon\"\n"
        );
        let generated = format!("{TITLE}x\n\n[model]\n# 1 parameter,\n# so few\nd_model = 64\n# Good.\nbias = true\n");
        let changes = [change("model.d_model", 96.into()), change("model.bias", true.into())];
        let rest = "x\n\n[model]\n# Why.\nd_model = 96\n# Good.\n# Why.\nbias = true\n";
        assert_eq!(edited(&generated, &changes, true).strip_prefix(TITLE), Some(rest));
    }
}
