//! A corpus: text on disk, as tokens for training and for validation.
//!
//! The text is read twice. The first time tells what it is: its hash, its length and its alphabet.
//! The second time encodes it into a token file, unless an earlier run of the same text, tokenizer
//! and split has left one.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use super::DataError;
use super::source::Source;
use super::store::{self, Extent, Key, Writer};
use super::summary::Summary;
use super::tokens::{Tokens, Width};
use crate::config::{DataConfig, TokenizerConfig};
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// Both splits of a text, and the tokenizer that encoded them.
///
/// The split is by length: the first `floor((1 - val_fraction) * n)` tokens are for training and
/// the others for validation.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// What is learned from; longer than the context that was asked for.
    pub train: Tokens,
    /// What is only predicted; at least two tokens.
    pub val: Tokens,
    /// What the ids mean.
    pub tokenizer: Tokenizer,
    /// SHA-256 of the text, in hexadecimal: the same text has the same one wherever it lies.
    pub text_sha256: String,
}

impl Corpus {
    /// Opens the text with a tokenizer made for it. A character tokenizer's alphabet is that of the
    /// whole text, validation included.
    ///
    /// # Errors
    /// If the text cannot be read, is empty, not UTF-8 (with characters) or too short for the
    /// context length, or the token file cannot be written.
    pub fn open(
        data: &DataConfig,
        tokenizer: &TokenizerConfig,
        context_length: usize,
    ) -> Result<Self, DataError> {
        if let (TokenizerKind::File, Some(path)) = (tokenizer.kind, &tokenizer.path) {
            let tokenizer = Tokenizer::from_file(path).map_err(DataError::Tokenizer)?;
            return Self::open_with(data, tokenizer, context_length);
        }
        let source = Source::find(&data.path)?;
        let summary = Summary::read(&source, &data.path, tokenizer.kind)?;
        let cannot = |source| DataError::Encode {
            path: data.path.clone(),
            source,
        };
        let tokenizer = match tokenizer.kind {
            TokenizerKind::Byte => Tokenizer::byte(),
            TokenizerKind::Char => {
                Tokenizer::char_from_alphabet(summary.alphabet.chars()).map_err(cannot)?
            }
            TokenizerKind::Bpe | TokenizerKind::File => {
                let text = read_whole(&source)?;
                let (train, _) = text.split_at(training_bytes(&text, data.val_fraction));
                let vocab_size = tokenizer.vocab_size.unwrap_or(257);
                let trained = Tokenizer::train_bpe(vocab_size, [Ok(train.to_owned())]);
                trained.unwrap_or_else(|error: Infallible| match error {})
            }
        };
        Self::build(data, &source, &summary, tokenizer, context_length)
    }

    /// Opens the text with the tokenizer of a model that exists already.
    ///
    /// # Errors
    /// As for [`Corpus::open`], and if the text has characters that the tokenizer does not know.
    pub fn open_with(
        data: &DataConfig,
        tokenizer: Tokenizer,
        context_length: usize,
    ) -> Result<Self, DataError> {
        let source = Source::find(&data.path)?;
        let summary = Summary::read(&source, &data.path, tokenizer.kind())?;
        tokenizer
            .encode(&summary.alphabet)
            .map_err(|source| DataError::Encode {
                path: data.path.clone(),
                source,
            })?;
        Self::build(data, &source, &summary, tokenizer, context_length)
    }

