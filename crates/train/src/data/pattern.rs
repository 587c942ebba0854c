//! Glob patterns for the paths of files in a folder.

use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};

use super::DataError;

/// Patterns of paths. A pattern without `/` applies to the file name. `?` matches one character and `*` any number of
/// them, except `/`; `**` matches any number of folders. All other characters stand for themselves.
pub(super) struct Patterns(Vec<(GlobMatcher, bool)>);

impl Patterns {
    pub(super) fn new(patterns: &[String]) -> Result<Self, DataError> {
        let matcher = |pattern: &String| {
            let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
            let plain = pattern.replace('[', "\u{0}").replace(']', "[]]").replace('\u{0}', "[[]");
            let plain = plain.replace('{', "[{]").replace('}', "[}]");
            // As in earlier versions `**/` stands for at least one folder.
            let glob = GlobBuilder::new(&plain.replace("**/", "*/**/"))
                .literal_separator(true)
                .backslash_escape(false)
                .build()
                .map_err(|error| DataError::Pattern { pattern: pattern.to_owned(), reason: error.to_string() })?;
            Ok((glob.compile_matcher(), pattern.contains('/')))
        };
        Ok(Self(patterns.iter().map(matcher).collect::<Result<_, _>>()?))
    }

    /// Whether the path of a file in the folder matches one of the patterns.
    pub(super) fn fit(&self, path: &Path) -> bool {
        let name = Path::new(path.file_name().unwrap_or_default());
        self.0.iter().any(|(matcher, is_path)| matcher.is_match(if *is_path { path } else { name }))
    }
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
            ("**/old/*.txt", &["a/old/x.txt", "a/b/old/x.txt"], &["old.txt", "old/x.txt", "a/old/b/x.txt"]),
            ("./a/b", &["a/b"], &["b"]),
            ("**", &["a", "a/b"], &[]),
            ("[a]{b}\\!.txt", &["[a]{b}\\!.txt"], &["a"]),
        ] {
            let patterns = Patterns::new(&[pattern.to_owned()]).unwrap();
            for path in fitting {
                assert!(patterns.fit(Path::new(path)), "{pattern} {path}");
            }
            for path in others {
                assert!(!patterns.fit(Path::new(path)), "{pattern} {path}");
            }
        }
    }
}
