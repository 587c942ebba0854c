//! A text on disk: which files it is made of, and how each of them is read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{DataError, standard_input};
use crate::config::{SourceConfig, TextFormat};

/// The files of a text in their order.
#[derive(Debug)]
pub(super) struct Source {
    /// What was named, as errors call it.
    pub path: PathBuf,
    /// At least one.
    pub files: Vec<TextFile>,
    /// Whether it is many texts, a file or a record each, rather than one.
    pub has_documents: bool,
    /// The field of a record that holds its text.
    pub text_field: String,
}

/// A file of a text.
#[derive(Debug)]
pub(super) struct TextFile {
    /// Where it is.
    pub path: PathBuf,
    /// Whether each line is a record, rather than the text itself.
    pub is_jsonl: bool,
}

impl Source {
    /// Finds the text: the file itself, or every file of the folder and its subfolders, by path.
    ///
    /// Hidden files and folders are left out. Links are followed, but no folder is entered twice, and no file
    /// taken twice: half of one could be for training, and the same half of the other for validation.
    ///
    /// # Errors
    /// If there is nothing there, nothing in there, or something that cannot be listed.
    pub(super) fn find(config: &SourceConfig) -> Result<Self, DataError> {
        let path = &config.path;
        let metadata = fs::metadata(path).map_err(|source| not_found(path, source))?;
        let mut files = Vec::new();
        if metadata.is_dir() {
            list(path, &mut BTreeSet::new(), &mut files)?;
        } else if metadata.is_file() {
            files.push(path.clone());
        } else {
            return Err(DataError::NotAFile { path: path.clone() });
        }
        if files.is_empty() {
            return Err(DataError::NoFiles { path: path.clone() });
        }
        let format = config.format.unwrap_or_default();
        let files: Vec<TextFile> = files
            .into_iter()
            .map(|path| TextFile { is_jsonl: is_jsonl(format, &path), path })
            .collect();
        let default_field = || "text".to_owned();
        Ok(Self {
            path: path.clone(),
            has_documents: metadata.is_dir() || files.iter().any(|file| file.is_jsonl),
            files,
            text_field: config.text_field.clone().unwrap_or_else(default_field),
        })
    }

    /// The text of standard input, which was kept in a file.
    pub(super) fn of_standard_input(config: &SourceConfig, kept: &Path) -> Self {
        let is_jsonl = config.format == Some(TextFormat::Jsonl);
        Self {
            path: config.path.clone(),
            files: vec![TextFile { path: kept.to_owned(), is_jsonl }],
            has_documents: is_jsonl,
            text_field: config.text_field.clone().unwrap_or_default(),
        }
    }

    /// What the files take on the disk together; one that cannot be looked at counts as nothing.
    pub(super) fn bytes_on_disk(&self) -> u64 {
        let bytes = |file: &TextFile| fs::metadata(&file.path).map_or(0, |metadata| metadata.len());
        self.files.iter().map(bytes).sum()
    }

    /// How errors call a file of this text.
    pub(super) fn shown<'a>(&'a self, file: &'a TextFile) -> &'a Path {
        match standard_input::is_meant(&self.path) {
            true => &self.path, // not the file that it is kept in, of which nobody knows
            false => &file.path,
        }
    }
}

