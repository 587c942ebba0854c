//! A text on disk: the files it is made of, their bytes (unpacked, without a byte order mark), and standard
//! input, which is saved to a file because a text is read more than once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Cursor, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::DataError;
use super::cache::{Cache, Temporary};
use super::reader::{OnProgress, Purpose, Reading, record_text, report};
use crate::config::{SourceConfig, TextFormat};

/// The path that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// The files of a text in their order.
#[derive(Debug)]
pub(super) struct Source {
    /// The path in the config, as errors show it.
    pub path: PathBuf,
    /// At least one.
    pub files: Vec<TextFile>,
    /// Whether each file or record is a document of its own.
    pub has_documents: bool,
    /// The field of a record that holds its text.
    pub text_field: String,
}

#[derive(Debug)]
pub(super) struct TextFile {
    pub path: PathBuf,
    /// Whether each line is a record, rather than the text itself.
    pub is_jsonl: bool,
}

impl Source {
    /// Finds the file, or every file of the folder and its subfolders, by path.
    ///
    /// Hidden files and folders are left out. Links are followed, but no folder is entered twice, and no file
    /// taken twice: otherwise one copy could be for training, and another for validation.
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
        let files = files.into_iter();
        let files: Vec<TextFile> = files.map(|path| TextFile { is_jsonl: is_jsonl(format, &path), path }).collect();
        Ok(Self {
            path: path.clone(),
            has_documents: metadata.is_dir() || files.iter().any(|file| file.is_jsonl),
            files,
            text_field: config.text_field.clone().unwrap_or_else(|| "text".to_owned()),
        })
    }

    /// Finds several texts. No file may be in two of them: what one keeps for validation the other would train on.
    pub(super) fn find_all(configs: &[SourceConfig]) -> Result<Vec<Self>, DataError> {
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
                    return Err(DataError::InTwoSources {
                        file: file.path.clone(),
                        first: first.to_owned(),
                        second: source.path.clone(),
                    });
                }
            }
        }
        Ok(sources)
    }

    /// The text of standard input that was saved as `file`.
    pub(super) fn of_standard_input(config: &SourceConfig, file: &Path) -> Self {
        let is_jsonl = config.format == Some(TextFormat::Jsonl);
        Self {
            path: config.path.clone(),
            files: vec![TextFile { path: file.to_owned(), is_jsonl }],
            has_documents: is_jsonl,
            text_field: config.text_field.clone().unwrap_or_default(),
        }
    }

    /// The size of the files on the disk; one that cannot be looked at counts as empty.
    pub(super) fn bytes_on_disk(&self) -> u64 {
        let bytes = |file: &TextFile| fs::metadata(&file.path).map_or(0, |metadata| metadata.len());
        self.files.iter().map(bytes).sum()
    }

    /// Opens a file of this text. With `utf8`, it must not begin like something else than text.
    pub(super) fn open(&self, file: &TextFile, utf8: bool) -> Result<TextBytes, DataError> {
        let shown = match is_standard_input(&self.path) {
            true => &self.path, // rather than the file that it was saved to
            false => &file.path,
        };
        TextBytes::open(&file.path, shown, utf8)
    }
}

/// Whether each line of a file is a record.
pub(crate) fn is_jsonl(format: TextFormat, path: &Path) -> bool {
    match format {
        TextFormat::Text => false,
        TextFormat::Jsonl => true,
        TextFormat::Auto => {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            let name = name.strip_suffix(".gz").unwrap_or(&name);
            let extension = Path::new(name).extension();
            extension.is_some_and(|extension| extension == "jsonl" || extension == "ndjson")
        }
    }
}

