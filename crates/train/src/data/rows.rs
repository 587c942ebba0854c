//! The records of a file one by one, each as JSON: lines, the items of a list, or the rows of a table.

use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use csv::{ErrorKind, ReaderBuilder, StringRecord};
use serde_json::{Map, Value};

use super::DataError;
use super::file::OpenFile;
use super::record::too_long;
use super::source::{TextFile, TextSource};

pub(super) enum Rows {
    Json(OpenFile),
    Csv(Box<Csv>),
}

/// A CSV file, whose first row of values is number 1.
pub(super) struct Csv {
    reader: csv::Reader<Bounded>,
    names: StringRecord,
    shown: PathBuf,
    n_rows: u64,
    /// The current row.
    json: Vec<u8>,
}

impl Rows {
    /// Opens a file, whose name says which form it has.
    pub(super) fn open(source: &TextSource, file: &TextFile) -> Result<Self, DataError> {
        let name = file.path.to_string_lossy().to_ascii_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let extension = name.rsplit('.').next().filter(|_| !file.is_jsonl);
        let open = source.open(file, true)?;
        let delimiter = match extension.filter(|_| !open.holds_rows()) {
            Some("csv") => b',',
            Some("tsv") => b'\t',
            _ => return Ok(Self::Json(open)),
        };
        let (bytes, shown) = open.into_bytes();
        let bytes = Bounded { bytes, left: source.max_record_bytes };
        let mut reader = ReaderBuilder::new().delimiter(delimiter).from_reader(bytes);
        let names = match reader.headers() {
            Ok(names) => names.clone(),
            Err(source) => return Err(DataError::Table { path: shown, source }),
        };
        Ok(Self::Csv(Box::new(Csv { reader, names, shown, n_rows: 0, json: Vec::new() })))
    }

    /// The next record, of at most `max_bytes`. Of a Parquet file, only the fields that `wants` says.
    pub(super) fn next(&mut self, max_bytes: usize, wants: &dyn Fn(&str) -> bool) -> Result<Option<&[u8]>, DataError> {
        match self {
            Self::Json(file) => file.next_record(max_bytes, wants),
            Self::Csv(table) => table.next_row(max_bytes),
        }
    }

    /// A problem with the current record, which continues a sentence about it.
    pub(super) fn problem(&self, problem: String) -> DataError {
        match self {
            Self::Json(file) => file.in_line(problem),
            Self::Csv(table) => table.in_row(problem),
        }
    }
}

impl Csv {
    fn next_row(&mut self, max_bytes: usize) -> Result<Option<&[u8]>, DataError> {
        self.n_rows += 1;
        self.reader.get_mut().left = max_bytes.saturating_add(READ_AHEAD);
        let mut row = StringRecord::new();
        match self.reader.read_record(&mut row) {
            Ok(false) => return Ok(None),
            Ok(true) => {}
            Err(error) => {
                return Err(match error.into_kind() {
                    ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => self.in_row(too_long(max_bytes)),
                    ErrorKind::Io(source) => DataError::read(&self.shown, source),
                    ErrorKind::UnequalLengths { expected_len, len, .. } => self.in_row(format!(
                        "has {len} fields, and the first line has {expected_len}\n  hint: a text with commas, quotes or \
                         line breaks stands in quotes, and a quote in it is doubled"
                    )),
                    _ => self.in_row("is not UTF-8\n  hint: save the file as UTF-8".to_owned()),
                });
            }
        }
        let fields = self.names.iter().zip(&row).map(|(name, value)| (name.to_owned(), value.into()));
        let fields: Map<_, _> = fields.collect();
        if fields.len() < self.names.len() {
            return Err(
                self.in_row("has two fields of one name\n  hint: name them differently in the first line".to_owned())
            );
        }
        self.json = Value::Object(fields).to_string().into_bytes();
        Ok(Some(&self.json))
    }

    fn in_row(&self, problem: String) -> DataError {
        DataError::record(&self.shown, "row", self.n_rows, problem)
    }
}

/// More than the reader of CSV has in its buffer.
const READ_AHEAD: usize = 1 << 16;

/// Bytes of which a row may have so many: a small packed file can hold one that exceeds the memory.
pub(super) struct Bounded {
    bytes: Box<dyn BufRead + Send>,
    left: usize,
}

impl Read for Bounded {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.bytes.read(to)?;
        self.left = self.left.checked_sub(n).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::folder;
    use super::*;
    use crate::config::DataConfig;

    fn rows(name: &'static str, content: &[u8], max_bytes: usize) -> Result<Vec<String>, String> {
        let folder = folder([(name, content)]);
        let config = DataConfig { path: folder.path().join(name), ..DataConfig::default() };
        let source = TextSource::find(&config).map_err(|error| error.to_string())?;
        let mut rows = Rows::open(&source, &source.files[0]).map_err(|error| error.to_string())?;
        let mut all = Vec::new();
        while let Some(row) = rows.next(max_bytes, &|name| name != "other").map_err(|error| error.to_string())? {
            all.push(String::from_utf8_lossy(row).trim().to_owned());
        }
        Ok(all)
    }

    #[test]
    fn lists_and_tables_are_read_row_by_row() {
        let both = &["{\"b\":\"x, ]\\\"}\",\"a\":[1,{}]}", "{\"b\":\"\",\"a\":2}"][..];
        for (name, content, expected) in [
            ("a.json", format!("[{},\n {}\n]\n", both[0], both[1]), both.to_vec()),
            ("a.jsonl", format!("\u{feff} [\n{}\n,{}]", both[0], both[1]), both.to_vec()),
            ("a.json", both.join("\n"), both.to_vec()),
            (
                "a.csv",
                "b,a\n\"x, \"\"y\"\"\n\",1\n,\n".to_owned(),
                vec![r#"{"b":"x, \"y\"\n","a":"1"}"#, r#"{"b":"","a":""}"#],
            ),
            ("a.tsv", "b\ta\r\nx,y\t1\r\n".to_owned(), vec![r#"{"b":"x,y","a":"1"}"#]),
            ("a.csv", "b,a\n".to_owned(), vec![]),
        ] {
            assert_eq!(rows(name, content.as_bytes(), 1 << 20).expect(&content), expected, "{content}");
        }
        for (name, content, expected) in [
            ("a.json", "[{\"a\": 1}, {\"a\": ", "record 2 of"),
            ("a.json", "[{\"a\": 1}] {\"a\": 2}", "is followed by more than its list"),
            ("a.json", "[{\"a\": 1}, {\"a\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}]", "is longer than"),
            ("a.csv", "a,b\n1,2\n1,2,3\n", "row 2 of"),
            ("a.csv", "a,a\n1,2\n", "has two fields of one name"),
            ("a.csv", &*format!("a,b\n1,2\n1,\"{}\"\n", "a".repeat(2 * READ_AHEAD)), "row 2 of"),
            ("a.parquet", "PAR1 and not more", "is damaged, or was cut off: it does not end as it should"),
            ("a.parquet", "{}", "is damaged, or was cut off: it does not end as it should"),
            ("a.csv", "PAR1 and not more", "is damaged"),
        ] {
            let error = rows(name, content.as_bytes(), 32).expect_err(content);
            assert!(error.contains(expected) && error.contains("\n  hint: "), "{error}");
        }
    }
}
