//! A corpus: texts on disk, as tokens for training and for validation.
//!
//! A text is read twice: for its hash, length and alphabet, and to encode it into a token file, unless an
//! earlier run with the same text, tokenizer and split has left one.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::cache::{Cache, Temporary};
use super::encode::encode;
use super::reader::{Needs, OnProgress, Purpose, Reader, ignore};
use super::scan::Scan;
use super::source::{self, Source, is_standard_input};
use super::split::SplitPoint;
use super::tokens::{self, Key, Tokens, Width, Writer};
use super::train_tokenizer::train_bpe;
use super::{DataError, Split};
use crate::config::{DataConfig, SourceConfig, TextFormat, TokenizerConfig};
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// Both splits of all texts, and the tokenizer that encoded them.
///
/// Each text is split by length. With a token for each character or byte, the first
/// `floor((1 - val_fraction) * n)` tokens are for training and the others for validation. With other
/// tokenizers it is that share of its bytes, and the rest of the line there.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// The training split; of each text longer than the context length.
    pub train: Split,
    /// The validation split; at least two tokens of each text.
    pub val: Split,
    /// Encodes and decodes the ids.
    pub tokenizer: Tokenizer,
    /// SHA-256 of the text in hexadecimal, wherever it lies; of several texts, that of their hashes.
    pub text_sha256: String,
    /// The texts, one by one.
    pub sources: Vec<SourceSummary>,
}

/// One of the texts of a corpus.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceSummary {
    /// The path in the config; `-` is standard input.
    pub path: PathBuf,
    /// Where the text of standard input is kept, so that its run can go on.
    pub kept: Option<PathBuf>,
    /// Tokens of the training split.
    pub train_tokens: usize,
    /// Tokens of the validation split.
    pub val_tokens: usize,
    /// The share of training windows that are drawn from this text. In (0, 1].
    pub share: f64,
}

impl SourceSummary {
    /// How often each training token of the text is seen on average, when a run draws `drawn_tokens` from all
    /// texts together.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "texts are below 2^52 tokens")]
    pub fn epochs(&self, drawn_tokens: u64) -> f64 {
        self.share * drawn_tokens as f64 / self.train_tokens.max(1) as f64
    }
}

/// The tokenizer of a corpus.
#[derive(Debug, Clone)]
pub enum TokenizerSource<'a> {
    /// Made for the texts, or read from the file that the config names.
    Config(&'a TokenizerConfig),
    /// That of a model that exists.
    Given(Tokenizer),
}

impl<'a> From<&'a TokenizerConfig> for TokenizerSource<'a> {
    fn from(config: &'a TokenizerConfig) -> Self {
        Self::Config(config)
    }
}

impl From<Tokenizer> for TokenizerSource<'_> {
    fn from(tokenizer: Tokenizer) -> Self {
        Self::Given(tokenizer)
    }
}

/// How [`Corpus::open`] opens the texts.
#[derive(Clone, Copy)]
pub struct OpenOptions<'a> {
    /// The [`Corpus::text_sha256`] that the texts had in an earlier run: they must not have changed since, and
    /// a text of standard input is found by it. `None` reads standard input, and keeps it.
    pub earlier: Option<&'a str>,
    /// Called while texts are read.
    pub on_progress: OnProgress<'a>,
}

impl Default for OpenOptions<'_> {
    fn default() -> Self {
        Self { earlier: None, on_progress: &ignore }
    }
}

impl<'a> OpenOptions<'a> {
    /// The texts of an earlier run, by their hash.
    #[must_use]
    pub fn earlier(text_sha256: &'a str) -> Self {
        Self { earlier: Some(text_sha256), ..Self::default() }
    }
}

