//! A corpus: texts on disk, as tokens for training and for validation.
//!
//! A text is read twice. The first time tells what it is: its hash, its length and its alphabet.
//! The second time encodes it into a token file, unless an earlier run of the same text, tokenizer
//! and split has left one.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::cache::{Cache, Temporary, cache_error};
use super::divide::Place;
use super::progress::{self, OnProgress, Purpose};
use super::reader::{Needs, Reader, Unit};
use super::standard_input;
use super::store::{self, Key, Writer};
use super::summary::SourceSummary;
use super::text::{self, StandardInput, Text, text_sha256};
use super::tokens::{Tokens, Width};
use super::{DataError, Split, encode, learn};
use crate::config::{DataConfig, TextFormat, TokenizerConfig};
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// Both splits of all texts, and the tokenizer that encoded them.
///
/// The split is by length, text by text. With a token for each character or byte, the first
/// `floor((1 - val_fraction) * n)` tokens of a text are for training and the others for validation.
/// With other tokenizers it is as many of its bytes, and what is left of the line there.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// What is learned from; of each text longer than the context that was asked for.
    pub train: Split,
    /// What is only predicted; at least two tokens of each text.
    pub val: Split,
    /// What the ids mean.
    pub tokenizer: Tokenizer,
    /// SHA-256 of the text, in hexadecimal: the same text has the same one wherever it lies. Of
    /// several texts, that of their hashes.
    pub text_sha256: String,
    /// The texts, one by one.
    pub sources: Vec<SourceSummary>,
}

/// The tokenizer of a corpus: a new one as a config says, or one that exists.
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
        Self { earlier: None, on_progress: &progress::ignore }
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
        let tokenizer = tokenizer.into();
        let existing = match &tokenizer {
            TokenizerSource::Given(tokenizer) => Some(tokenizer.clone()),
            TokenizerSource::Config(config) => match config.kind {
                TokenizerKind::Byte => Some(Tokenizer::byte()),
                TokenizerKind::File => {
                    let path = config.path.as_deref().unwrap_or(Path::new(""));
                    Some(Tokenizer::from_file(path).map_err(DataError::Tokenizer)?)
                }
                TokenizerKind::Char | TokenizerKind::Bpe => None,
            },
        };
        let needs = match (&existing, &tokenizer) {
            (Some(tokenizer), _) => Needs::of(tokenizer),
            (None, TokenizerSource::Config(config)) if config.kind == TokenizerKind::Bpe => {
                Needs::of_new_bpe()
            }
            (None, _) => Needs::of_new_char(),
        };
        let standard_input = earlier.map_or(StandardInput::Keep, StandardInput::Kept);
        let texts = text::all(data, needs, &cache, standard_input, on_progress)?;
        if earlier.is_some_and(|earlier| earlier != text_sha256(&texts)) {
            let paths = texts.into_iter().map(|text| text.source.path).collect();
            return Err(DataError::OtherText { paths });
        }
        let tokenizer = match (existing, tokenizer) {
            (Some(tokenizer), _) => tokenizer,
            (None, TokenizerSource::Config(config)) if config.kind == TokenizerKind::Bpe => {
                let vocab_size = config.bpe_vocab_size();
                learn::bpe(vocab_size, &texts, data.val_fraction, &cache, on_progress)?
            }
            (None, _) => learn::characters(&texts)?,
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
            check_characters(text, &tokenizer)?;
            check_length_early(text, &tokenizer, data, context_length)?;
            let halves = tokens_of(text, &tokenizer, data.val_fraction, cache, on_progress)?;
            check_length(text, &halves, data, context_length)?;
            train.push((halves.0, text.weight));
            val.push((halves.1, text.weight));
        }
        cache.tidy_up();
        let (train, val) = (Split::new(train), Split::new(val));
        let lengths = train.texts().zip(val.texts()).zip(train.shares());
        let sources = texts.iter().zip(lengths);
        let sources = sources.map(|(text, ((train, val), share))| SourceSummary {
            path: text.source.path.clone(),
            kept: text.kept.clone(),
            train_tokens: train.len(),
            val_tokens: val.len(),
            share,
        });
        Ok(Self {
            sources: sources.collect(),
            train,
            val,
            tokenizer,
            text_sha256: text_sha256(texts),
        })
    }
}