    /// Opens the token file of this text, and writes it first where there is none.
    fn build(
        data: &DataConfig,
        source: &Source,
        summary: &Summary,
        tokenizer: Tokenizer,
        context_length: usize,
    ) -> Result<Self, DataError> {
        let is_table = matches!(tokenizer.kind(), TokenizerKind::Char | TokenizerKind::Byte);
        let n_train = match is_table {
            true => training_tokens(data, summary.n_tokens, context_length)?,
            false => 0,
        };
        let key = key_of(summary, &tokenizer, data.val_fraction);
        let width = Width::of_vocabulary(tokenizer.vocab_size());
        let folder = data.cache_dir.clone().unwrap_or_else(default_cache_dir);
        create_folder(&folder, &data.path)?;
        let path = store::path_of(&folder, &key);
        let splits = if let Some(splits) = store::open(&path, &key, width) {
            splits
        } else {
            if is_table {
                encode(data, source, summary, &tokenizer, n_train, &key, &path)?;
            } else {
                encode_words(data, source, &tokenizer, &key, &path)?;
            }
            store::open(&path, &key, width).ok_or_else(|| {
                let reason = "the file that was written just now cannot be mapped";
                DataError::Cache {
                    path,
                    source: std::io::Error::other(reason),
                }
            })?
        };
        let (train, val) = splits;
        if !is_table {
            check_lengths(data, train.len() as u64, val.len() as u64, context_length)?;
        }
        Ok(Self {
            train,
            val,
            tokenizer,
            text_sha256: hexadecimal(&summary.hash),
        })
    }
}

/// Bytes as two digits each.
fn hexadecimal(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(digits, "{byte:02x}").expect("a string takes all that is written");
    }
    digits
}

/// How many of the tokens are for training.
fn training_tokens(
    data: &DataConfig,
    n_tokens: u64,
    context_length: usize,
) -> Result<u64, DataError> {
    // The fraction of a length below 2^53 is exact enough: this is Python's `int(0.9 * n)`.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    let n_train = ((1.0 - data.val_fraction) * n_tokens as f64) as u64;
    check_lengths(data, n_train, n_tokens - n_train, context_length)?;
    Ok(n_train)
}

/// Both splits must have something to predict.
fn check_lengths(
    data: &DataConfig,
    n_train: u64,
    n_val: u64,
    context_length: usize,
) -> Result<(), DataError> {
    let n_tokens = n_train + n_val;
    let path = || data.path.clone();
    if n_train <= context_length as u64 {
        return Err(DataError::TrainTooShort {
            path: path(),
            n_tokens,
            n_train,
            context_length,
        });
    }
    if n_val < 2 {
        let val_fraction = data.val_fraction;
        return Err(DataError::ValTooShort {
            path: path(),
            n_tokens,
            n_val,
            val_fraction,
        });
    }
    Ok(())
}

/// Everything that the ids and their split follow from.
fn key_of(summary: &Summary, tokenizer: &Tokenizer, val_fraction: f64) -> Key {
    let mut hash = Sha256::new();
    hash.update(summary.hash);
    hash.update(Sha256::digest(tokenizer.to_json()));
    hash.update(val_fraction.to_le_bytes());
    hash.finalize().into()
}

/// Reads the text for the second time, and writes its token file.
fn encode(
    data: &DataConfig,
    source: &Source,
    summary: &Summary,
    tokenizer: &Tokenizer,
    n_train: u64,
    key: &Key,
    path: &Path,
) -> Result<(), DataError> {
    let cache_error = |source| DataError::Cache {
        path: path.to_owned(),
        source,
    };
    let width = Width::of_vocabulary(tokenizer.vocab_size());
    let mut writer = Writer::create(path, width).map_err(cache_error)?;
    let mut hash = Sha256::new();
    let mut extent = Extent {
        n_tokens: 0,
        n_train,
        bytes: 0,
        train_bytes: 0,
    };
    source.for_each_chunk(tokenizer.kind() != TokenizerKind::Byte, |chunk| {
        let ids = tokenizer
            .encode_bytes(chunk)
            .map_err(|source| DataError::Encode {
                path: data.path.clone(),
                source,
            })?;
        hash.update(chunk);
        extent.train_bytes += match n_train.saturating_sub(extent.n_tokens) {
            n if n >= ids.len() as u64 => chunk.len() as u64,
            n => {
                let of_train = ids
                    .iter()
                    .zip(0..n)
                    .map(|(&id, _)| tokenizer.token_bytes(id).map_or(0, <[u8]>::len));
                of_train.sum::<usize>() as u64
            }
        };
        extent.n_tokens += ids.len() as u64;
        extent.bytes += chunk.len() as u64;
        writer.write(&ids).map_err(cache_error)
    })?;
    if hash.finalize()[..] != summary.hash || extent.bytes != summary.bytes {
        return Err(DataError::Changed {
            path: data.path.clone(),
        });
    }
    writer.finish(key, extent).map_err(cache_error)
}

