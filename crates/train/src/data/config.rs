//! `[data]`: the keys of the training text, with their defaults and rules.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tinderbox_model::section::Problems;

/// The largest weight of a text: large enough to be its length in bytes, and small enough that sums of weights stay
/// finite.
const MAX_WEIGHT: f64 = 1e15;

tinderbox_model::sections! {
    /// `[data]`: the training text.
    pub struct DataConfig {
        /// A file of UTF-8 text, of JSON Lines (packed with gzip or not) or of Parquet, a folder of them, or `-` for
        /// standard input; relative to the working directory. Required, the only key without a default, unless there are
        /// `sources`.
        #[serde(skip_serializing_if = "is_empty")]
        pub path: PathBuf = PathBuf::new(),
        /// How files are read: `text`, `jsonl` (JSON Lines: one object a line; or the rows of a Parquet file) or `auto`
        /// (`.jsonl` and `.ndjson` are JSON Lines, `.parquet` is Parquet, everything else is text).
        pub format: TextFormat = TextFormat::default(),
        /// The field that holds the text of a record of JSON Lines or Parquet.
        pub text_field: String = "text".to_owned(),
        /// The longest line of a JSON Lines file or row of a Parquet file, unpacked, in MiB: a small packed file can hold
        /// one that exceeds the memory. Reading one takes up to three times its size; the pages of a Parquet file may
        /// take four times as much. Above 0.
        pub record_limit_mib: f64 = 64.0,
        /// The text at the end of each document in a text file; it is part of the document. Not empty; default none: a
        /// text file is one document.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub document_separator: Option<String> = None,
        /// Patterns of the files in a folder that are read, such as `*.txt`, `notes/*` and `**/old/*` of their paths in
        /// it. Default: all of them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub include: Vec<String> = Vec::new(),
        /// Patterns of the files in a folder that are left out, such as `*.png`. Default: none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub exclude: Vec<String> = Vec::new(),
        /// Leaves out the files of a folder that are not text in UTF-8, and says which: each file is read once more.
        pub skip_bad_files: bool = false,
        /// The fraction of each source that is kept for validation. In (0, 1).
        pub val_fraction: f64 = 0.1,
        /// The part of a source kept for validation: `documents` (of several files, whole documents drawn with
        /// `train.seed`; of a single file its end) or `end` (always the end). Default `documents`; runs from before
        /// this key keep the end.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub val_split: Option<ValSplit> = None,
        /// The folder of encoded token files, so that a second start is quick. Default: `tinderbox/tokens` in the
        /// user's cache directory.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cache_dir: Option<PathBuf> = None,
        /// The most disk space for token files, in GiB; the least recently used are deleted first, but none in use.
        /// Above 0.
        pub cache_limit_gib: f64 = 20.0,
        /// Several texts instead of `path`, each under `[[data.sources]]`. Default none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub sources: Vec<SourceConfig> = Vec::new(),
    }

    /// `[[data.sources]]`: one of several training texts.
    pub struct SourceConfig {
        /// A text file or a folder of text files; relative to the working directory. Required.
        pub path: PathBuf = PathBuf::new(),
        /// How often training windows are drawn from this text relative to the others, regardless of its length. Above
        /// 0, at most 1e15.
        pub weight: f64 = 1.0,
        /// The field that holds the text of a record. Default `data.text_field`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub text_field: Option<String> = None,
    }
}

/// How the training files are parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextFormat {
    /// Chosen by file name: `.jsonl` and `.ndjson` are JSON Lines, `.parquet` is Parquet, everything else is plain text.
    #[default]
    Auto,
    /// Plain text, regardless of the file name.
    Text,
    /// JSON Lines, one object per line, or Parquet, regardless of the file name.
    Jsonl,
}

/// The part of a source that is kept for validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValSplit {
    /// Of several files, whole documents drawn with the seed; of a single file its end.
    Documents,
    /// The end, which of a folder is that of the alphabet.
    End,
}

impl DataConfig {
    /// Whether the config names a training text; only the run of an imported model has none.
    pub fn has_text(&self) -> bool {
        !is_empty(&self.path) || !self.sources.is_empty()
    }

