//! The rows of a Parquet file as JSON, in bounded memory: a page of each column at a time. Why it is our own reader:
//! docs/experiments.md.

mod column;
mod page;
mod runs;
mod schema;
mod thrift;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::mem;

use self::column::Column;
use self::page::Pages;
use self::schema::{ENCRYPTED, Footer, Node};
use self::thrift::{Result, damaged};
use super::record::too_long;

/// At the beginning and at the end of a file.
pub(super) const MAGIC: &[u8] = b"PAR1";

/// The most bytes of the description at the end of a file.
const MAX_FOOTER_BYTES: u64 = 64 << 20;

/// The pages in memory may have so many times the bytes of a record.
const PAGES_PER_RECORD: usize = 4;

/// An open file, read row by row.
pub(super) struct Parquet {
    pages: Pages,
    footer: Footer,
    /// The row groups begun, the rows that are left of the current one, and its columns.
    n_groups: usize,
    n_left: u64,
    columns: Vec<Column>,
    /// The current row.
    json: Vec<u8>,
}

impl Parquet {
    /// Opens a file. Fails with a problem, which continues a sentence about it.
    pub(super) fn open(mut file: File) -> Result<Self> {
        let cannot = |error| format!("cannot be read: {error}");
        let len = file.seek(SeekFrom::End(0)).map_err(cannot)?;
        let mut read = |start, n: u64| -> Result<Vec<u8>> {
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(start)).map_err(cannot)?;
            (&file).take(n).read_to_end(&mut bytes).map_err(cannot)?;
            Ok(bytes)
        };
        let footer_len = match read(len.saturating_sub(8), 8)?.split_first_chunk() {
            Some((footer_len, MAGIC)) => u64::from(u32::from_le_bytes(*footer_len)),
            Some((_, b"PARE")) => return Err(ENCRYPTED.to_owned()),
            _ => return Err(damaged("it does not end as it should")),
        };
        let start = len.checked_sub(footer_len + 8).filter(|_| footer_len <= MAX_FOOTER_BYTES);
        let footer = read(start.ok_or_else(|| damaged("its description has an impossible length"))?, footer_len)?;
        let footer = Footer::read(&footer)?;
        let pages = Pages { file, held: 0, most: 0 };
        Ok(Self { pages, footer, n_groups: 0, n_left: 0, columns: Vec::new(), json: Vec::new() })
    }

    /// The next row, with the fields that `wants` says, the same for all rows; of at most `max_bytes`.
    pub(super) fn next(&mut self, max_bytes: usize, wants: &dyn Fn(&str) -> bool) -> Result<Option<&[u8]>> {
        if self.pages.most == 0 {
            self.keep(wants)?;
            self.pages.most = max_bytes.saturating_mul(PAGES_PER_RECORD);
        }
        while self.n_left == 0 {
            let Some(group) = self.footer.groups.get(self.n_groups) else { return Ok(None) };
            let columns = self.footer.leaves.iter().zip(&group.chunks);
            self.columns = columns.map(|(leaf, chunk)| Column::new(*leaf, *chunk)).collect();
            (self.n_groups, self.n_left, self.pages.held) = (self.n_groups + 1, group.n_rows, 0);
        }
        self.n_left -= 1;
        self.json.clear();
        let fields = mem::take(&mut self.footer.fields);
        self.write_fields(&fields, max_bytes)?;
        for column in fields.iter().flat_map(|(_, node)| node.columns()) {
            let next = self.columns[column].levels(&mut self.pages)?;
            if next.map(|(level, _)| level) != (self.n_left > 0).then_some(0) {
                return Err(damaged("a column has another number of values than there are rows"));
            }
        }
        self.footer.fields = fields;
        Ok(Some(&self.json))
    }

    /// Keeps the fields that are wanted. What JSON cannot hold is refused among them.
    fn keep(&mut self, wants: &dyn Fn(&str) -> bool) -> Result<()> {
        if let Some((field, path, kind)) = self.footer.refused.iter().find(|(field, ..)| wants(field)) {
            return Err(format!(
                "has the column \"{path}\" of the type {kind}, which a record cannot hold\n  hint: --set \
                 'finetune.ignored_fields=[\"{field}\"]' leaves the field out; otherwise write it as text"
            ));
        }
        let names = self.footer.fields.iter().map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        self.footer.fields.retain(|(name, _)| wants(name));
        if self.footer.fields.is_empty() {
            return Err(format!(
                "has no column that is read, only {names}\n  hint: --map prompt=FIELD,completion=FIELD names those of records, \
                 and data.text_field that of a text"
            ));
        }
        Ok(())
    }

    fn write_fields(&mut self, fields: &[(String, Node)], max_bytes: usize) -> Result<()> {
        let mut separator = b'{';
        for (name, node) in fields {
            self.json.push(mem::replace(&mut separator, b','));
            serde_json::to_writer(&mut self.json, name).expect("memory takes all that is written");
            self.json.push(b':');
            self.write(node, max_bytes)?;
        }
        self.json.push(b'}');
        Ok(())
    }

    fn write(&mut self, node: &Node, max_bytes: usize) -> Result<()> {
        let start = self.json.len();
        match node {
            Node::Leaf(column) => self.columns[*column].write(&mut self.pages, &mut self.json)?,
            Node::Struct(fields) => self.write_fields(fields, max_bytes)?,
            Node::Optional(def, node) if self.levels(node)?.is_some_and(|(_, level)| level >= *def) => {
                self.write(node, max_bytes)?;
            }
            Node::List(def, rep, item) if self.levels(item)?.is_some_and(|(_, level)| level >= *def) => {
                let mut separator = b'[';
                while separator == b'[' || self.levels(item)?.is_some_and(|(level, _)| level >= *rep) {
                    self.json.push(mem::replace(&mut separator, b','));
                    self.write(item, max_bytes)?;
                }
                self.json.push(b']');
            }
            // Each column has a value that says so.
            Node::Optional(..) | Node::List(..) => {
                for column in node.columns() {
                    self.columns[column].write(&mut self.pages, &mut self.json)?;
                }
                self.json.truncate(start);
                self.json.extend_from_slice(if let Node::List(..) = node { b"[]" } else { b"null" });
            }
        }
        if self.json.len() > max_bytes { Err(too_long(max_bytes)) } else { Ok(()) }
    }

    /// The levels of the next value within a field.
    fn levels(&mut self, node: &Node) -> Result<Option<(u32, u32)>> {
        self.columns[node.columns().start].levels(&mut self.pages)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use serde_json::{Value, json};

    use super::*;

    const LIMIT: usize = 1 << 20;

    fn fixture(name: &str) -> PathBuf {
        Path::new("../../tests/fixtures/parquet").join(name)
    }

    fn rows(path: &Path, max_bytes: usize, wants: &dyn Fn(&str) -> bool) -> Result<Vec<Value>> {
        let mut file = Parquet::open(File::open(path).expect("the fixture exists"))?;
        let mut rows = Vec::new();
        while let Some(row) = file.next(max_bytes, wants)? {
            rows.push(serde_json::from_slice(row).expect("a row is JSON"));
        }
        Ok(rows)
    }

    #[test]
    fn files_are_read_as_by_pyarrow() {
        let lines = fs::read_to_string(fixture("records.jsonl")).expect("the fixture exists");
        let expected: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        for name in ["snappy", "zstd", "gzip", "plain", "older"] {
            let found = rows(&fixture(&format!("{name}.parquet")), LIMIT, &|_| true);
            assert_eq!(found.as_ref(), Ok(&expected), "{name}");
        }
        let text = |n: usize| json!({"text": format!("text {}", if n < 1000 { n / 100 } else { n * n % 300 })});
        let found = rows(&fixture("many.parquet"), LIMIT, &|_| true);
        assert_eq!(found, Ok((0..2000).map(text).collect()));
    }

    #[test]
    fn what_json_cannot_hold_is_refused_by_name_if_it_is_wanted() {
        let path = fixture("refused.parquet");
        for (field, expected) in [
            ("date", "the column \"date\" of the type date,"),
            ("time", "the column \"time\" of the type time,"),
            ("timestamp", "the column \"timestamp\" of the type timestamp,"),
            ("decimal", "the column \"decimal\" of the type decimal,"),
            ("bytes", "the column \"bytes\" of the type bytes,"),
            ("half", "the column \"half\" of the type bytes,"),
            ("map", "the column \"map\" of the type map,"),
            ("inner", "the column \"inner.list.element.at\" of the type timestamp,"),
            ("other", "values in the encoding DELTA_BYTE_ARRAY\n"),
            ("text ", "no column that is read, only \"date\", \"time\","),
        ] {
            let error = rows(&path, LIMIT, &|name| name == field).expect_err(field);
            assert!(error.contains(expected) && error.contains("\n  hint: "), "{field}: {error}");
        }
        assert_eq!(rows(&path, LIMIT, &|name| name == "text"), Ok(vec![json!({"text": "a"})]));
    }

    #[test]
    fn small_files_of_large_records_are_refused() {
        for (name, max_bytes, expected) in [
            ("bomb-zstd", LIMIT, "has pages of more than 4 MiB at once"),
            ("bomb-gzip", LIMIT, "has pages of more than 4 MiB at once"),
            ("bomb-nulls", LIMIT, "is longer than 1 MiB"),
            ("snappy", 64, "has pages of more than"),
        ] {
            let error = rows(&fixture(&format!("{name}.parquet")), max_bytes, &|_| true).expect_err(name);
            assert!(error.contains(expected) && error.contains("\n  hint: "), "{name}: {error}");
        }
    }

    /// A damaged file is read or refused; one that was cut off is refused.
    #[test]
    fn damaged_files_are_no_panic() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("a.parquet");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("the file can be written");
            rows(&path, LIMIT, &|_| true)
        };
        let mut n_refused = 0;
        for name in ["snappy", "zstd", "gzip", "plain"] {
            let whole = fs::read(fixture(&format!("{name}.parquet"))).expect("the fixture exists");
            for at in (0..whole.len()).step_by(97) {
                assert!(read(&whole[..at]).is_err(), "{name} without its end");
                for with in [0, 0x7f, 0xff, whole[at] ^ (1 << (at % 8))] {
                    let mut bytes = whole.clone();
                    bytes[at] = with;
                    n_refused += usize::from(read(&bytes).is_err());
                }
            }
        }
        assert!(n_refused > 100, "{n_refused}");
    }
}