/// The whole text.
fn read_whole(source: &Source) -> Result<String, DataError> {
    let mut text = String::new();
    source.for_each_chunk(true, |chunk| {
        text.push_str(std::str::from_utf8(chunk).expect("the source checks what it hands over"));
        Ok(())
    })?;
    Ok(text)
}

/// Where the training split of a text ends that is divided before it is encoded.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
fn training_bytes(text: &str, val_fraction: f64) -> usize {
    text.floor_char_boundary(((1.0 - val_fraction) * text.len() as f64) as usize)
}

/// Writes the token file of a tokenizer whose tokens are words and pieces of them.
fn encode_words(
    data: &DataConfig,
    source: &Source,
    tokenizer: &Tokenizer,
    key: &Key,
    path: &Path,
) -> Result<(), DataError> {
    let cache_error = |source| DataError::Cache {
        path: path.to_owned(),
        source,
    };
    let encode = |text: &str| {
        let cannot = |source| DataError::Encode {
            path: data.path.clone(),
            source,
        };
        tokenizer.encode(text).map_err(cannot)
    };
    let text = read_whole(source)?;
    let (train, val) = text.split_at(training_bytes(&text, data.val_fraction));
    let (train_ids, val_ids) = (encode(train)?, encode(val)?);
    let mut writer =
        Writer::create(path, Width::of_vocabulary(tokenizer.vocab_size())).map_err(cache_error)?;
    writer.write(&train_ids).map_err(cache_error)?;
    writer.write(&val_ids).map_err(cache_error)?;
    let extent = Extent {
        n_tokens: (train_ids.len() + val_ids.len()) as u64,
        n_train: train_ids.len() as u64,
        bytes: text.len() as u64,
        train_bytes: train.len() as u64,
    };
    writer.finish(key, extent).map_err(cache_error)
}

/// Makes the folder for token files, which must not be a part of the text.
fn create_folder(folder: &Path, text: &Path) -> Result<(), DataError> {
    let fail = |source| DataError::Cache {
        path: folder.to_owned(),
        source,
    };
    std::fs::create_dir_all(folder).map_err(fail)?;
    let whole = folder.canonicalize().map_err(fail)?;
    let text_folder = text.canonicalize().map_err(fail)?;
    let is_hidden = |part: Component| part.as_os_str().as_encoded_bytes().starts_with(b".");
    match whole.strip_prefix(text_folder) {
        Ok(within) if !within.components().any(is_hidden) => Err(DataError::CacheInsideText {
            cache_dir: folder.to_owned(),
            path: text.to_owned(),
        }),
        _ => Ok(()),
    }
}