    /// The settings of each training text: this config with one path, and without `sources`.
    pub fn all_sources(&self) -> Vec<Self> {
        let of = |source: &SourceConfig| Self {
            path: source.path.clone(),
            text_field: source.text_field.clone().unwrap_or_else(|| self.text_field.clone()),
            sources: Vec::new(),
            ..self.clone()
        };
        if self.sources.is_empty() { vec![self.clone()] } else { self.sources.iter().map(of).collect() }
    }

    /// The weight of each training text.
    pub fn weights(&self) -> Vec<f64> {
        if self.sources.is_empty() { vec![1.0] } else { self.sources.iter().map(|source| source.weight).collect() }
    }

    /// The longest line that may hold a record.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "above 0, and 2^64 is no limit")]
    pub(super) fn max_record_bytes(&self) -> usize {
        ((self.record_limit_mib * f64::from(1 << 20)) as usize).min(usize::MAX / 4) // there is more to add to it
    }

    pub(crate) fn check_into(&self, needs_text: bool, problems: &mut Problems) {
        let Self {
            path,
            format: _,
            text_field,
            record_limit_mib,
            document_separator,
            include,
            exclude,
            skip_bad_files: _,
            val_fraction,
            val_split: _,
            cache_dir,
            cache_limit_gib,
            sources,
        } = self;
        match (path.as_os_str().is_empty(), sources.is_empty()) {
            (true, true) if needs_text => problems.0.push(
                "data.path is missing or empty: name a text file or a folder of them, such as path = \
                 \"data/stories.txt\" under [data], or several under [[data.sources]]"
                    .to_owned(),
            ),
            (false, false) => problems.0.push(format!(
                "data.path = \"{}\" must not be there beside [[data.sources]]: name it as one of them, or leave them \
                 out",
                path.display()
            )),
            _ => {}
        }
        check_text_field(problems, "data.text_field", text_field);
        problems.above_zero("data.record_limit_mib", *record_limit_mib);
        let rule = "hold a text; leave it out for files of one document each";
        problems.must(document_separator.as_deref() != Some(""), "data.document_separator", "\"\"", rule);
        let rule = "hold no empty text; a pattern of files is such as \"*.txt\"";
        for (key, patterns) in [("data.include", include), ("data.exclude", exclude)] {
            problems.must(patterns.iter().all(|it| !it.is_empty()), key, format!("{patterns:?}"), rule);
        }
        let is_share = *val_fraction > 0.0 && *val_fraction < 1.0;
        problems.must(is_share, "data.val_fraction", val_fraction, "be above 0 and below 1");
        let has_name = cache_dir.as_ref().is_none_or(|dir| !dir.as_os_str().is_empty());
        problems.must(has_name, "data.cache_dir", "\"\"", "name a folder; leave it out for the default one");
        problems.above_zero("data.cache_limit_gib", *cache_limit_gib);
        for (idx, source) in sources.iter().enumerate() {
            source.check_into(&format!("data.sources[{idx}]"), problems);
            if let Some(first) = sources[..idx].iter().position(|it| it.path == source.path)
                && !source.path.as_os_str().is_empty()
            {
                problems.0.push(format!(
                    "data.sources[{idx}].path = \"{}\" is data.sources[{first}] already: raise its weight instead",
                    source.path.display()
                ));
            }
        }
    }
}

impl SourceConfig {
    /// Checks one source, which messages call `key`.
    fn check_into(&self, key: &str, problems: &mut Problems) {
        let Self { path, weight, text_field } = self;
        if path.as_os_str().is_empty() {
            problems.0.push(format!("{key}.path is missing or empty: name a text file or a folder of them"));
        }
        if path == Path::new("-") {
            problems.0.push(format!(
                "{key}.path = \"-\": standard input can only be the one text of data.path; save it to a file first"
            ));
        }
        let rule = format!("be above 0 and at most {MAX_WEIGHT:e}: only how weights compare matters");
        problems.must(*weight > 0.0 && *weight <= MAX_WEIGHT, &format!("{key}.weight"), weight, &rule);
        if let Some(text_field) = text_field {
            check_text_field(problems, &format!("{key}.text_field"), text_field);
        }
    }
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

fn check_text_field(problems: &mut Problems, key: &str, value: &str) {
    let rule = "name the field of a JSON Lines record that holds its text";
    problems.must(!value.is_empty(), key, "\"\"", rule);
}
