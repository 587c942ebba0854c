//! Glob patterns for the paths of files in a folder.
//!
//! Not by the crate `globset`, whose `?` matches one byte: `a?.md` would not match `aé.md`.

use std::path::Path;

/// Whether the path of a file in a folder matches one of the patterns. A pattern without `/` applies to the file name.
/// `?` matches one character and `*` any number of them, except `/`; `**` matches any number of any characters.
pub(super) fn any_fits(patterns: &[String], path: &Path) -> bool {
    patterns.iter().any(|pattern| fits(pattern, path))
}

fn fits(pattern: &str, path: &Path) -> bool {
    let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
    match pattern.strip_prefix("./").unwrap_or(pattern) {
        pattern if pattern.contains('/') => matches(pattern, &names.join("/")),
        pattern => names.last().is_some_and(|name| matches(pattern, name)),
    }
}

/// Without backtracking, so that no pattern takes long.
fn matches(pattern: &str, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    // `matched[n]`: whether the pattern so far matches the first `n` characters.
    let mut matched = vec![false; text.len() + 1];
    matched[0] = true;
    let mut pattern = pattern.chars().peekable();
    while let Some(part) = pattern.next() {
        let takes_slashes = part == '*' && pattern.next_if_eq(&'*').is_some();
        let mut next = vec![part == '*' && matched[0]];
        for (n, character) in text.iter().enumerate() {
            next.push(match part {
                '*' => matched[n + 1] || next[n] && (takes_slashes || *character != '/'),
                '?' => matched[n] && *character != '/',
                part => matched[n] && part == *character,
            });
        }
        matched = next;
    }
    matched[text.len()]
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