fn default_cache_dir() -> PathBuf {
    dirs::cache_dir()
        .unwrap_or_else(std::env::temp_dir)
        .join("tinderbox")
        .join("tokens")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
            Self {
                folder,
                data: DataConfig {
                    path,
                    val_fraction: 0.1,
                    cache_dir,
                },
            }
        }

        fn open(&self, kind: TokenizerKind, context_length: usize) -> Result<Corpus, DataError> {
            Corpus::open(&self.data, &of_kind(kind), context_length)
        }

        fn token_files(&self) -> Vec<PathBuf> {
            let entries = fs::read_dir(self.data.cache_dir.as_ref().unwrap()).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect()
        }
    }

    fn of_kind(kind: TokenizerKind) -> TokenizerConfig {
        TokenizerConfig {
            kind,
            ..TokenizerConfig::default()
        }
    }

    fn ids(tokens: &Tokens) -> Vec<u32> {
        let mut ids = vec![0; tokens.len()];
        tokens.read(0, &mut ids);
        ids.into_iter().map(i32::cast_unsigned).collect()
    }

    fn text(corpus: &Corpus) -> (String, String) {
        let decode = |tokens| corpus.tokenizer.decode(&ids(tokens));
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
    fn the_split_is_pythons() {
        let data = Fixture::new("").data;
        assert_eq!(training_tokens(&data, 1_115_394, 1).unwrap(), 1_003_854);
        assert_eq!(
            training_tokens(&data, 10, 1)
                .unwrap_err()
                .to_string()
                .lines()
                .count(),
            2
        );
        assert_eq!(training_tokens(&data, 11, 1).unwrap(), 9);
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
        let long: String = (0..400_000)
            .map(|i| if i % 7 == 0 { '\u{4e00}' } else { 'x' })
            .collect();
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
        let data = DataConfig {
            path: inner,
            val_fraction: 0.3,
            ..fixture.data.clone()
        };
        let kind = TokenizerKind::Char;
        let corpus = Corpus::open(&data, &of_kind(kind), 2).unwrap();
        assert_eq!(text(&corpus), ("one\n".to_owned(), "two".to_owned()));
    }

    #[test]
    fn a_second_start_reads_the_token_file() {
        let fixture = Fixture::new("hello, hello, hello");
        fixture.open(TokenizerKind::Char, 4).unwrap();
        let [path] = &fixture.token_files()[..] else {
            panic!("one token file")
        };
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
        let corpus = Corpus::open_with(&fixture.data, tokenizer, 4).unwrap();
        assert_eq!(corpus.tokenizer.vocab_size(), 6);
        let tokenizer = Tokenizer::char_from_alphabet("ax".chars()).unwrap();
        let error = Corpus::open_with(&fixture.data, tokenizer, 4)
            .unwrap_err()
            .to_string();
        assert!(error.contains("'b' (U+0062), 'c' (U+0063)"), "{error}");
        assert!(error.contains("text.txt"), "{error}");
    }

    #[test]
    fn errors_have_the_numbers() {
        let error = |text: &[u8], context_length| {
            Fixture::new(text)
                .open(TokenizerKind::Char, context_length)
                .unwrap_err()
                .to_string()
        };
        assert!(error(b"", 4).contains("is empty"));
        let short = error(&[b'a'; 100], 90);
        assert!(
            short.contains("90 of its 100 tokens") && short.contains("at least 91"),
            "{short}"
        );
        assert!(error(b"aaaaaaaaaa", 4).contains("leaves 1 of its 10 tokens"));
        let not_utf8 = error(b"abc\xff", 1);
        assert!(not_utf8.contains("at byte 3") && not_utf8.contains("kind = \"byte\""));
        assert!(
            Fixture::new([b'a'; 100])
                .open(TokenizerKind::Char, 89)
                .is_ok()
        );
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_named() {
        let mut fixture = Fixture::new("hello, hello, hello");
        let file = fixture.folder.path().join("text.txt");
        fixture.data.cache_dir = Some(file.join("cache"));
        let error = fixture
            .open(TokenizerKind::Char, 4)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("text.txt/cache") && error.contains("data.cache_dir"),
            "{error}"
        );
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
    fn a_text_that_changes_in_between_is_noticed() {
        let fixture = Fixture::new("hello, hello, hello");
        let source = Source::find(&fixture.data.path).unwrap();
        let summary = Summary::read(&source, &fixture.data.path, TokenizerKind::Byte).unwrap();
        fs::write(&fixture.data.path, "hello, hello, hellO").unwrap();
        let built = Corpus::build(&fixture.data, &source, &summary, Tokenizer::byte(), 4);
        assert!(matches!(built, Err(DataError::Changed { .. })));
        assert!(fixture.token_files().is_empty());
    }
}