impl Corpus {
    /// Opens the texts. `tokenizer` is a `&TokenizerConfig` or a [`Tokenizer`]. A character tokenizer's alphabet
    /// is that of all texts, validation included; merges are learned from the training splits alone.
    ///
    /// # Errors
    /// If a text cannot be read, is empty, not UTF-8 (except for bytes), too short for the context length, has
    /// characters that a given tokenizer lacks, or differs from the earlier one; if the tokenizer cannot be made
    /// or the token file cannot be written; and if `on_progress` stops it.
    pub fn open<'t>(
        data: &DataConfig,
        tokenizer: impl Into<TokenizerSource<'t>>,
        context_length: usize,
        options: OpenOptions<'_>,
    ) -> Result<Self, DataError> {
        let OpenOptions { earlier, on_progress } = options;
        let cache = Cache::open(data)?;
        let standard_input = earlier.map_or(StandardInput::Keep, StandardInput::Kept);
        let texts = |needs| {
            let texts = open_texts(data, needs, &cache, standard_input, on_progress)?;
            match earlier {
                Some(earlier) if earlier != text_sha256(&texts) => {
                    let paths = texts.into_iter().map(|text| text.source.path).collect();
                    Err(DataError::OtherText { paths })
                }
                _ => Ok(texts),
            }
        };
        let with_existing = |tokenizer: Tokenizer| Ok::<_, DataError>((texts(Needs::of(&tokenizer))?, tokenizer));
        let (texts, tokenizer) = match tokenizer.into() {
            TokenizerSource::Given(tokenizer) => with_existing(tokenizer)?,
            TokenizerSource::Config(config) => match config.kind {
                TokenizerKind::Byte => with_existing(Tokenizer::byte())?,
                TokenizerKind::File => {
                    let path = config.path.as_deref().unwrap_or(Path::new(""));
                    with_existing(Tokenizer::from_file(path).map_err(DataError::Tokenizer)?)?
                }
                TokenizerKind::Char => {
                    let texts = texts(Needs::CHARACTERS)?;
                    let alphabets = texts.iter().flat_map(|text| text.scan.alphabet.chars());
                    let tokenizer = Tokenizer::char_from_alphabet(alphabets);
                    (texts, tokenizer.map_err(DataError::Alphabet)?)
                }
                TokenizerKind::Bpe => {
                    let (vocab_size, texts) = (config.bpe_vocab_size(), texts(Needs::PIECES)?);
                    let tokenizer = train_bpe(vocab_size, &texts, data.val_fraction, &cache, on_progress)?;
                    (texts, tokenizer)
                }
            },
        };
        Self::build(data, &cache, &texts, tokenizer, context_length, on_progress)
    }

    fn build(
        data: &DataConfig,
        cache: &Cache,
        texts: &[Text],
        tokenizer: Tokenizer,
        context_length: usize,
        on_progress: OnProgress<'_>,
    ) -> Result<Self, DataError> {
        let (mut train, mut val) = (Vec::new(), Vec::new());
        for text in texts {
            let check =
                |n_train: u64, n_val: u64| check_lengths(&text.source.path, n_train, n_val, data, context_length);
            check_characters(text, &tokenizer)?;
            if let SplitPoint::Bytes(n) | SplitPoint::Characters(n) = text.split_point {
                check(n, text.scan.n_units - n)?; // before a long text is encoded
            }
            let halves = tokens_of(text, &tokenizer, data.val_fraction, cache, on_progress)?;
            check(halves.0.len() as u64, halves.1.len() as u64)?;
            train.push((halves.0, text.weight));
            val.push((halves.1, text.weight));
        }
        cache.clean_up();
        let (train, val) = (Split::new(train), Split::new(val));
        let lengths = train.texts().zip(val.texts()).zip(train.shares());
        let sources = texts.iter().zip(lengths).map(|(text, ((train, val), share))| SourceSummary {
            path: text.source.path.clone(),
            kept: text.kept.clone(),
            train_tokens: train.len(),
            val_tokens: val.len(),
            share,
        });
        let sources = sources.collect();
        Ok(Self { sources, train, val, tokenizer, text_sha256: text_sha256(texts) })
    }
}