/// Adds the files of a folder, in the order of their names; `seen` holds the folders that were
/// entered and the files that were added, without links in their paths.
fn list(folder: &Path, seen: &mut BTreeSet<PathBuf>, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let fail = |source| DataError::read(folder, source);
    if !seen.insert(folder.canonicalize().map_err(fail)?) {
        return Ok(());
    }
    let entries = fs::read_dir(folder).map_err(fail)?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names = names.collect::<Result<Vec<_>, _>>().map_err(fail)?;
    names.sort();
    for name in names.into_iter().filter(|name| !name.as_encoded_bytes().starts_with(b".")) {
        let path = folder.join(name);
        let metadata = fs::metadata(&path).map_err(|source| not_found(&path, source))?;
        if metadata.is_dir() {
            list(&path, seen, files)?;
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

/// The entry of the same folder whose name is most like that of a missing path.
fn nearest(path: &Path) -> Option<PathBuf> {
    const LEAST_LIKENESS: f64 = 0.75;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let wanted = path.file_name()?.to_string_lossy();
    let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let (likeness, name) = names
        .map(|name| (strsim::jaro_winkler(&wanted, &name.to_string_lossy()), name))
        .max_by(|(a, a_name), (b, b_name)| a.total_cmp(b).then_with(|| b_name.cmp(a_name)))?;
    (likeness >= LEAST_LIKENESS).then(|| path.with_file_name(name))
}

/// How a gzip file begins.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// How UTF-8 may begin, which is not part of the text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Enough bytes to tell what a file is.
const HEAD_BYTES: usize = 16;

/// Bytes read from the disk at once.
const BUFFER_BYTES: usize = 1 << 16;

/// First bytes of files that are often taken for text, what they are, and what to do with them.
const NOT_TEXT: &[(&[u8], &str, &str)] = &[
    (b"PK\x03\x04", "a zip archive", "unzip it, and name the folder that comes out"),
    (b"%PDF-", "a PDF document", "convert it to text first, for instance with pdftotext"),
    (b"{\\rtf", "an RTF document", "save it as plain text (UTF-8)"),
    (b"\xd0\xcf\x11\xe0", "an old Office document", "save it as plain text (UTF-8)"),
    (b"PAR1", "a Parquet file", "write its texts as JSON Lines, one object a line"),
    (b"SQLite format 3\0", "an SQLite database", "write its texts as JSON Lines, one object a line"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd", "unpack it with `unzstd`, or pack it with gzip"),
    (b"\xfd7zXZ\0", "packed with xz", "unpack it with `unxz`, or pack it with gzip"),
    (b"BZh91AY&SY", "packed with bzip2", "unpack it with `bunzip2`, or pack it with gzip"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "unpack it first"),
    (b"\xff\xfe", "UTF-16", "save it as UTF-8, for instance with `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "UTF-16", "save it as UTF-8, for instance with `iconv -f UTF-16 -t UTF-8`"),
    (b"\x89PNG", "a picture", "name a file of text"),
    (b"\xff\xd8\xff", "a picture", "name a file of text"),
    (b"\x7fELF", "a program", "name a file of text"),
];

/// The extensions of zip archives that are documents.
const OFFICE: &[&str] = &["docx", "odt", "pptx", "odp", "xlsx", "ods", "pages", "epub"];

/// The bytes of an open file.
pub(super) struct TextBytes {
    bytes: Box<dyn BufRead + Send>,
    is_gzip: bool,
    /// The path that errors show.
    pub shown: PathBuf,
    /// The length of the byte order mark that was left out.
    pub n_skipped: u64,
}

impl TextBytes {
    /// Opens a file, and unpacks it if it is gzip, whatever its name.
    fn open(path: &Path, shown: &Path, utf8: bool) -> Result<Self, DataError> {
        let fail = |source| DataError::read(shown, source);
        let file = File::open(path).map_err(fail)?;
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        let (mut head, file) = peek(file).map_err(fail)?;
        let is_gzip = head.starts_with(GZIP);
        let gzip_error = |source| DataError::Gzip { path: shown.to_owned(), source };
        let name_says_gzip = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        if name_says_gzip && !is_gzip && !head.is_empty() {
            let source = io::Error::new(io::ErrorKind::InvalidData, "it does not begin like one");
            return Err(gzip_error(source));
        }
        let mut bytes: Box<dyn BufRead + Send> = Box::new(file);
        if is_gzip {
            let unpacked = BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(bytes));
            let (unpacked_head, unpacked) = peek(unpacked).map_err(gzip_error)?;
            (head, bytes) = (unpacked_head, Box::new(unpacked));
        }
        let mut n_skipped = 0;
        if utf8 {
            if let Some((what, advice)) = not_text(&head, path) {
                return Err(DataError::NotText { path: shown.to_owned(), what, advice });
            }
            if head.starts_with(BYTE_ORDER_MARK) {
                n_skipped = BYTE_ORDER_MARK.len();
                bytes.consume(n_skipped); // the whole head is in the buffer
            }
        }
        Ok(Self { bytes, is_gzip, shown: shown.to_owned(), n_skipped: n_skipped as u64 })
    }

    /// Appends up to `n` bytes to the buffer, fewer only at the end, and returns how many.
    pub(super) fn read(&mut self, n: usize, buffer: &mut Vec<u8>) -> Result<usize, DataError> {
        let read = (&mut self.bytes).take(n as u64).read_to_end(buffer);
        read.map_err(|source| self.error(source))
    }

    /// Replaces the buffer by the next line; false at the end.
    pub(super) fn read_line(&mut self, buffer: &mut Vec<u8>) -> Result<bool, DataError> {
        buffer.clear();
        let read = self.bytes.read_until(b'\n', buffer);
        Ok(read.map_err(|source| self.error(source))? > 0)
    }

    fn error(&self, source: io::Error) -> DataError {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        let path = self.shown.clone();
        match source.kind() {
            InvalidData | InvalidInput | UnexpectedEof if self.is_gzip => DataError::Gzip { path, source },
            _ => DataError::Read { path, source },
        }
    }
}

/// The first bytes, and a reader that begins with them.
fn peek(mut reader: impl BufRead + Send + 'static) -> io::Result<(Vec<u8>, impl BufRead + Send + 'static)> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&mut reader).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head).chain(reader)))
}

