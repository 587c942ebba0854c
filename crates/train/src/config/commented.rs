//! The text of a config with its comments: written at one width, and read line by line.

use std::ops::Range;

use serde::Serialize;

/// The width at which comments are wrapped, in characters.
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
    let mut wrapped = String::new();
    for line in text.lines() {
        let is_prose = line.starts_with("# ") && !line.starts_with("#  ");
        let mut width = 0;
        for word in line.split(' ') {
            let n = word.chars().count();
            if is_prose && width > 1 && width + 1 + n > WIDTH {
                wrapped.push_str("\n#");
                width = 1;
            }
            if width > 0 {
                wrapped.push(' ');
            }
            wrapped.push_str(word);
            width += n + usize::from(width > 0);
        }
        wrapped.push('\n');
    }
    wrapped
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