/// The tokens of a whole text without splits: a file, a folder, or `-` for standard input. `data` says where
/// token files are kept, which field of a record is text, and whether standard input is records.
///
/// # Errors
/// As for [`Corpus::open`], and if the text is shorter than two tokens.
pub fn open_text(path: &Path, data: &DataConfig, tokenizer: &Tokenizer) -> Result<Split, DataError> {
    let format = match is_standard_input(path) {
        true => data.format, // there is no name that tells
        false => TextFormat::default(),
    };
    let data = DataConfig { path: path.to_owned(), sources: Vec::new(), format, ..data.clone() };
    let cache = Cache::open(&data)?;
    let needs = Needs::of(tokenizer);
    let mut texts = open_texts(&data, needs, &cache, StandardInput::Once, &ignore)?;
    let text = &mut texts[0];
    check_characters(text, tokenizer)?;
    text.split_point = SplitPoint::START;
    let (_, tokens) = tokens_of(text, tokenizer, 1.0, &cache, &ignore)?;
    cache.clean_up();
    if tokens.len() < 2 {
        return Err(DataError::TooShort { path: path.to_owned(), n_tokens: tokens.len() as u64 });
    }
    Ok(tokens.into())
}

/// A text that was scanned.
#[derive(Debug)]
pub(super) struct Text {
    pub source: Source,
    pub scan: Scan,
    pub split_point: SplitPoint,
    /// How often windows are drawn from it, relative to the others.
    weight: f64,
    /// Where it is kept, if it came through standard input.
    kept: Option<PathBuf>,
    /// Standard input that is not kept: the file is removed with this value.
    _received: Option<Temporary>,
}

/// How a text of standard input is read.
#[derive(Debug, Clone, Copy)]
enum StandardInput<'a> {
    /// Read now, and kept.
    Keep,
    /// Read now, and not needed again.
    Once,
    /// Read by an earlier run, which kept it under this hash.
    Kept(&'a str),
}

/// Finds and scans all texts of a config, in their order.
fn open_texts(
    data: &DataConfig,
    needs: Needs,
    cache: &Cache,
    standard_input: StandardInput<'_>,
    on_progress: OnProgress<'_>,
) -> Result<Vec<Text>, DataError> {
    let scanned = |source: Source, config: &SourceConfig| {
        let scan = Scan::read(&source, needs, on_progress)?;
        let split_point = SplitPoint::of(data.val_fraction, needs.unit, scan.n_units);
        let weight = config.weight;
        Ok(Text { source, scan, split_point, weight, kept: None, _received: None })
    };
    let configs = data.all_sources();
    let config = &configs[0];
    if configs.len() > 1 || !is_standard_input(&config.path) {
        let sources = Source::find_all(&configs)?;
        sources.iter().try_for_each(|source| cache.check_apart(source))?;
        return sources.into_iter().zip(&configs).map(|(s, config)| scanned(s, config)).collect();
    }
    if let StandardInput::Kept(text_sha256) = standard_input {
        let path = cache.kept_text(text_sha256);
        if !path.is_file() {
            return Err(DataError::NotKept { path });
        }
        let text = scanned(Source::of_standard_input(config, &path), config)?;
        return Ok(vec![Text { kept: Some(path), ..text }]);
    }
    let received = source::receive(config, cache, on_progress)?;
    let mut text = scanned(Source::of_standard_input(config, received.path()), config)?;
    let StandardInput::Keep = standard_input else {
        return Ok(vec![Text { _received: Some(received), ..text }]);
    };
    let kept = source::keep(received, cache, &text_sha256(std::slice::from_ref(&text)))?;
    text.source.files[0].path.clone_from(&kept);
    Ok(vec![Text { kept: Some(kept), ..text }])
}

/// The hash of a text, in hexadecimal, or of the hashes of several.
fn text_sha256(texts: &[Text]) -> String {
    let hash = match texts {
        [text] => text.scan.hash,
        texts => {
            let mut hash = Sha256::new();
            for text in texts {
                hash.update(text.scan.hash);
            }
            hash.finalize().into()
        }
    };
    let mut digits = String::with_capacity(2 * hash.len());
    for byte in hash {
        write!(digits, "{byte:02x}").expect("writing to a string cannot fail");
    }
    digits
}

