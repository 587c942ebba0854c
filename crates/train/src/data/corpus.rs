//! Opens texts on disk as training and validation tokens. A text is read twice: for its hash, length and alphabet, and
//! to encode it into a token file, unless an earlier run with the same text, tokenizer and split left one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cache::Cache;
use super::chunk::Needs;
use super::error::about_left_out;
use super::gzip::{gzip_bits_per_byte, sample};
use super::reader::{OnProgress, ignore};
use super::scan::check_lengths;
use super::source::{TextSource, is_standard_input};
use super::split::{Division, SplitPoint};
use super::texts::{Opening, ScannedText, StandardInput, hexadecimal, text_sha256};
use super::train_tokenizer::train_bpe;
use super::{BatchSource, DataError, Split, SplitRecords, Tokens, conversations};
use crate::config::{Config, DataConfig, TextFormat, ValSplit};
use tinderbox_model::tokenizer::{Tokenizer, TokenizerKind, decoded_bytes};

/// Both splits of all texts, and the tokenizer that encoded them.
///
/// Of a text of several files, whole documents are for validation, unless `data.val_split` is `end`. Any other text is
/// split by length. With a token for each character or byte, the first `floor((1 - val_fraction) * n)`
/// tokens are for training and the others for validation. With other tokenizers, training gets that share of the bytes,
/// extended to the end of the line.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// The training split; each text in it is longer than the context length.
    pub train: Split,
    /// The validation split; each text in it has at least two tokens.
    pub val: Split,
    /// Encodes and decodes the ids.
    pub tokenizer: Tokenizer,
    /// Hexadecimal SHA-256 of the text, independent of its path; of several texts, the SHA-256 of their hashes.
    pub text_sha256: String,
    /// A summary of each text.
    pub sources: Vec<SourceSummary>,
    /// The records of a fine-tuning, whose tokens the splits have one after another.
    pub records: Option<SplitRecords>,
}

/// One text of a corpus.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceSummary {
    /// The path in the config; `-` is standard input.
    pub path: PathBuf,
    /// The path of the saved text of standard input, which resuming needs.
    pub kept: Option<PathBuf>,
    /// Tokens of the training split.
    pub train_tokens: usize,
    /// Tokens of the validation split.
    pub val_tokens: usize,
    /// The fraction of training windows that are drawn from this text. In (0, 1].
    pub fraction: f64,
    /// The files of a folder that are left out, since they are not text.
    pub left_out: Vec<PathBuf>,
}

impl SourceSummary {
    /// A line about the files that are left out, if there are some.
    pub fn about_left_out(&self) -> Option<String> {
        (!self.left_out.is_empty()).then(|| about_left_out(&self.left_out))
    }

    /// The average number of times that each training token of the text is seen in a run that draws `drawn_tokens` from
    /// all texts.
    pub fn epochs(&self, drawn_tokens: u64) -> f64 {
        self.fraction * drawn_tokens as f64 / self.train_tokens.max(1) as f64
    }
}

/// The options of [`Corpus::open`].
#[derive(Clone)]
pub struct OpenOptions<'a> {
    /// The tokenizer of an existing model. `None` creates the one that the config describes.
    pub tokenizer: Option<Tokenizer>,
    /// The [`Corpus::text_sha256`] of an earlier run: the texts must match it, and a text of standard input is found by
    /// it. `None` reads standard input and keeps it.
    pub earlier: Option<&'a str>,
    /// Called while texts are read.
    pub on_progress: OnProgress<'a>,
}

impl Default for OpenOptions<'_> {
    fn default() -> Self {
        Self { tokenizer: None, earlier: None, on_progress: &ignore }
    }
}

impl<'a> OpenOptions<'a> {
    /// Options to reopen the texts of an earlier run.
    #[must_use]
    pub fn earlier(tokenizer: &Tokenizer, text_sha256: &'a str) -> Self {
        Self { tokenizer: Some(tokenizer.clone()), earlier: Some(text_sha256), ..Self::default() }
    }
}

