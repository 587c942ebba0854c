//! Rejects texts that would probably not be read as intended.

use std::path::Path;

use super::DataError;
use super::record::{begins_with_list, begins_with_object, begins_with_record};
use super::source::{TextFile, TextSource, is_standard_input};
use crate::config::{Config, DataConfig, TextFormat, TokenizerKind};

/// The number of bytes examined in each file: usually enough for the first record.
const HEAD_BYTES: usize = 1 << 18;

const MAX_FILES: usize = 16;

/// Rejects the text of a new run if it begins like a binary file, or if it holds records under a name that says
/// otherwise.
pub fn check_format(config: &Config) -> Result<(), DataError> {
    let utf8 = config.tokenizer.kind != TokenizerKind::Byte;
    for data in config.data.all_sources().iter().filter(|data| !is_standard_input(&data.path)) {
        let source = TextSource::find(data)?;
        for file in source.files.iter().filter(|file| !file.is_jsonl).take(MAX_FILES) {
            let head = head(&source, file, utf8)?;
            if data.format == TextFormat::Auto {
                refuse_records(&source, &file.path, &head)?;
            }
            if let Some(offset) = head.iter().position(|byte| *byte == 0).filter(|_| utf8) {
                return Err(DataError::Binary { path: file.path.clone(), offset });
            }
        }
    }
    Ok(())
}

/// Rejects a text of standard input that begins with a record, unless the format is given.
pub(super) fn check_standard_input(source: &TextSource, format: TextFormat) -> Result<(), DataError> {
    let is_text = format != TextFormat::Auto || source.files[0].is_jsonl;
    if is_text { Ok(()) } else { refuse_records(source, &source.path, &head(source, &source.files[0], false)?) }
}

/// Rejects the text of a file that begins with a record.
fn refuse_records(source: &TextSource, path: &Path, head: &[u8]) -> Result<(), DataError> {
    let (path, field) = (path.to_owned(), source.text_field.clone());
    let is_json = || path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    if begins_with_record(head, &field) {
        return Err(DataError::FileOfRecords { path, field });
    }
    if begins_with_list(head) || is_json() && begins_with_object(head) {
        return Err(DataError::ListOfRecords { path, field });
    }
    Ok(())
}

/// Whether a text is a file of records, under a name that says otherwise.
pub fn holds_records(data: &DataConfig) -> Result<bool, DataError> {
    is_file_of_records(&TextSource::find(data)?)
}

fn is_file_of_records(source: &TextSource) -> Result<bool, DataError> {
    let [file] = &source.files[..] else { return Ok(false) };
    Ok(!file.is_jsonl && begins_with_record(&head(source, file, false)?, &source.text_field))
}

fn head(source: &TextSource, file: &TextFile, utf8: bool) -> Result<Vec<u8>, DataError> {
    let mut head = Vec::new();
    source.open(file, utf8)?.read_text(HEAD_BYTES, &mut head)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::folder;
    use super::*;

    #[test]
    fn suspicious_formats_are_refused_unless_configured() {
        let records = b"{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
        let folder = folder([
            ("records.txt", &[b"\xef\xbb\xbf\n", &records[..]].concat()[..]),
            ("records.jsonl", &records[..]),
            ("binary.txt", &b"a\0b"[..]),
            ("plain.txt", &b"{\"body\": \"a\"}\n"[..]),
            ("list.txt", &b"[\n {\"body\": \"a\"}]\n"[..]),
            ("lines.json", &b"{\"body\": \"a\"}\n"[..]),
            ("one.json", &b"{\n\"body\": \"a\"}\n"[..]),
        ]);
        let look = |name: &str, change: fn(&mut Config)| {
            let mut config = Config::default();
            config.data.path = folder.path().join(name);
            change(&mut config);
            check_format(&config)
        };
        let error = look("records.txt", |_| {}).unwrap_err();
        assert!(matches!(&error, DataError::FileOfRecords { field, .. } if field == "text"), "{error}");
        look("records.txt", |config| config.data.format = TextFormat::Text).unwrap();
        look("records.txt", |config| config.data.format = TextFormat::Jsonl).unwrap();
        look("records.jsonl", |_| {}).unwrap();
        look("plain.txt", |_| {}).unwrap();
        look("one.json", |_| {}).unwrap();
        for name in ["list.txt", "lines.json"] {
            let error = look(name, |_| {}).unwrap_err();
            assert!(matches!(&error, DataError::ListOfRecords { .. }), "{error}");
            look(name, |config| config.data.format = TextFormat::Text).unwrap();
        }
        let error = look("binary.txt", |_| {}).unwrap_err();
        assert!(matches!(error, DataError::Binary { offset: 1, .. }), "{error}");
        look("binary.txt", |config| config.tokenizer.kind = TokenizerKind::Byte).unwrap();
        assert!(look("", |_| {}).is_err(), "a folder with such files");
        let only = |config: &mut Config| config.data.include = vec!["plain.*".to_owned()];
        look("", only).unwrap();
    }
}