/// Opens the token file of a text, which is written first if it is missing.
fn tokens_of(
    text: &Text,
    tokenizer: &Tokenizer,
    val_fraction: f64,
    cache: &Cache,
    on_progress: OnProgress<'_>,
) -> Result<(Tokens, Tokens), DataError> {
    let key = key_of(text, tokenizer, val_fraction);
    let width = Width::of_vocabulary(tokenizer.vocab_size());
    let path = cache.path(&key, "tokens");
    if let Some(halves) = tokens::open(&path, &key, width) {
        return Ok(halves);
    }
    let fail = |source| DataError::cache(&path, source);
    let temporary = Temporary::create(&cache.folder).map_err(fail)?;
    let mut writer = Writer::create(temporary, &path, width).map_err(fail)?;
    let reader = Reader::new(&text.source, Needs::of(tokenizer));
    let reader = reader.with_progress(on_progress, Purpose::Encode, Some(text.scan.bytes));
    let (lengths, hash) = encode(reader, tokenizer, text.split_point, &mut writer)?;
    if hash != text.scan.hash || lengths.bytes != text.scan.bytes {
        return Err(DataError::Changed { path: text.source.path.clone() });
    }
    writer.finish(&key, lengths).map_err(fail)?;
    tokens::open(&path, &key, width).ok_or_else(|| {
        let reason = "the file that was written just now cannot be mapped";
        DataError::cache(&path, std::io::Error::other(reason))
    })
}

/// The version of splitting and encoding: token files of other versions are not used.
const RULES: &[u8] = concat!("tokens 1, tinderbox ", env!("CARGO_PKG_VERSION")).as_bytes();

/// The hash of everything that the ids and their split follow from.
fn key_of(text: &Text, tokenizer: &Tokenizer, val_fraction: f64) -> Key {
    let mut hash = Sha256::new();
    hash.update(Sha256::digest(RULES));
    hash.update(text.scan.hash);
    hash.update(Sha256::digest(tokenizer.to_json()));
    hash.update(val_fraction.to_le_bytes());
    hash.finalize().into()
}

/// Names all characters that the tokenizer lacks, not only those of the first piece.
fn check_characters(text: &Text, tokenizer: &Tokenizer) -> Result<(), DataError> {
    match tokenizer.encode(&text.scan.alphabet) {
        Ok(_) => Ok(()),
        Err(source) => Err(DataError::Encode { path: text.source.path.clone(), source }),
    }
}