/// Makes sure that no file is in two texts: what one keeps for validation the other would train on.
///
/// # Errors
/// If there is such a file.
pub(super) fn check_apart(sources: &[Source]) -> Result<(), DataError> {
    if sources.len() < 2 {
        return Ok(());
    }
    let mut owners: BTreeMap<PathBuf, &Path> = BTreeMap::new();
    for source in sources {
        for file in &source.files {
            let whole = file.path.canonicalize();
            let whole = whole.map_err(|error| read_error(&file.path, error))?;
            if let Some(first) = owners.insert(whole, &source.path) {
                return Err(DataError::InTwoSources {
                    file: file.path.clone(),
                    first: first.to_owned(),
                    second: source.path.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Whether each line of a file is a record.
pub(crate) fn is_jsonl(format: TextFormat, path: &Path) -> bool {
    let by_name = || {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_ascii_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        Path::new(name)
            .extension()
            .is_some_and(|extension| extension == "jsonl" || extension == "ndjson")
    };
    match format {
        TextFormat::Auto => by_name(),
        TextFormat::Text => false,
        TextFormat::Jsonl => true,
    }
}

/// Adds the files of a folder, in the order of their names; `seen` holds the folders that were
/// entered and the files that were added, without links in their paths.
fn list(
    folder: &Path,
    seen: &mut BTreeSet<PathBuf>,
    files: &mut Vec<PathBuf>,
) -> Result<(), DataError> {
    let fail = |source| read_error(folder, source);
    if !seen.insert(folder.canonicalize().map_err(fail)?) {
        return Ok(());
    }
    let entries = fs::read_dir(folder).map_err(fail)?;
    let mut names = entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(fail)?;
    names.sort();
    for name in names.into_iter().filter(|name| !name.as_encoded_bytes().starts_with(b".")) {
        let path = folder.join(name);
        let metadata = fs::metadata(&path).map_err(|source| not_found(&path, source))?;
        if metadata.is_dir() {
            list(&path, seen, files)?;
        } else if metadata.is_file() {
            let whole = path.canonicalize();
            if seen.insert(whole.map_err(|source| read_error(&path, source))?) {
                files.push(path);
            }
        }
    }
    Ok(())
}

/// What is wrong with a path that cannot be looked at.
fn not_found(path: &Path, source: std::io::Error) -> DataError {
    if source.kind() != std::io::ErrorKind::NotFound {
        return read_error(path, source);
    }
    let path = path.to_owned();
    match fs::read_link(&path) {
        Ok(target) => DataError::DanglingLink { path, target },
        Err(_) => DataError::Missing { nearest: nearest(&path), path },
    }
}

/// The entry of the same folder whose name is most like that of a path that is not there.
fn nearest(path: &Path) -> Option<PathBuf> {
    const LEAST_LIKENESS: f64 = 0.75;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let wanted = path.file_name()?.to_string_lossy();
    let names = fs::read_dir(folder).ok()?.flatten();
    let (likeness, name) = names
        .map(|entry| entry.file_name())
        .map(|name| (strsim::jaro_winkler(&wanted, &name.to_string_lossy()), name))
        .max_by(|(a, a_name), (b, b_name)| a.total_cmp(b).then_with(|| b_name.cmp(a_name)))?;
    (likeness >= LEAST_LIKENESS).then(|| path.with_file_name(name))
}

pub(super) fn read_error(path: &Path, source: std::io::Error) -> DataError {
    DataError::Read { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(path: &Path) -> Result<Source, DataError> {
        Source::find(&SourceConfig { path: path.to_owned(), ..SourceConfig::default() })
    }

    /// A folder with these files, each of which holds its own name.
    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        folder
    }

    #[test]
    fn the_files_of_a_folder_are_ordered_and_known_by_name() {
        let folder = folder(&[
            "b.txt",
            "a/z.JSONL",
            "a/b/c.ndjson.gz",
            ".hidden",
            ".git/x",
            "jsonl",
            "d.jsonl.txt",
        ]);
        let source = find(folder.path()).unwrap();
        let files = source.files.iter().map(|file| {
            let path = file.path.strip_prefix(folder.path()).unwrap();
            (path.to_str().unwrap(), file.is_jsonl)
        });
        let expected = [
            ("a/b/c.ndjson.gz", true),
            ("a/z.JSONL", true),
            ("b.txt", false),
            ("d.jsonl.txt", false),
            ("jsonl", false),
        ];
        assert_eq!(files.collect::<Vec<_>>(), expected);
        assert!(source.has_documents);
        assert!(!find(&folder.path().join("b.txt")).unwrap().has_documents);
        assert!(find(&folder.path().join("a/z.JSONL")).unwrap().has_documents);
    }

    #[test]
    fn a_format_that_is_given_stands_above_the_name() {
        for (name, format, expected) in [
            ("a.txt", TextFormat::Jsonl, true),
            ("a.jsonl", TextFormat::Text, false),
            ("a.jsonl", TextFormat::Auto, true),
            ("a.jsonl.gz.gz", TextFormat::Auto, false),
        ] {
            assert_eq!(is_jsonl(format, Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn what_is_not_there_is_an_error_that_names_what_is_like_it() {
        let folder = folder(&[".hidden", "sub/stories.txt"]);
        let sub = folder.path().join("sub");
        let empty = folder.path().join("empty");
        fs::create_dir(&empty).unwrap();
        assert!(matches!(find(&empty), Err(DataError::NoFiles { .. })));
        let error = find(&sub.join("storys.txt")).unwrap_err();
        assert!(
            error.to_string().contains("did you mean `") && error.to_string().contains("stories"),
            "{error}"
        );
        let error = find(&sub.join("other")).unwrap_err().to_string();
        assert!(error.contains("hint: ") && !error.contains("did you mean"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_but_not_in_circles() {
        use std::os::unix::fs::symlink;
        let folder = folder(&["a/x.txt"]);
        symlink("..", folder.path().join("a/loop")).unwrap();
        symlink("a/x.txt", folder.path().join("y.txt")).unwrap();
        let files = find(folder.path()).unwrap().files;
        assert_eq!(files.len(), 1, "a file counts once");
        assert_eq!(files[0].path, folder.path().join("a/x.txt"));
        assert!(matches!(find(Path::new("/dev/null")), Err(DataError::NotAFile { .. })));
        symlink("gone.txt", folder.path().join("z.txt")).unwrap();
        let error = find(folder.path()).unwrap_err().to_string();
        assert!(error.contains("z.txt` is a link to `gone.txt`"), "{error}");
    }

    #[test]
    fn a_file_in_two_texts_is_refused() {
        let folder = folder(&["sub/a.txt", "sub/b.txt", "c.txt"]);
        let source = |name: &str| find(&folder.path().join(name)).unwrap();
        check_apart(&[source("sub/a.txt"), source("sub/b.txt"), source("c.txt")]).unwrap();
        let error = check_apart(&[source("c.txt"), source("sub"), source("sub/b.txt")]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("b.txt`") && error.contains("sub`"), "{error}");
    }
}