impl Corpus {
    /// Opens the texts of a config. A character tokenizer's alphabet is that of all texts, validation included;
    /// merges are learned from the training splits alone.
    pub fn open(config: &Config, options: OpenOptions<'_>) -> Result<Self, DataError> {
        let OpenOptions { tokenizer, earlier, on_progress } = options;
        if !config.data.has_text() {
            return Err(DataError::NoText);
        }
        if let (Some(tokenizer), Some(_)) = (&tokenizer, &config.finetune.base) {
            return Self::of_records(config, tokenizer, earlier, on_progress);
        }
        // A run from before there was this key has none, and keeps its split.
        let old_rule = if earlier.is_some() { ValSplit::End } else { ValSplit::Documents };
        let rule = config.data.val_split.unwrap_or(old_rule);
        let (data, seed) = (&config.data, config.train.seed);
        let opening = Opening { data, rule, seed, cache: Cache::open(data)?, on_progress };
        let kind = config.tokenizer.kind;
        let ending = |tokenizer: Tokenizer| match config.tokenizer.end_of_text {
            true => tokenizer.with_end_of_text(),
            false => tokenizer,
        };
        let existing = match (tokenizer, kind) {
            (None, TokenizerKind::Byte) => Some(ending(Tokenizer::byte())),
            (None, TokenizerKind::File) => {
                let path = config.tokenizer.path.as_deref().unwrap_or(Path::new(""));
                Some(Tokenizer::from_file(path).map_err(DataError::Tokenizer)?)
            }
            (given, _) => given,
        };
        let needs = existing.as_ref().map_or_else(|| Needs::of_config(&config.tokenizer), Needs::of_tokenizer);
        let standard_input = earlier.map_or(StandardInput::Keep, StandardInput::Kept);
        let texts = opening.texts(needs, standard_input)?;
        let text_sha256 = text_sha256(&texts);
        if earlier.is_some_and(|earlier| earlier != text_sha256) {
            return Err(DataError::OtherText { paths: texts.into_iter().map(|text| text.source.path).collect() });
        }
        let tokenizer = match (existing, kind) {
            (Some(tokenizer), _) => tokenizer,
            (None, TokenizerKind::Char) => {
                let alphabets = texts.iter().flat_map(|text| text.scan.alphabet.chars());
                ending(Tokenizer::char_from_alphabet(alphabets).expect("no text is empty"))
            }
            (None, _) => train_bpe(config, &texts, &opening)?,
        };
        let tokenizer = tokenizer.padded_to(config.model.vocab_size).map_err(DataError::Tokenizer)?;
        let weights: f64 = texts.iter().map(|text| text.weight).sum();
        let (mut train, mut val, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for text in texts {
            let check = |n_train: u64, n_val: u64| check_lengths(&text.source.path, n_train, n_val, config);
            check_characters(&text, &tokenizer)?;
            if let Division::At(SplitPoint::Bytes(n) | SplitPoint::Characters(n)) = text.division
                && !needs.documents
            {
                check(n, text.scan.n_units - n)?; // before a long text is encoded
            }
            let halves = opening.tokens(&text, &tokenizer, None)?;
            let (train_tokens, val_tokens) = (halves.0.len(), halves.1.len());
            check(train_tokens as u64, val_tokens as u64)?;
            train.push((halves.0, text.weight));
            val.push((halves.1, text.weight));
            let (kept, fraction) = (text.kept, text.weight / weights);
            let TextSource { path, left_out, .. } = text.source;
            sources.push(SourceSummary { path, kept, train_tokens, val_tokens, fraction, left_out });
        }
        opening.cache.clean_up();
        let (train, val, records) = (Split::new(train), Split::new(val), None);
        Ok(Self { train, val, tokenizer, text_sha256, sources, records })
    }

    fn of_records(
        config: &Config,
        tokenizer: &Tokenizer,
        earlier: Option<&str>,
        on_progress: OnProgress<'_>,
    ) -> Result<Self, DataError> {
        let tokenizer = tokenizer.clone().padded_to(config.model.vocab_size).map_err(DataError::Tokenizer)?;
        let path = config.data.all_sources().swap_remove(0).path;
        let (records, sha256) = conversations::open(config, &tokenizer, on_progress)?;
        let text_sha256 = hexadecimal(&sha256);
        if earlier.is_some_and(|earlier| earlier != text_sha256) {
            return Err(DataError::OtherText { paths: vec![path] });
        }
        let val_bytes = decoded_bytes(&tokenizer, records.val.iter().map(|example| example.ids));
        let train = Tokens::of_records(records.train.clone(), 0); // decoding takes long, and nothing asks
        let val = Tokens::of_records(records.val.clone(), val_bytes);
        let (train_tokens, val_tokens) = (train.len(), val.len());
        let left_out = TextSource::find(&config.data.all_sources()[0])?.left_out;
        let sources = vec![SourceSummary { path, kept: None, train_tokens, val_tokens, fraction: 1.0, left_out }];
        let (train, val, records) = (train.into(), val.into(), Some(records));
        Ok(Self { train, val, tokenizer, text_sha256, sources, records })
    }

    /// The source of training batches.
    pub fn train_batches(&self) -> Arc<dyn BatchSource> {
        match &self.records {
            Some(records) => Arc::new(records.train.clone()),
            None => Arc::new(self.train.clone()),
        }
    }

    /// The source of validation batches.
    pub fn val_batches(&self) -> Arc<dyn BatchSource> {
        match &self.records {
            Some(records) => Arc::new(records.val.clone()),
            None => Arc::new(self.val.clone()),
        }
    }

    /// The mean number of tokens in a row of records; `None` without records.
    pub fn tokens_per_row(&self) -> Option<f64> {
        self.records.as_ref().map(|records| records.train.tokens_per_row())
    }

    /// The number of counted tokens of the validation split per byte of their text.
    pub fn val_tokens_per_byte(&self) -> f64 {
        let [tokens, bytes] = match &self.records {
            Some(SplitRecords { val, .. }) => {
                [val.n_counted() as f64, decoded_bytes(&self.tokenizer, val.counted()) as f64]
            }
            None => [self.val.len() as f64, self.val.bytes() as f64],
        };
        tokens / bytes.max(1.0)
    }

    /// The bits per byte of the validation split, or of its beginning, compressed by gzip; `None` of records.
    pub fn val_gzip_bits_per_byte(&self) -> Option<f64> {
        self.records.is_none().then(|| gzip_bits_per_byte(&sample(&self.val, &self.tokenizer)))
    }
}

/// The tokens of a whole text without splits: a file, a folder, or `-` for standard input, after a BOS token if the
/// tokenizer's files ask for one. `data` says where token files are kept, which field of a record holds the text, and
/// whether standard input holds records.
pub fn open_text(path: &Path, data: &DataConfig, tokenizer: &Tokenizer) -> Result<Split, DataError> {
    let format = if is_standard_input(path) { data.format } else { TextFormat::default() }; // otherwise by name
    let data = &DataConfig { path: path.to_owned(), sources: Vec::new(), format, val_fraction: 1.0, ..data.clone() };
    let opening = Opening { data, rule: ValSplit::End, seed: 0, cache: Cache::open(data)?, on_progress: &ignore };
    let mut texts = opening.texts(Needs::of_tokenizer(tokenizer), StandardInput::Once)?;
    let text = &mut texts[0];
    check_characters(text, tokenizer)?;
    text.division = Division::At(SplitPoint::START);
    let (_, tokens) = opening.tokens(text, tokenizer, tokenizer.bos())?;
    opening.cache.clean_up();
    if tokens.len() < 2 {
        return Err(DataError::TooShort { path: path.to_owned(), n_tokens: tokens.len() as u64 });
    }
    Ok(tokens.into())
}

/// Names all characters that the tokenizer lacks, not only those of the first piece.
fn check_characters(text: &ScannedText, tokenizer: &Tokenizer) -> Result<(), DataError> {
    let encoded = tokenizer.encode(&text.scan.alphabet);
    encoded.map(drop).map_err(|source| DataError::Encode { path: text.source.path.clone(), source })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;

    use super::super::fixtures;
    use super::super::reader::Purpose;
    use super::*;
    use crate::config::SourceConfig;

    struct Fixture {
        folder: tempfile::TempDir,
        config: Config,
    }

    impl Fixture {
        fn new(text: impl AsRef<[u8]>) -> Self {
            let folder = fixtures::folder([("text.txt", text.as_ref())]);
            let mut config = Config::default();
            config.data.path = folder.path().join("text.txt");
            config.data.cache_dir = Some(folder.path().join("cache/tokens"));
            config.model.context_length = 4;
            Self { folder, config }
        }

        fn open(&self, kind: TokenizerKind) -> Result<Corpus, DataError> {
            let mut config = self.config.clone();
            config.tokenizer.kind = kind;
            Corpus::open(&config, OpenOptions::default())
        }

        fn kept(&self, extension: &str) -> Vec<PathBuf> {
            let entries = fs::read_dir(self.config.data.cache_dir.as_ref().unwrap()).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            paths.filter(|path| path.extension().is_some_and(|it| it == extension)).collect()
        }
    }

    fn ids(split: &Split) -> Vec<u32> {
        fixtures::ids(split.texts().next().unwrap())
    }

    /// The inode number of a file, which changes when the file is replaced.
    fn file_number(path: &Path) -> u64 {
        #[cfg(unix)]
        return std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        #[cfg(not(unix))]
        return u64::from(path.is_file());
    }

    fn text(corpus: &Corpus) -> (String, String) {
        let decode = |split| corpus.tokenizer.decode(&ids(split));
        (decode(&corpus.train), decode(&corpus.val))
    }

    #[test]
    fn cached_files_are_reused_unless_damaged() {
        for (kind, extension) in [(TokenizerKind::Char, "tokens"), (TokenizerKind::Bpe, "json")] {
            let fixture = Fixture::new("once upon a time\n".repeat(90));
            let opened = || {
                let corpus = fixture.open(kind).unwrap();
                (corpus.tokenizer.clone(), ids(&corpus.val))
            };
            let first = opened();
            let [path] = &fixture.kept(extension)[..] else { panic!("one file") };
            let (good, number) = (fs::read(path).unwrap(), file_number(path));
            opened();
            assert_eq!(file_number(path), number, "the file is the same");
            let mut changed = good.clone();
            *changed.last_mut().unwrap() = 1;
            let other = Tokenizer::byte().to_json();
            for damaged in [&changed[..], &good[..good.len() - 1], other.as_bytes()] {
                fs::write(path, damaged).unwrap();
                assert_eq!(opened(), first);
                assert_eq!(fs::read(path).unwrap(), good);
                assert_eq!(fixture.kept(extension).len(), 1);
            }
        }
    }

    #[test]
    fn different_ids_have_different_files() {
        let mut fixture = Fixture::new("hello, hello, hello");
        let n_files = |fixture: &Fixture, kind| {
            fixture.open(kind).unwrap();
            fixture.kept("tokens").len()
        };
        assert_eq!(n_files(&fixture, TokenizerKind::Char), 1);
        assert_eq!(n_files(&fixture, TokenizerKind::Byte), 2);
        fixture.config.data.val_fraction = 0.2;
        assert_eq!(n_files(&fixture, TokenizerKind::Char), 3);
        fs::write(&fixture.config.data.path, "hello, hello, hellO").unwrap();
        assert_eq!(n_files(&fixture, TokenizerKind::Char), 4);
        fixture.config.model.context_length = 5;
        assert_eq!(n_files(&fixture, TokenizerKind::Char), 4);
    }

    #[test]
    fn concurrent_starts_do_not_interfere() {
        let content = "to be or n\u{f6}t to be ".repeat(40_000); // several chunks
        let fixture = Fixture::new(&content);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let (train, val) = text(&fixture.open(TokenizerKind::Char).unwrap());
                    assert!(train + &val == content);
                });
            }
        });
        assert_eq!(fixture.kept("tokens").len(), 1);
    }

    #[test]
    fn corpus_refuses_unwritable_cache_or_cache_in_text() {
        let mut fixture = Fixture::new("hello, hello, hello");
        let folder = fixture.folder.path().to_owned();
        fixture.config.data.cache_dir = Some(folder.join("text.txt/cache"));
        let error = fixture.open(TokenizerKind::Char).unwrap_err().to_string();
        assert!(error.contains("text.txt/cache") && error.contains("data.cache_dir"), "{error}");

        fixture.config.data.path = folder.clone();
        fixture.config.data.cache_dir = Some(folder.join("cache"));
        let error = fixture.open(TokenizerKind::Char).unwrap_err();
        assert!(matches!(error, DataError::CacheInsideText { .. }));
        fixture.config.data.cache_dir = Some(folder.join(".cache"));
        assert!(fixture.open(TokenizerKind::Char).is_ok());
    }

    #[test]
    fn length_errors_state_numbers() {
        let open = |n: usize, context_length| {
            let mut fixture = Fixture::new("a".repeat(n));
            fixture.config.model.context_length = context_length;
            fixture.open(TokenizerKind::Char).map_err(|error| error.to_string())
        };
        let error = open(100, 90).unwrap_err();
        assert!(error.contains("90 of its 100 tokens") && error.contains("at least 91"), "{error}");
        assert!(open(100, 89).is_ok());
        let error = open(10, 4).unwrap_err();
        assert!(error.contains("leaves 1 of its 10 tokens"), "{error}");
    }

    #[test]
    fn merges_are_learned_from_training_split_only() {
        let learned = |last_line: &str| {
            let fixture = Fixture::new("once upon a time\n".repeat(90) + &last_line.repeat(10));
            fixture.open(TokenizerKind::Bpe).unwrap()
        };
        let (one, other) = (learned("once upon a time\n"), learned("zwei drei vier!!\n"));
        assert_eq!(one.tokenizer, other.tokenizer);
        assert_eq!(ids(&one.train), ids(&other.train));
        assert_eq!(text(&other).1, "zwei drei vier!!\n".repeat(10));
        assert_eq!((other.train.bytes(), other.val.bytes()), (90 * 17, 170));
        assert!(ids(&other.val).len() > ids(&one.val).len());
    }

    #[test]
    fn several_texts_are_split_one_by_one() {
        let mut fixture = Fixture::new("");
        let sources = [("a.txt", "abab".repeat(25), 1.0), ("b.txt", "xyz".repeat(100), 3.0)];
        let sources = sources.map(|(name, text, weight)| {
            let path = fixture.folder.path().join(name);
            fs::write(&path, text).unwrap();
            SourceConfig { path, weight, ..SourceConfig::default() }
        });
        fixture.config.data.path = PathBuf::new();
        fixture.config.data.sources = sources.to_vec();
        let corpus = fixture.open(TokenizerKind::Char).unwrap();
        assert_eq!(corpus.tokenizer.vocab_size(), 5, "the characters of both");
        let lengths = |split: &Split| split.texts().map(Tokens::len).collect::<Vec<_>>();
        assert_eq!((lengths(&corpus.train), lengths(&corpus.val)), (vec![90, 270], vec![10, 30]));
        let shares: Vec<f64> = corpus.sources.iter().map(|source| source.fraction).collect();
        assert_eq!(shares, [0.25, 0.75]);
        assert!((corpus.sources[0].epochs(3600) - 10.0).abs() < 1e-9);

        // Each text has its own token file, which other mixtures reuse.
        assert_eq!(fixture.kept("tokens").len(), 2);
        fixture.config.data.sources.reverse();
        assert_ne!(fixture.open(TokenizerKind::Char).unwrap().text_sha256, corpus.text_sha256);
        assert_eq!(fixture.kept("tokens").len(), 2);

        fixture.config.model.context_length = 95;
        let error = fixture.open(TokenizerKind::Char).unwrap_err().to_string();
        assert!(error.contains("a.txt` is too short"), "{error}");
    }

    #[test]
    fn text_without_splits_is_encoded_whole() {
        let fixture = Fixture::new("abcabc");
        let tokenizer = Tokenizer::char_from_alphabet("abcxyz".chars()).unwrap();
        let open = || open_text(&fixture.config.data.path, &fixture.config.data, &tokenizer);
        assert_eq!(ids(&open().unwrap()), [0, 1, 2, 0, 1, 2]);
        fs::write(&fixture.config.data.path, "a").unwrap();
        assert!(matches!(open(), Err(DataError::TooShort { n_tokens: 1, .. })));
        fs::write(&fixture.config.data.path, "a?b!").unwrap();
        let error = open().unwrap_err().to_string();
        assert!(error.contains("'!'") && error.contains("'?'"), "{error}");
    }

    #[test]
    fn corpus_refuses_text_that_changes_while_read() {
        let fixture = Fixture::new("hello, hello, hello");
        let on_progress: OnProgress<'_> = &|reading| {
            if reading.purpose == Purpose::Encode {
                fs::write(reading.path, "hello, hello, helol").unwrap();
            }
            ControlFlow::Continue(())
        };
        let opened = Corpus::open(&fixture.config, OpenOptions { on_progress, ..OpenOptions::default() });
        assert!(matches!(opened, Err(DataError::Changed { .. })));
        assert!(fixture.kept("tokens").is_empty());
    }
}