/// Whether training has more than a window, and validation something to predict.
pub(super) fn check_lengths(
    path: &Path,
    n_train: u64,
    n_val: u64,
    data: &DataConfig,
    context_length: usize,
) -> Result<(), DataError> {
    let path = path.to_owned();
    let n_tokens = n_train + n_val;
    if n_train <= context_length as u64 {
        return Err(DataError::TrainTooShort { path, n_tokens, n_train, context_length });
    }
    if n_val < 2 {
        let val_fraction = data.val_fraction;
        return Err(DataError::ValTooShort { path, n_tokens, n_val, val_fraction });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::SourceConfig;

    /// A text, and a folder for its token files.
    struct Fixture {
        folder: tempfile::TempDir,
        data: DataConfig,
    }

    impl Fixture {
        fn new(text: impl AsRef<[u8]>) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("text.txt");
            fs::write(&path, text).unwrap();
            let cache_dir = Some(folder.path().join("cache/tokens"));
            Self { folder, data: DataConfig { path, cache_dir, ..DataConfig::default() } }
        }

        fn open(&self, kind: TokenizerKind, context_length: usize) -> Result<Corpus, DataError> {
            open(&self.data, kind, context_length)
        }

        fn token_files(&self) -> Vec<PathBuf> {
            let entries = fs::read_dir(self.data.cache_dir.as_ref().unwrap()).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            paths.filter(|path| path.extension().is_some_and(|it| it == "tokens")).collect()
        }
    }

    fn open(data: &DataConfig, kind: TokenizerKind, n: usize) -> Result<Corpus, DataError> {
        let config = TokenizerConfig { kind, ..TokenizerConfig::default() };
        Corpus::open(data, &config, n, OpenOptions::default())
    }

    fn ids(split: &Split) -> Vec<u32> {
        let tokens = split.only().unwrap();
        let mut ids = vec![0; tokens.len()];
        tokens.read(0, &mut ids);
        ids.into_iter().map(i32::cast_unsigned).collect()
    }

    fn text(corpus: &Corpus) -> (String, String) {
        let decode = |split| corpus.tokenizer.decode(&ids(split));
        (decode(&corpus.train), decode(&corpus.val))
    }

    #[test]
    fn characters_are_split_by_their_number() {
        let fixture = Fixture::new("\u{e9}".repeat(10) + &"ab".repeat(5) + "\u{1f525}");
        let corpus = fixture.open(TokenizerKind::Char, 17).unwrap();
        assert_eq!(corpus.tokenizer.vocab_size(), 4);
        // 21 characters, of which int(0.9 * 21) = 18 are for training.
        let (train, val) = text(&corpus);
        assert_eq!(train, "\u{e9}".repeat(10) + "abababab");
        assert_eq!(val, "ab\u{1f525}");
        assert_eq!((corpus.train.bytes(), corpus.val.bytes()), (28, 6));
    }

    #[test]
    fn bytes_need_not_be_text() {
        let bytes: Vec<u8> = (0..=255).rev().collect();
        let corpus = Fixture::new(&bytes).open(TokenizerKind::Byte, 100).unwrap();
        assert_eq!((corpus.train.len(), corpus.val.len()), (230, 26));
        let both = [ids(&corpus.train), ids(&corpus.val)].concat();
        assert_eq!(both, bytes.into_iter().map(u32::from).collect::<Vec<_>>());
        assert_eq!((corpus.train.bytes(), corpus.val.bytes()), (230, 26));
    }

    #[test]
    fn a_second_start_reads_the_token_file() {
        let fixture = Fixture::new("hello, hello, hello");
        fixture.open(TokenizerKind::Char, 4).unwrap();
        let [path] = &fixture.token_files()[..] else { panic!("one token file") };
        let good = fs::read(path).unwrap();
        let mut marked = good.clone();
        *marked.last_mut().unwrap() = 1; // the high byte of the last id
        fs::write(path, &marked).unwrap();
        let corpus = fixture.open(TokenizerKind::Char, 4).unwrap();
        assert_eq!(*ids(&corpus.val).last().unwrap(), 256 + 5);

        // A truncated one is written again, and nothing else is left behind.
        fs::write(path, &good[..good.len() - 1]).unwrap();
        let corpus = fixture.open(TokenizerKind::Char, 4).unwrap();
        assert_eq!(text(&corpus).1, "lo");
        assert_eq!(fs::read(path).unwrap(), good);
        assert_eq!(fixture.token_files().len(), 1);
    }

    #[test]
    fn different_ids_have_different_files() {
        let mut fixture = Fixture::new("hello, hello, hello");
        fixture.open(TokenizerKind::Char, 4).unwrap();
        fixture.open(TokenizerKind::Byte, 4).unwrap();
        assert_eq!(fixture.token_files().len(), 2);
        fixture.data.val_fraction = 0.2;
        fixture.open(TokenizerKind::Char, 4).unwrap();
        assert_eq!(fixture.token_files().len(), 3);
        fs::write(&fixture.data.path, "hello, hello, hellO").unwrap();
        fixture.open(TokenizerKind::Char, 4).unwrap();
        assert_eq!(fixture.token_files().len(), 4);
        fixture.open(TokenizerKind::Char, 5).unwrap();
        assert_eq!(fixture.token_files().len(), 4);
    }

    #[test]
    fn starts_at_the_same_time_do_not_disturb_each_other() {
        let content = "to be or n\u{f6}t to be ".repeat(40_000); // several chunks
        let fixture = Fixture::new(&content);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let corpus = fixture.open(TokenizerKind::Char, 64).unwrap();
                    let (train, val) = text(&corpus);
                    assert!(train + &val == content);
                });
            }
        });
        assert_eq!(fixture.token_files().len(), 1);
    }

    #[test]
    fn a_given_tokenizer_is_kept_and_an_earlier_text_checked() {
        let fixture = Fixture::new("abcabcabcabcabc");
        let tokenizer = |alphabet: &str| Tokenizer::char_from_alphabet(alphabet.chars()).unwrap();
        let open = |alphabet, options| Corpus::open(&fixture.data, tokenizer(alphabet), 4, options);
        let corpus = open("abcxyz", OpenOptions::default()).unwrap();
        assert_eq!(corpus.tokenizer.vocab_size(), 6);
        let error = open("ax", OpenOptions::default()).unwrap_err().to_string();
        assert!(error.contains("'b' (U+0062), 'c' (U+0063)"), "{error}");
        assert!(error.contains("text.txt"), "{error}");

        let again = || open("abcxyz", OpenOptions::earlier(&corpus.text_sha256));
        assert_eq!(ids(&again().unwrap().val), ids(&corpus.val));
        fs::write(&fixture.data.path, "abcabcabcabcab?").unwrap();
        let error = again().unwrap_err();
        assert!(matches!(error, DataError::OtherText { .. }), "{error}");
        assert!(error.to_string().contains("text.txt` has changed"), "{error}");
    }

    #[test]
    fn a_cache_that_cannot_be_written_or_lies_in_the_text_is_refused() {
        let mut fixture = Fixture::new("hello, hello, hello");
        let folder = fixture.folder.path().to_owned();
        fixture.data.cache_dir = Some(folder.join("text.txt/cache"));
        let error = fixture.open(TokenizerKind::Char, 4).unwrap_err().to_string();
        assert!(error.contains("text.txt/cache") && error.contains("data.cache_dir"), "{error}");

        fixture.data.path = folder.clone();
        fixture.data.cache_dir = Some(folder.join("cache"));
        let error = fixture.open(TokenizerKind::Char, 4).unwrap_err();
        assert!(matches!(error, DataError::CacheInsideText { .. }));
        fixture.data.cache_dir = Some(folder.join(".cache"));
        assert!(fixture.open(TokenizerKind::Char, 4).is_ok());
    }

    #[test]
    fn errors_have_the_numbers() {
        let error = |text: &[u8], context_length| {
            Fixture::new(text).open(TokenizerKind::Char, context_length).unwrap_err().to_string()
        };
        assert!(error(b"", 4).contains("is empty"));
        let short = error(&[b'a'; 100], 90);
        assert!(short.contains("90 of its 100 tokens") && short.contains("at least 91"), "{short}");
        assert!(error(b"aaaaaaaaaa", 4).contains("leaves 1 of its 10 tokens"));
        let not_utf8 = error(b"abc\xff", 1);
        assert!(not_utf8.contains("at byte 3") && not_utf8.contains("kind = \"byte\""));
        assert!(Fixture::new([b'a'; 100]).open(TokenizerKind::Char, 89).is_ok());
    }

    #[test]
    fn merges_are_learned_from_the_training_split_alone() {
        let learned = |last_line: &str| {
            let fixture = Fixture::new("once upon a time\n".repeat(90) + &last_line.repeat(10));
            fixture.open(TokenizerKind::Bpe, 4).unwrap()
        };
        let (one, other) = (learned("once upon a time\n"), learned("zwei drei vier!!\n"));
        assert_eq!(one.tokenizer, other.tokenizer);
        assert_eq!(ids(&one.train), ids(&other.train));
        assert_eq!(text(&other).1, "zwei drei vier!!\n".repeat(10));
        assert_eq!((other.train.bytes(), other.val.bytes()), (90 * 17, 170));
        assert!(ids(&other.val).len() > ids(&one.val).len());
    }

    #[test]
    fn a_trained_tokenizer_is_cached() {
        let fixture = Fixture::new("once upon a time\n".repeat(90));
        let first = fixture.open(TokenizerKind::Bpe, 4).unwrap();
        let kept = || {
            let entries = fs::read_dir(fixture.data.cache_dir.as_ref().unwrap()).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            let mut kept = paths.filter(|path| path.extension().is_some_and(|it| it == "json"));
            let path = kept.next().unwrap();
            assert!(kept.next().is_none());
            path
        };
        let other = Tokenizer::byte().to_json();
        fs::write(kept(), &other).unwrap(); // which shows that it is read
        assert_eq!(fixture.open(TokenizerKind::Bpe, 4).unwrap().tokenizer.to_json(), other);
        fs::write(kept(), &other[..other.len() / 2]).unwrap();
        let again = fixture.open(TokenizerKind::Bpe, 4).unwrap();
        assert_eq!(again.tokenizer, first.tokenizer);
        assert_eq!(fs::read_to_string(kept()).unwrap(), first.tokenizer.to_json());
    }

    #[test]
    fn documents_end_if_the_tokenizer_has_a_token_for_it() {
        let fixture = Fixture::new("");
        let folder = fixture.folder.path().join("sub");
        fs::create_dir(&folder).unwrap();
        let document = "a document of words\n".repeat(5);
        for i in 0..10 {
            fs::write(folder.join(format!("{i}.txt")), &document).unwrap();
        }
        let data = DataConfig { path: folder, ..fixture.data.clone() };
        let corpus = open(&data, TokenizerKind::Bpe, 4).unwrap();
        let end = corpus.tokenizer.end_of_text().unwrap();
        let [train, val] = [&corpus.train, &corpus.val].map(ids);
        let count = |ids: &[u32]| ids.iter().filter(|id| **id == end).count();
        assert_eq!((count(&train), count(&val)), (9, 1));
        assert_eq!((train.last(), val.last()), (Some(&end), Some(&end)));
        assert_eq!(corpus.val.bytes(), document.len() as u64);
        let corpus = open(&data, TokenizerKind::Char, 4).unwrap();
        let (train, val) = text(&corpus);
        assert_eq!(train + &val, document.repeat(10));
    }

    #[test]
    fn several_texts_are_split_one_by_one() {
        let fixture = Fixture::new("");
        let sources = [("a.txt", "abab".repeat(25), 1.0), ("b.txt", "xyz".repeat(100), 3.0)];
        let sources = sources.map(|(name, text, weight)| {
            let path = fixture.folder.path().join(name);
            fs::write(&path, text).unwrap();
            SourceConfig { path, weight, ..SourceConfig::default() }
        });
        let data = DataConfig { path: PathBuf::new(), sources: sources.to_vec(), ..fixture.data.clone() };
        let corpus = open(&data, TokenizerKind::Char, 4).unwrap();
        assert_eq!(corpus.tokenizer.vocab_size(), 5, "the characters of both");
        let lengths = |split: &Split| split.texts().map(Tokens::len).collect::<Vec<_>>();
        assert_eq!(lengths(&corpus.train), [90, 270]);
        assert_eq!(lengths(&corpus.val), [10, 30]);
        let shares: Vec<f64> = corpus.sources.iter().map(|source| source.share).collect();
        assert_eq!(shares, [0.25, 0.75]);
        assert!((corpus.sources[0].epochs(3600) - 10.0).abs() < 1e-9);

        // Each has a token file of its own, which another mixture uses, too.
        assert_eq!(fixture.token_files().len(), 2);
        let turned = DataConfig { sources: sources.iter().rev().cloned().collect(), ..data.clone() };
        let turned = open(&turned, TokenizerKind::Char, 4).unwrap();
        assert_ne!(turned.text_sha256, corpus.text_sha256);
        assert_eq!(fixture.token_files().len(), 2);

        let error = open(&data, TokenizerKind::Char, 95).unwrap_err();
        assert!(error.to_string().contains("a.txt` is too short"), "{error}");
    }

    #[test]
    fn a_text_without_splits_is_encoded_whole() {
        let fixture = Fixture::new("abcabc");
        let tokenizer = Tokenizer::char_from_alphabet("abcxyz".chars()).unwrap();
        let open = || open_text(&fixture.data.path, &fixture.data, &tokenizer);
        assert_eq!(ids(&open().unwrap()), [0, 1, 2, 0, 1, 2]);
        fs::write(&fixture.data.path, "a").unwrap();
        assert!(matches!(open(), Err(DataError::TooShort { n_tokens: 1, .. })));
        fs::write(&fixture.data.path, "a?b!").unwrap();
        let error = open().unwrap_err().to_string();
        assert!(error.contains("'!'") && error.contains("'?'"), "{error}");
    }

    #[test]
    fn a_text_that_changes_while_it_is_read_is_refused() {
        let fixture = Fixture::new("hello, hello, hello");
        let data = &fixture.data;
        let cache = Cache::open(data).unwrap();
        let texts = open_texts(data, Needs::BYTES, &cache, StandardInput::Keep, &ignore).unwrap();
        fs::write(&data.path, "hello, hello, hellO").unwrap();
        let built = Corpus::build(data, &cache, &texts, Tokenizer::byte(), 4, &ignore);
        assert!(matches!(built, Err(DataError::Changed { .. })));
        assert!(fixture.token_files().is_empty());
    }
}
