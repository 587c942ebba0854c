//! Glob patterns for paths, as in a shell.

use std::path::Path;

/// Whether a path in a folder matches a pattern: by file name alone, unless the pattern has a `/`. `?` matches one
/// character and `*` any number of them, except `/`; `**` matches any number of any characters.
pub(super) fn fits(pattern: &str, path: &Path) -> bool {
    let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
    match pattern.strip_prefix("./").unwrap_or(pattern) {
        pattern if pattern.contains('/') => matches(pattern, &names.join("/")),
        pattern => names.last().is_some_and(|name| matches(pattern, name)),
    }
}

#[derive(Clone, Copy)]
enum Token {
    Character(char),
    One,
    /// Any number of characters; if true, slashes too.
    Any(bool),
}

/// Follows all possible matches at once, so that no pattern takes long.
fn matches(pattern: &str, text: &str) -> bool {
    let mut tokens = Vec::new();
    let mut characters = pattern.chars().peekable();
    while let Some(character) = characters.next() {
        tokens.push(match character {
            '*' => Token::Any(characters.next_if_eq(&'*').is_some()),
            '?' => Token::One,
            other => Token::Character(other),
        });
    }
    // `used[i]`: whether the first `i` tokens can match the text so far.
    let mut used = vec![false; tokens.len() + 1];
    used[0] = true;
    let skip_any = |used: &mut [bool]| {
        for (at, token) in tokens.iter().enumerate() {
            used[at + 1] |= used[at] && matches!(token, Token::Any(_));
        }
    };
    skip_any(&mut used);
    for character in text.chars() {
        let mut next = vec![false; used.len()];
        for (at, token) in tokens.iter().enumerate().filter(|(at, _)| used[*at]) {
            match token {
                Token::Character(wanted) => next[at + 1] |= *wanted == character,
                Token::One => next[at + 1] |= character != '/',
                Token::Any(slashes) => next[at] |= *slashes || character != '/',
            }
        }
        skip_any(&mut next);
        used = next;
    }
    used[tokens.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_a_shell() {
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
        // Backtracking would take longer than the age of the universe.
        assert!(!matches(&"*a".repeat(500), &"a".repeat(499)));
    }
}