/// The kind of file that begins like this, and advice; `None` if it may be text.
fn not_text(head: &[u8], path: &Path) -> Option<(&'static str, &'static str)> {
    let &(magic, what, advice) = NOT_TEXT.iter().find(|(magic, ..)| head.starts_with(magic))?;
    let is_document = path.extension().is_some_and(|extension| {
        let extension = extension.to_string_lossy().to_ascii_lowercase();
        OFFICE.contains(&extension.as_str())
    });
    if magic.starts_with(b"PK") && is_document {
        return Some(("an Office document or e-book", "save it as plain text (UTF-8)"));
    }
    Some((what, advice))
}

/// How much is searched for the end of the first line; a longer line is taken for text.
const MAX_RECORD_BYTES: usize = 1 << 22;

pub(super) fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

/// Saves all of standard input to a file, which is deleted with the result unless [`keep`] gives it a name.
pub(super) fn receive(
    config: &SourceConfig,
    cache: &Cache,
    on_progress: OnProgress<'_>,
) -> Result<Temporary, DataError> {
    let stdin = io::stdin().lock();
    if stdin.is_terminal() {
        return Err(DataError::Terminal); // where nobody sees that input is waited for
    }
    let received = save(stdin, cache, on_progress)?;
    check_format(received.path(), config)?;
    Ok(received)
}

fn save(mut input: impl Read, cache: &Cache, on_progress: OnProgress<'_>) -> Result<Temporary, DataError> {
    let path = Path::new(STANDARD_INPUT);
    let fail = |source| DataError::cache(&cache.folder, source);
    let mut temporary = Temporary::create(&cache.folder).map_err(fail)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut reading = Reading { path, purpose: Purpose::Scan, bytes: 0, of: None };
    loop {
        report(on_progress, &reading)?;
        // Not `io::copy`, which does not tell which of both sides failed.
        match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                temporary.file.write_all(&buffer[..n]).map_err(fail)?;
                reading.bytes += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(DataError::read(path, source)),
        }
    }
    report(on_progress, &reading)?; // the sender may have ended early on the same Ctrl-C
    temporary.file.sync_all().map_err(fail)?;
    // Some systems let nobody read a file locked for writing; a shared lock also says that it is in use.
    let _ = temporary.file.unlock();
    let _ = temporary.file.try_lock_shared();
    Ok(temporary)
}

