//! The files that a text on disk is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::DataError;
use super::file::{BUFFER_BYTES, OpenFile};
use super::pattern::any_fits;
use crate::config::{DataConfig, TextFormat};
use tinderbox_model::disk::folder_of;

pub(super) const STANDARD_INPUT: &str = "-";

pub(super) fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

#[derive(Debug)]
pub(super) struct TextSource {
    /// The path in the config, as errors show it.
    pub path: PathBuf,
    /// At least one.
    pub files: Vec<TextFile>,
    /// The files of the folder that are not text, if these are left out.
    pub left_out: Vec<PathBuf>,
    /// Hidden files and folders in it, which are left out, too.
    pub hidden: Vec<PathBuf>,
    /// Whether each file or record is a separate document.
    pub has_documents: bool,
    /// The field of a record that holds its text.
    pub text_field: String,
    /// The longest line that may hold a record.
    pub max_record_bytes: usize,
    /// The text that ends a document within a text file.
    pub separator: Option<String>,
}

#[derive(Debug)]
pub(super) struct TextFile {
    pub path: PathBuf,
    /// Whether each line or row is a record, rather than the text itself.
    pub is_jsonl: bool,
}

impl TextSource {
    /// Finds the file, or every file of the folder and its subfolders, in path order.
    ///
    /// Hidden files and folders are left out. Symbolic links are followed, but no folder or file is read twice:
    /// otherwise one copy could be for training, and another for validation.
    pub(super) fn find(config: &DataConfig) -> Result<Self, DataError> {
        let path = &config.path;
        let metadata = fs::metadata(path).map_err(|source| not_found(path, source))?;
        let (mut files, mut left_out, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        if metadata.is_dir() {
            list(path, &mut BTreeSet::new(), &mut files, &mut hidden)?;
            let DataConfig { include, exclude, skip_bad_files, .. } = config;
            files.retain(|file| {
                let inside = file.strip_prefix(path).unwrap_or(file);
                (include.is_empty() || any_fits(include, inside)) && !any_fits(exclude, inside)
            });
            if *skip_bad_files {
                for file in std::mem::take(&mut files) {
                    let kept = if is_text(&file)? { &mut files } else { &mut left_out };
                    kept.push(file);
                }
            }
        } else if metadata.is_file() {
            files.push(path.clone());
        } else {
            return Err(DataError::NotAFile { path: path.clone() });
        }
        if files.is_empty() {
            return Err(DataError::NoFiles { path: path.clone() });
        }
        let files = files.into_iter();
        let files = files.map(|path| TextFile { is_jsonl: is_jsonl(config.format, &path), path });
        let mut source = Self::new(config, files.collect());
        source.has_documents |= metadata.is_dir();
        (source.left_out, source.hidden) = (left_out, hidden);
        Ok(source)
    }

    /// Leaves out the files of a folder of records that describe them, such as README.md.
    pub(super) fn without_descriptions(mut self) -> Result<Self, DataError> {
        let describes = |file: &mut TextFile| {
            let name = file.path.file_stem().unwrap_or_default().to_ascii_uppercase();
            file.path != self.path && ["README", "LICENSE", "LICENCE", "CITATION"].iter().any(|known| name == *known)
        };
        self.hidden.extend(self.files.extract_if(.., describes).map(|file| file.path));
        if self.files.is_empty() { Err(DataError::NoFiles { path: self.path }) } else { Ok(self) }
    }

    fn new(config: &DataConfig, files: Vec<TextFile>) -> Self {
        Self {
            path: config.path.clone(),
            left_out: Vec::new(),
            has_documents: config.document_separator.is_some() || files.iter().any(|file| file.is_jsonl),
            files,
            hidden: Vec::new(),
            text_field: config.text_field.clone(),
            max_record_bytes: config.max_record_bytes(),
            separator: config.document_separator.clone(),
        }
    }

    /// Finds several texts. No file may be in two of them: one could train on what the other holds out for validation.
    pub(super) fn find_all(configs: &[DataConfig]) -> Result<Vec<Self>, DataError> {
        let sources: Vec<Self> = configs.iter().map(Self::find).collect::<Result<_, _>>()?;
        if sources.len() < 2 {
            return Ok(sources);
        }
        let mut owners: BTreeMap<PathBuf, &Path> = BTreeMap::new();
        for source in &sources {
            for file in &source.files {
                let real = file.path.canonicalize();
                let real = real.map_err(|error| DataError::read(&file.path, error))?;
                if let Some(first) = owners.insert(real, &source.path) {
                    let (file, first, second) = (file.path.clone(), first.to_owned(), source.path.clone());
                    return Err(DataError::InTwoSources { file, first, second });
                }
            }
        }
        Ok(sources)
    }

    /// The text of standard input that was saved as `file`.
    pub(super) fn of_standard_input(config: &DataConfig, file: &Path) -> Self {
        let is_jsonl = config.format == TextFormat::Jsonl;
        Self::new(config, vec![TextFile { path: file.to_owned(), is_jsonl }])
    }

    /// Opens a file of this text, which must be UTF-8 if it holds records.
    pub(super) fn open(&self, file: &TextFile, utf8: bool) -> Result<OpenFile, DataError> {
        let shown = match is_standard_input(&self.path) {
            true => &self.path, // rather than the file that it was saved to
            false => &file.path,
        };
        OpenFile::open(&file.path, shown, utf8 || file.is_jsonl)
    }
}

/// Whether a file is text in UTF-8, packed or not.
fn is_text(path: &Path) -> Result<bool, DataError> {
    let read = || -> Result<bool, DataError> {
        let mut file = OpenFile::open(path, path, true)?;
        let mut text = Vec::new();
        if file.holds_rows() {
            return Ok(true); // of text
        }
        while file.read_text(BUFFER_BYTES, &mut text)? && !text.contains(&0) {
            text.clear();
        }
        Ok(!text.contains(&0))
    };
    match read() {
        Err(
            DataError::NotText { .. } | DataError::NotUtf8 { .. } | DataError::Gzip { .. } | DataError::Parquet { .. },
        ) => Ok(false),
        other => other,
    }
}

/// Whether each line or row of a file is a record.
pub fn is_jsonl(format: TextFormat, path: &Path) -> bool {
    match format {
        TextFormat::Text => false,
        TextFormat::Jsonl => true,
        TextFormat::Auto => {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            let name = name.strip_suffix(".gz").unwrap_or(&name);
            let extension = Path::new(name).extension();
            extension.is_some_and(|extension| ["jsonl", "ndjson", "parquet"].iter().any(|known| extension == *known))
        }
    }
}

/// Adds the files of a folder in name order, and what is hidden in it; `seen` holds the canonical paths of the folders
/// entered and the files added.
fn list(
    folder: &Path,
    seen: &mut BTreeSet<PathBuf>,
    files: &mut Vec<PathBuf>,
    hidden: &mut Vec<PathBuf>,
) -> Result<(), DataError> {
    let fail = |source| DataError::read(folder, source);
    if !seen.insert(folder.canonicalize().map_err(fail)?) {
        return Ok(());
    }
    let entries = fs::read_dir(folder).map_err(fail)?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names = names.collect::<Result<Vec<_>, _>>().map_err(fail)?;
    names.sort();
    for name in names {
        let path = folder.join(&name);
        if name.as_encoded_bytes().starts_with(b".") {
            hidden.push(path);
            continue;
        }
        let metadata = fs::metadata(&path).map_err(|source| not_found(&path, source))?;
        if metadata.is_dir() {
            list(&path, seen, files, hidden)?;
        } else if metadata.is_file() {
            let real = path.canonicalize().map_err(|source| DataError::read(&path, source))?;
            if seen.insert(real) {
                files.push(path);
            }
        }
    }
    Ok(())
}

fn not_found(path: &Path, source: io::Error) -> DataError {
    if source.kind() != io::ErrorKind::NotFound {
        return DataError::read(path, source);
    }
    let path = path.to_owned();
    match fs::read_link(&path) {
        Ok(target) => DataError::DanglingLink { path, target },
        Err(_) => DataError::Missing { nearest: nearest(&path), path },
    }
}

/// The entry in the same folder whose name differs from that of a missing path by a typing error; the folder's name may
/// have one, too.
fn nearest(path: &Path) -> Option<PathBuf> {
    /// One changed, missing, added or swapped character for each of so many. A measure that rewards a common beginning
    /// would find an unrelated folder for many a short name.
    const CHARACTERS_PER_ERROR: usize = 4;
    let folder = folder_of(path);
    let wanted = path.file_name()?.to_string_lossy();
    let Ok(entries) = fs::read_dir(folder) else {
        return Some(nearest(folder)?.join(path.file_name()?)).filter(|path| path.exists());
    };
    let n_errors = |name: &OsStr| strsim::damerau_levenshtein(&wanted, &name.to_string_lossy());
    let names = entries.flatten().map(|entry| entry.file_name());
    let (n_errors, name) = names
        .map(|name| {
            let stem = Path::new(&name).file_stem().unwrap_or_default(); // the extension may be what is missing
            let n_errors = n_errors(&name).min(n_errors(stem));
            (n_errors, name)
        })
        .min()?;
    (n_errors <= wanted.chars().count() / CHARACTERS_PER_ERROR).then(|| path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::folder;
    use super::*;

    fn find(path: &Path) -> Result<TextSource, DataError> {
        TextSource::find(&DataConfig { path: path.to_owned(), ..DataConfig::default() })
    }

    fn empty(names: &[&'static str]) -> tempfile::TempDir {
        folder(names.iter().map(|name| (*name, &b""[..])))
    }

    #[test]
    fn folder_files_are_ordered_and_typed_by_name() {
        let folder = empty(&["b.txt", "a/z.JSONL", "a/b/c.ndjson.gz", ".hidden", ".git/x", "jsonl", "d.jsonl.txt"]);
        let source = find(folder.path()).unwrap();
        let file = |file: &TextFile| (file.path.strip_prefix(folder.path()).unwrap().to_owned(), file.is_jsonl);
        let (files, are_jsonl): (Vec<_>, Vec<_>) = source.files.iter().map(file).unzip();
        assert_eq!(files, ["a/b/c.ndjson.gz", "a/z.JSONL", "b.txt", "d.jsonl.txt", "jsonl"].map(PathBuf::from));
        assert_eq!(are_jsonl, [true, true, false, false, false]);
        assert!(source.has_documents);
        assert!(!find(&folder.path().join("b.txt")).unwrap().has_documents);
        assert!(find(&folder.path().join("a/z.JSONL")).unwrap().has_documents);
        assert!(is_jsonl(TextFormat::Jsonl, Path::new("a.txt")));
        assert!(!is_jsonl(TextFormat::Text, Path::new("a.jsonl")));
        assert!(!is_jsonl(TextFormat::Auto, Path::new("a.jsonl.gz.gz")));
    }

    #[test]
    fn missing_text_error_names_nearest_file() {
        let folder = empty(&[".hidden", "sub/stories.txt", "empty/.hidden", "store/.hidden"]);
        assert!(matches!(find(&folder.path().join("empty")), Err(DataError::NoFiles { .. })));
        let sub = folder.path().join("sub");
        let stories = Some(sub.join("stories.txt"));
        for (path, expected) in [
            ("sub/storys.txt", &stories),
            ("sub/stories", &stories),
            ("subs/stories.txt", &stories),
            ("sub/other", &None),
            ("subs/other", &None),
            ("stories.txt", &None), // and not the folder `store`
        ] {
            let error = find(&folder.path().join(path)).unwrap_err();
            assert!(matches!(&error, DataError::Missing { nearest, .. } if nearest == expected), "{error}");
        }
    }

    #[test]
    fn bad_files_are_left_out_if_asked() {
        let files: [(&str, &[u8]); 5] = [
            ("a.txt", "caf\u{e9}".as_bytes()),
            ("b.dat", b"caf\xe9 and more"),
            ("c.png", b"\x89PNG"),
            ("d.bin", b"a\0b"),
            ("e.gz", b"not packed"),
        ];
        let folder = folder(files);
        let config = DataConfig { path: folder.path().to_owned(), skip_bad_files: true, ..DataConfig::default() };
        let source = TextSource::find(&config).unwrap();
        assert_eq!((source.files.len(), source.left_out.len()), (1, 4));
        assert!(source.left_out[0].ends_with("b.dat"));
        std::fs::remove_file(folder.path().join("a.txt")).unwrap();
        assert!(matches!(TextSource::find(&config), Err(DataError::NoFiles { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_but_not_in_circles() {
        use std::os::unix::fs::symlink;
        let folder = empty(&["a/x.txt"]);
        symlink("..", folder.path().join("a/loop")).unwrap();
        symlink("a/x.txt", folder.path().join("y.txt")).unwrap();
        let files = find(folder.path()).unwrap().files;
        assert_eq!(files.len(), 1, "a file counts once");
        assert_eq!(files[0].path, folder.path().join("a/x.txt"));
        assert!(matches!(find(Path::new("/dev/null")), Err(DataError::NotAFile { .. })));
    }
}