/// The tokens of a text of its own, all of it: a file, a folder, or `-` for standard input. `data`
/// says where token files are kept, which field of a record is text, and whether standard input is records.
///
/// # Errors
/// As for [`Corpus::open`], and if there is nothing to predict.
pub fn open_text(
    path: &Path,
    data: &DataConfig,
    tokenizer: &Tokenizer,
) -> Result<Split, DataError> {
    let data = DataConfig {
        path: path.to_owned(),
        sources: Vec::new(),
        format: match standard_input::is_meant(path) {
            true => data.format, // no name tells
            false => TextFormat::default(),
        },
        ..data.clone()
    };
    let cache = Cache::open(&data)?;
    let mut texts =
        text::all(&data, Needs::of(tokenizer), &cache, StandardInput::Once, &progress::ignore)?;
    let text = &mut texts[0];
    check_characters(text, tokenizer)?;
    text.place = Place::beginning();
    let (_, tokens) = tokens_of(text, tokenizer, 1.0, &cache, &progress::ignore)?;
    cache.tidy_up();
    if tokens.len() < 2 {
        return Err(DataError::TooShort { path: path.to_owned(), n_tokens: tokens.len() as u64 });
    }
    Ok(tokens.into())
}

/// Opens the token file of this text, and writes it first where there is none.
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
    if let Some(halves) = store::open(&path, &key, width) {
        return Ok(halves);
    }
    let failed = |source| cache_error(&path, source);
    let temporary = Temporary::create(cache.folder()).map_err(failed)?;
    let mut writer = Writer::create(temporary, &path, width).map_err(failed)?;
    let reader = Reader::new(&text.source, Needs::of(tokenizer));
    let reader = reader.with_progress(on_progress, Purpose::Encode, Some(text.survey.bytes));
    let (extent, hash) = encode::encode(reader, tokenizer, text.place, &mut writer)?;
    if hash != text.survey.hash || extent.bytes != text.survey.bytes {
        return Err(DataError::Changed { path: text.source.path.clone() });
    }
    writer.finish(&key, extent).map_err(failed)?;
    store::open(&path, &key, width).ok_or_else(|| {
        let reason = "the file that was written just now cannot be mapped";
        cache_error(&path, std::io::Error::other(reason))
    })
}

/// Says by which rules texts were split and encoded: token files of others are not used.
const RULES: &[u8] = concat!("tokens 1, tinderbox ", env!("CARGO_PKG_VERSION")).as_bytes();

/// Everything that the ids and their split follow from.
fn key_of(text: &Text, tokenizer: &Tokenizer, val_fraction: f64) -> Key {
    let mut hash = Sha256::new();
    hash.update(Sha256::digest(RULES));
    hash.update(text.survey.hash);
    hash.update(Sha256::digest(tokenizer.to_json()));
    hash.update(val_fraction.to_le_bytes());
    hash.finalize().into()
}

/// Names all characters that the tokenizer does not know, not only those of the first piece.
fn check_characters(text: &Text, tokenizer: &Tokenizer) -> Result<(), DataError> {
    match tokenizer.encode(&text.survey.alphabet) {
        Ok(_) => Ok(()),
        Err(source) => Err(DataError::Encode { path: text.source.path.clone(), source }),
    }
}

/// Does what [`check_length`] does before the text is encoded, where that can be known.
fn check_length_early(
    text: &Text,
    tokenizer: &Tokenizer,
    data: &DataConfig,
    context_length: usize,
) -> Result<(), DataError> {
    let n_train = match (Needs::of(tokenizer).unit, text.place) {
        (Unit::Piece, _) | (_, Place::LineEnd { .. }) => return Ok(()),
        (_, Place::Bytes(n) | Place::Characters(n)) => n,
    };
    check_numbers(&text.source.path, n_train, text.survey.n_units - n_train, data, context_length)
}

fn check_length(
    text: &Text,
    (train, val): &(Tokens, Tokens),
    data: &DataConfig,
    context_length: usize,
) -> Result<(), DataError> {
    let (n_train, n_val) = (train.len() as u64, val.len() as u64);
    check_numbers(&text.source.path, n_train, n_val, data, context_length)
}

