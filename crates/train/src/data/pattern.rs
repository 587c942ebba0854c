//! Glob patterns for the paths of files in a folder.
//!
//! Not by the crate `globset`, whose `?` matches one byte: `a?.md` would not match `aé.md`.

use std::path::Path;

/// Patterns of paths. A pattern without `/` applies to the file name. `?` matches one character and `*` any number of
/// them, except `/`; `**` matches any number of any characters.
pub(super) struct Patterns<'a>(pub(super) &'a [String]);

impl Patterns<'_> {
    /// Whether the path of a file in the folder matches one of the patterns.
    pub(super) fn fit(&self, path: &Path) -> bool {
        self.0.iter().any(|pattern| fits(pattern, path))
    }
}

fn fits(pattern: &str, path: &Path) -> bool {
    let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
    match pattern.strip_prefix("./").unwrap_or(pattern) {
        pattern if pattern.contains('/') => matches(pattern, &names.join("/")),
        pattern => names.last().is_some_and(|name| matches(pattern, name)),
    }
}

#[derive(Clone, Copy)]
enum PatternPart {
    Character(char),
    One,
    /// Any number of characters; if true, slashes too.
    Any(bool),
}

/// Follows all possible matches at once, so that no pattern takes long.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = Vec::new();
    let mut characters = pattern.chars().peekable();
    while let Some(character) = characters.next() {
        parts.push(match character {
            '*' => PatternPart::Any(characters.next_if_eq(&'*').is_some()),
            '?' => PatternPart::One,
            other => PatternPart::Character(other),
        });
    }
    // `used[i]`: whether the first `i` parts can match the text so far.
    let mut used = vec![false; parts.len() + 1];
    used[0] = true;
    let skip_any = |used: &mut [bool]| {
        for (at, part) in parts.iter().enumerate() {
            used[at + 1] |= used[at] && matches!(part, PatternPart::Any(_));
        }
    };
    skip_any(&mut used);
    for character in text.chars() {
        let mut next = vec![false; used.len()];
        for (at, part) in parts.iter().enumerate().filter(|(at, _)| used[*at]) {
            match part {
                PatternPart::Character(wanted) => next[at + 1] |= *wanted == character,
                PatternPart::One => next[at + 1] |= character != '/',
                PatternPart::Any(slashes) => next[at] |= *slashes || character != '/',
            }
        }
        skip_any(&mut next);
        used = next;
    }
    used[parts.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_and_paths() {
        for (pattern, fitting, others) in [
            ("*.txt", &["a.txt", "b/c.txt", ".txt"][..], &["a.txt.gz", "a.md", "txt"][..]),
            ("a?.md", &["ab.md", "x/a\u{e9}.md"], &["a.md", "abc.md"]),
            ("notes/*", &["notes/a", "notes/b.txt"], &["notes/a/b", "x/notes/a", "notes"]),
            ("notes/**", &["notes/a", "notes/a/b"], &["note/a"]),
            ("**/old/*.txt", &["a/old/x.txt", "a/b/old/x.txt"], &["old.txt", "a/old/b/x.txt"]),
            ("./a/b", &["a/b"], &["b"]),
            ("", &[], &["a"]),
            ("**", &["a", "a/b"], &[]),
        ] {
            for path in fitting {
                assert!(fits(pattern, Path::new(path)), "{pattern} {path}");
            }
            for path in others {
                assert!(!fits(pattern, Path::new(path)), "{pattern} {path}");
            }
        }
        // Backtracking would never end.
        assert!(!matches(&"*a".repeat(500), &"a".repeat(499)));
    }
}