/// Refuses a first line that is a record, unless the format is given: no file name tells what is meant.
fn check_format(saved: &Path, config: &SourceConfig) -> Result<(), DataError> {
    if config.format.unwrap_or_default() != TextFormat::Auto {
        return Ok(());
    }
    let mut head = Vec::new();
    TextBytes::open(saved, Path::new(STANDARD_INPUT), false)?.read(MAX_RECORD_BYTES, &mut head)?;
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&head);
    let first_line = head.trim_ascii_start().split(|byte| *byte == b'\n').next();
    let field = config.text_field.clone().unwrap_or_default();
    match record_text(first_line.unwrap_or_default(), &field) {
        Ok(_) => Err(DataError::TextOrRecords { field }),
        Err(_) => Ok(()),
    }
}

/// Keeps standard input under the hash of its text, so that its run can go on, and returns the path.
pub(super) fn keep(received: Temporary, cache: &Cache, text_sha256: &str) -> Result<PathBuf, DataError> {
    let path = cache.kept_text(text_sha256);
    received.rename(&path).map_err(|source| DataError::cache(&path, source))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::super::reader::ignore;
    use super::*;
    use crate::config::DataConfig;

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
        let folder = folder(&["b.txt", "a/z.JSONL", "a/b/c.ndjson.gz", ".hidden", ".git/x", "jsonl", "d.jsonl.txt"]);
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
        for (name, format, expected) in [
            ("a.txt", TextFormat::Jsonl, true),
            ("a.jsonl", TextFormat::Text, false),
            ("a.jsonl.gz.gz", TextFormat::Auto, false),
        ] {
            assert_eq!(is_jsonl(format, Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn the_error_for_a_missing_text_names_one_like_it() {
        let folder = folder(&[".hidden", "sub/stories.txt"]);
        let sub = folder.path().join("sub");
        let empty = folder.path().join("empty");
        fs::create_dir(&empty).unwrap();
        assert!(matches!(find(&empty), Err(DataError::NoFiles { .. })));
        let nearest = |name: &str| match find(&sub.join(name)) {
            Err(DataError::Missing { nearest, .. }) => nearest,
            other => panic!("{other:?}"),
        };
        assert_eq!(nearest("storys.txt"), Some(sub.join("stories.txt")));
        assert_eq!(nearest("other"), None);
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
        let find_all = |names: [&str; 3]| {
            let path = |name| folder.path().join(name);
            let config = |name| SourceConfig { path: path(name), ..SourceConfig::default() };
            Source::find_all(&names.map(config))
        };
        find_all(["sub/a.txt", "sub/b.txt", "c.txt"]).unwrap();
        let error = find_all(["c.txt", "sub", "sub/b.txt"]).unwrap_err().to_string();
        assert!(error.contains("b.txt`") && error.contains("sub`"), "{error}");
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// All bytes of a file with this name and content.
    fn read(name: &str, content: &[u8], utf8: bool) -> Result<Vec<u8>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        let mut bytes = TextBytes::open(&path, &path, utf8)?;
        let mut all = Vec::new();
        while bytes.read(5, &mut all)? > 0 {}
        Ok(all)
    }

    #[test]
    fn gzip_is_unpacked_whatever_its_name() {
        let text = b"some text, long enough to be more than a head";
        let two = [gzip(&text[..1]), gzip(&text[1..])].concat();
        for name in ["a.txt", "a.txt.gz"] {
            assert_eq!(read(name, &gzip(text), true).unwrap(), text);
            assert_eq!(read(name, &two, false).unwrap(), text, "several members");
        }
        assert_eq!(read("a.gz", b"", true).unwrap(), b"");
        assert_eq!(read("a.gz", &gzip(b""), true).unwrap(), b"");
        let whole = gzip(&b"0123456789abcdef".repeat(9));
        for broken in [&whole[..whole.len() - 3], &whole[..12], b"no gzip at all"] {
            let error = read("a.gz", broken, true).unwrap_err();
            assert!(matches!(error, DataError::Gzip { .. }), "{error}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_text() {
        let marked = b"\xef\xbb\xbfabc";
        assert_eq!(read("a.txt", marked, true).unwrap(), b"abc");
        assert_eq!(read("a.txt", &gzip(marked), true).unwrap(), b"abc");
        assert_eq!(read("a.txt", marked, false).unwrap(), marked);
        assert_eq!(read("a.txt", &marked[..2], true).unwrap(), &marked[..2]);
    }

    #[test]
    fn other_files_than_text_are_named_with_advice() {
        let error = |name, content| read(name, content, true).unwrap_err().to_string();
        for (name, content, what, advice) in [
            ("a.docx", &b"PK\x03\x04..."[..], "Office", "plain text"),
            ("a.txt", b"PK\x03\x04...", "zip", "unzip"),
            ("a.pdf", b"%PDF-1.7", "PDF", "pdftotext"),
            ("a.txt", b"\xff\xfea\0b\0", "UTF-16", "UTF-8"),
            ("a.zst", b"\x28\xb5\x2f\xfd..", "zstd", "unzstd"),
        ] {
            let error = error(name, content);
            assert!(error.contains(what) && error.contains(advice), "{error}");
            assert_eq!(read(name, content, false).unwrap(), content, "any bytes are bytes");
        }
        assert!(error("a.gz", &gzip(b"%PDF-1.7")).contains("PDF"));
    }

    fn cache(folder: &tempfile::TempDir) -> Cache {
        let cache_dir = Some(folder.path().to_owned());
        Cache::open(&DataConfig { cache_dir, ..DataConfig::default() }).unwrap()
    }

    /// Reads a little, and then fails.
    struct Broken(usize);

    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match std::mem::take(&mut self.0) {
                0 => Err(io::Error::other("unplugged")),
                n => Ok(n.min(buffer.len())),
            }
        }
    }

    #[test]
    fn standard_input_is_deleted_or_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        let n_files = || fs::read_dir(folder.path()).unwrap().count();
        let received = save(&b"abc"[..], &cache, &ignore).unwrap();
        assert_eq!(fs::read(received.path()).unwrap(), b"abc");
        drop(received);
        let error = save(Broken(3), &cache, &ignore).unwrap_err();
        assert!(error.to_string().contains("unplugged"), "{error}");
        let stop_at_end = |reading: &Reading<'_>| match reading.bytes {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        let error = save(&b"abc"[..], &cache, &stop_at_end).unwrap_err();
        assert!(matches!(error, DataError::Stopped), "{error}");
        assert_eq!(n_files(), 0);

        let received = save(&b"abc"[..], &cache, &ignore).unwrap();
        let path = keep(received, &cache, "1234").unwrap();
        assert_eq!(path, folder.path().join("1234.text"));
        assert_eq!(fs::read(path).unwrap(), b"abc");
        assert_eq!(n_files(), 1);
    }

    #[test]
    fn records_are_not_taken_for_a_text_unless_the_config_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let check = |input: &str, format| {
            let saved = save(input.as_bytes(), &cache(&folder), &ignore).unwrap();
            let text_field = Some("text".to_owned());
            let config = SourceConfig { format: Some(format), text_field, ..SourceConfig::default() };
            check_format(saved.path(), &config)
        };
        let records = "\u{feff}\n{\"id\": 1, \"text\": \"a\"}\n{\"id\": 2, \"text\": \"b\"}\n";
        let error = check(records, TextFormat::Auto).unwrap_err().to_string();
        assert!(error.contains("field \"text\"") && error.contains("data.format = \"jsonl\""));
        for format in [TextFormat::Jsonl, TextFormat::Text] {
            check(records, format).unwrap();
        }
        for text in ["", "once", "{\"body\": \"a\"}\n", "{\n\"text\": \"a\"}", "[1]"] {
            check(text, TextFormat::Auto).unwrap();
        }
    }
}