/// Whether there is something to learn from, and something to predict.
pub(super) fn check_numbers(
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
        return Err(DataError::ValTooShort {
            path,
            n_tokens,
            n_val,
            val_fraction: data.val_fraction,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

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
            Corpus::open(&self.data, &of_kind(kind), context_length, OpenOptions::default())
        }

        fn token_files(&self) -> Vec<PathBuf> {
            let entries = fs::read_dir(self.data.cache_dir.as_ref().unwrap()).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            paths.filter(|path| path.extension().is_some_and(|it| it == "tokens")).collect()
        }
    }

    fn of_kind(kind: TokenizerKind) -> TokenizerConfig {
        TokenizerConfig { kind, ..TokenizerConfig::default() }
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
    fn a_text_of_several_chunks_comes_back() {
        let long: String =
            (0..400_000).map(|i| if i % 7 == 0 { '\u{4e00}' } else { 'x' }).collect();
        let long = long.repeat(3) + "end";
        let corpus = Fixture::new(&long).open(TokenizerKind::Char, 64).unwrap();
        let (train, val) = text(&corpus);
        assert_eq!(
            (train.len() as u64, val.len() as u64),
            (corpus.train.bytes(), corpus.val.bytes())
        );
        assert!(train + &val == long);
    }

    #[test]
    fn a_folder_is_one_text() {
        let fixture = Fixture::new("first");
        let inner = fixture.folder.path().join("sub");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("a.txt"), "one").unwrap();
        fs::write(inner.join("b.txt"), "two").unwrap();
        let data = DataConfig { path: inner, val_fraction: 0.3, ..fixture.data.clone() };
        let kind = TokenizerKind::Char;
        let corpus = Corpus::open(&data, &of_kind(kind), 2, OpenOptions::default()).unwrap();
        assert_eq!(text(&corpus), ("one\n".to_owned(), "two".to_owned()));
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

        // One that is cut off is written anew, and nothing else is left behind.
        fs::write(path, &good[..good.len() - 1]).unwrap();
        let corpus = fixture.open(TokenizerKind::Char, 4).unwrap();
        assert_eq!(text(&corpus).1, "lo");
        assert_eq!(fs::read(path).unwrap(), good);
        assert_eq!(fixture.token_files().len(), 1);
    }

    #[test]
    fn what_changes_the_ids_changes_the_file() {
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
        let content = "to be or not to be ".repeat(2000);
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
    fn a_given_tokenizer_is_used_as_it_is() {
        let fixture = Fixture::new("abcabcabcabcabc");
        let tokenizer = Tokenizer::char_from_alphabet("abcxyz".chars()).unwrap();
        let corpus = Corpus::open(&fixture.data, tokenizer, 4, OpenOptions::default()).unwrap();
        assert_eq!(corpus.tokenizer.vocab_size(), 6);
        let tokenizer = Tokenizer::char_from_alphabet("ax".chars()).unwrap();
        let error = Corpus::open(&fixture.data, tokenizer, 4, OpenOptions::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("'b' (U+0062), 'c' (U+0063)"), "{error}");
        assert!(error.contains("text.txt"), "{error}");
    }

    #[test]
    fn a_text_that_should_be_an_earlier_one_is_that() {
        let fixture = Fixture::new("abcabcabcabcabc");
        let corpus = fixture.open(TokenizerKind::Char, 4).unwrap();
        let again = || {
            let (tokenizer, earlier) = (corpus.tokenizer.clone(), &corpus.text_sha256);
            Corpus::open(&fixture.data, tokenizer, 4, OpenOptions::earlier(earlier))
        };
        assert_eq!(ids(&again().unwrap().val), ids(&corpus.val));
        fs::write(&fixture.data.path, "abcabcabcabcab?").unwrap();
        let error = again().unwrap_err();
        assert!(matches!(error, DataError::OtherText { .. }), "{error}");
        assert!(error.to_string().contains("text.txt` is another"), "{error}");
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
    fn a_cache_that_cannot_be_written_is_named() {
        let mut fixture = Fixture::new("hello, hello, hello");
        let file = fixture.folder.path().join("text.txt");
        fixture.data.cache_dir = Some(file.join("cache"));
        let error = fixture.open(TokenizerKind::Char, 4).unwrap_err().to_string();
        assert!(error.contains("text.txt/cache") && error.contains("data.cache_dir"), "{error}");
    }

    #[test]
    fn token_files_are_never_a_part_of_the_text() {
        let mut fixture = Fixture::new("hello, hello, hello");
        fixture.data.path = fixture.folder.path().to_owned();
        let error = fixture.open(TokenizerKind::Char, 4).unwrap_err();
        assert!(matches!(error, DataError::CacheInsideText { .. }));
        fixture.data.cache_dir = Some(fixture.folder.path().join(".cache"));
        fs::remove_dir_all(fixture.folder.path().join("cache")).unwrap();
        assert!(fixture.open(TokenizerKind::Char, 4).is_ok());
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
    fn a_learned_tokenizer_is_kept_for_the_next_run() {
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
    fn documents_end_where_the_tokenizer_can_say_so() {
        let fixture = Fixture::new("");
        let folder = fixture.folder.path().join("sub");
        fs::create_dir(&folder).unwrap();
        let document = "a document of words\n".repeat(5);
        for i in 0..10 {
            fs::write(folder.join(format!("{i}.txt")), &document).unwrap();
        }
        let data = DataConfig { path: folder, ..fixture.data.clone() };
        let corpus =
            Corpus::open(&data, &of_kind(TokenizerKind::Bpe), 4, OpenOptions::default()).unwrap();
        let end = corpus.tokenizer.end_of_text().unwrap();
        let [train, val] = [&corpus.train, &corpus.val].map(ids);
        let count = |ids: &[u32]| ids.iter().filter(|id| **id == end).count();
        assert_eq!((count(&train), count(&val)), (9, 1));
        assert_eq!((train.last(), val.last()), (Some(&end), Some(&end)));
        assert_eq!(corpus.val.bytes(), document.len() as u64);
        let corpus =
            Corpus::open(&data, &of_kind(TokenizerKind::Char), 4, OpenOptions::default()).unwrap();
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
        let data =
            DataConfig { path: PathBuf::new(), sources: sources.to_vec(), ..fixture.data.clone() };
        let corpus =
            Corpus::open(&data, &of_kind(TokenizerKind::Char), 4, OpenOptions::default()).unwrap();
        assert_eq!(corpus.tokenizer.vocab_size(), 5, "the characters of both");
        let lengths = |split: &Split| split.texts().map(Tokens::len).collect::<Vec<_>>();
        assert_eq!(lengths(&corpus.train), [90, 270]);
        assert_eq!(lengths(&corpus.val), [10, 30]);
        let shares: Vec<f64> = corpus.sources.iter().map(|source| source.share).collect();
        assert_eq!(shares, [0.25, 0.75]);
        assert!((corpus.sources[0].epochs(3600) - 10.0).abs() < 1e-9);

        // Each has a token file of its own, which another mixture uses, too.
        assert_eq!(fixture.token_files().len(), 2);
        let turned =
            DataConfig { sources: sources.iter().rev().cloned().collect(), ..data.clone() };
        let turned =
            Corpus::open(&turned, &of_kind(TokenizerKind::Char), 4, OpenOptions::default())
                .unwrap();
        assert_ne!(turned.text_sha256, corpus.text_sha256);
        assert_eq!(fixture.token_files().len(), 2);

        let error = Corpus::open(&data, &of_kind(TokenizerKind::Char), 95, OpenOptions::default())
            .unwrap_err();
        assert!(error.to_string().contains("a.txt` is too short"), "{error}");
    }

    #[test]
    fn a_text_of_its_own_is_not_split() {
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
    fn a_text_that_changes_in_between_is_noticed() {
        let fixture = Fixture::new("hello, hello, hello");
        let cache = Cache::open(&fixture.data).unwrap();
        let needs = Needs::of(&Tokenizer::byte());
        let texts = text::all(&fixture.data, needs, &cache, StandardInput::Keep, &progress::ignore)
            .unwrap();
        fs::write(&fixture.data.path, "hello, hello, hellO").unwrap();
        let built =
            Corpus::build(&fixture.data, &cache, &texts, Tokenizer::byte(), 4, &progress::ignore);
        assert!(matches!(built, Err(DataError::Changed { .. })));
        assert!(fixture.token_files().is_empty());
    }
}
