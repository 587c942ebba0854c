//! What a text is like, as far as a recipe needs it. Nothing here knows a language: characters are
//! counted, lines are compared, and gzip says how much repeats.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::RecipeError;
use crate::config::TokenizerKind;
use crate::data::Preview;

/// How much of a text is looked at, in bytes. What follows is taken to be like it.
pub const SAMPLE_BYTES: usize = 32 << 20;

/// How much of it gzip packs, in bytes: enough for its window of 32 KiB.
const PACKED_BYTES: usize = 1 << 20;

/// The shortest text for which there is a recipe, in characters (or bytes).
pub(super) const MIN_TOKENS: u64 = 64;

/// What a text is like.
#[derive(Debug, Clone)]
pub struct TextProfile {
    /// The file or folder, as the config will name it.
    pub path: PathBuf,
    /// Whether the whole text was looked at; everything is an estimate otherwise.
    pub is_whole: bool,
    /// Length of the text, bytes.
    pub bytes: u64,
    /// Its characters; none where it is to be read as bytes.
    pub characters: Option<Characters>,
    /// Line breaks in what was looked at.
    pub n_lines: u64,
    /// The share of what was looked at, in bytes, whose whole line stood there before.
    pub repeated: f64,
    /// Into how many bits gzip packs a byte of it, on the average.
    pub gzip_bits_per_byte: f64,
    /// The text, or as much as was looked at, cut to whole characters where it has any.
    pub(super) sample: Vec<u8>,
}

/// The characters of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Characters {
    /// How many there are in the text.
    pub n: u64,
    /// How often each occurs in what was looked at, the most frequent first.
    pub counts: Vec<(char, u64)>,
}

impl TextProfile {
    /// Looks at the text that `path` names. With `kind = byte` it may be any file.
    ///
    /// # Errors
    /// If it cannot be read, is no text, or has nothing to learn from.
    pub fn read(path: &Path, kind: Option<TokenizerKind>) -> Result<Self, RecipeError> {
        if path == Path::new("-") {
            return Err(RecipeError::StandardInput);
        }
        let as_bytes = kind == Some(TokenizerKind::Byte);
        let preview = Preview::read(path, SAMPLE_BYTES, !as_bytes)?;
        Self::of(preview, path, as_bytes)
    }

    fn of(preview: Preview, path: &Path, as_bytes: bool) -> Result<Self, RecipeError> {
        let Preview { bytes: mut sample, is_whole, bytes_on_disk } = preview;
        if path.to_str().is_none() {
            return Err(RecipeError::Path { path: path.to_owned() });
        }
        let whole = if is_whole {
            sample.len() as u64
        } else {
            // A packed text takes less on the disk than it has.
            bytes_on_disk.max(sample.len() as u64 + 1)
        };
        let characters = if as_bytes {
            None
        } else {
            let text = text_of(&sample, is_whole, path)?;
            let n_kept = text.len();
            let mut characters = Characters::of(text);
            characters.n = scaled(characters.n, whole, n_kept as u64);
            sample.truncate(n_kept);
            Some(characters)
        };
        let profile = Self {
            path: path.to_owned(),
            is_whole,
            bytes: whole,
            characters,
            n_lines: sample.split(|&byte| byte == b'\n').skip(1).count() as u64,
            repeated: repeated(&sample),
            gzip_bits_per_byte: gzip_bits_per_byte(&sample[..sample.len().min(PACKED_BYTES)]),
            sample,
        };
        profile.has_something_to_learn()?;
        Ok(profile)
    }

    fn has_something_to_learn(&self) -> Result<(), RecipeError> {
        let path = || self.path.clone();
        let (n_tokens, unit) = self.length();
        let first = self.sample[0];
        let what = match &self.characters {
            Some(characters) if characters.counts.len() == 1 => {
                let only = characters.counts[0].0;
                Some(format!("the character {only:?}"))
            }
            None if self.sample.iter().all(|&byte| byte == first) => {
                Some(format!("the byte {first:#04x}"))
            }
            _ => None,
        };
        if let Some(what) = what.filter(|_| n_tokens > 1) {
            return Err(RecipeError::Constant { path: path(), n_tokens, what });
        }
        if n_tokens < MIN_TOKENS {
            return Err(RecipeError::TooShort { path: path(), n_tokens, unit });
        }
        Ok(())
    }

    /// How long the text is, and in what that is counted.
    pub(super) fn length(&self) -> (u64, &'static str) {
        match &self.characters {
            Some(Characters { n: 1, .. }) => (1, "character"),
            Some(characters) => (characters.n, "characters"),
            None => (self.bytes, "bytes"),
        }
    }

    /// What was looked at, as text; nothing where it is to be read as bytes.
    pub(super) fn sample_text(&self) -> &str {
        std::str::from_utf8(&self.sample).unwrap_or_default()
    }
}

impl Characters {
    fn of(text: &str) -> Self {
        let mut seen = vec![0_u64; char::MAX as usize + 1];
        let mut n = 0;
        for character in text.chars() {
            seen[character as usize] += 1;
            n += 1;
        }
        let mut counts: Vec<(char, u64)> = ('\0'..=char::MAX)
            .map(|character| (character, seen[character as usize]))
            .filter(|&(_, count)| count > 0)
            .collect();
        counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count)); // stable: then by code point
        Self { n, counts }
    }

    /// How many different characters there are.
    #[must_use]
    pub fn n_distinct(&self) -> usize {
        self.counts.len()
    }

    /// How many of the most frequent characters make up 99 of 100 of the text.
    #[must_use]
    pub fn n_common(&self) -> usize {
        let total: u64 = self.counts.iter().map(|(_, count)| count).sum();
        let mut rest = total;
        self.counts
            .iter()
            .take_while(|(_, count)| {
                let is_needed = rest * 100 > total;
                rest -= count;
                is_needed
            })
            .count()
    }
}

/// The bytes as text, without a character that the end of a preview has cut off.
fn text_of<'a>(bytes: &'a [u8], is_whole: bool, path: &Path) -> Result<&'a str, RecipeError> {
    let binary = |found: String| RecipeError::Binary { path: path.to_owned(), found };
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(binary(
            "it begins as UTF-16 does, which `iconv -f UTF-16 -t UTF-8` turns into UTF-8"
                .to_owned(),
        ));
    }
    if let Some(offset) = bytes.iter().position(|&byte| byte == 0) {
        return Err(binary(format!("byte {offset} is 0, which no text has")));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if error.error_len().is_none() && !is_whole => {
            let whole = &bytes[..error.valid_up_to()];
            Ok(std::str::from_utf8(whole).expect("it is valid up to there"))
        }
        Err(error) => {
            Err(RecipeError::NotUtf8 { path: path.to_owned(), offset: error.valid_up_to() })
        }
    }
}

/// What `n` of `part` would be of the whole.
fn scaled(n: u64, whole: u64, part: u64) -> u64 {
    let scaled = u128::from(n) * u128::from(whole) / u128::from(part.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn repeated(sample: &[u8]) -> f64 {
    let mut seen = HashSet::new();
    let lines = sample.split(|&byte| byte == b'\n');
    let n_repeated: usize = lines.filter(|line| !seen.insert(*line)).map(<[u8]>::len).sum();
    n_repeated as f64 / sample.len().max(1) as f64
}

fn gzip_bits_per_byte(sample: &[u8]) -> f64 {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(sample).expect("memory takes all that is written");
    let packed = packed.finish().expect("memory takes all that is written");
    packed.len() as f64 * 8.0 / sample.len().max(1) as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A profile of a text at hand.
    pub fn profile(text: &str) -> TextProfile {
        profiled(text.as_bytes(), true, false).unwrap()
    }

    fn profiled(bytes: &[u8], is_whole: bool, as_bytes: bool) -> Result<TextProfile, RecipeError> {
        let preview =
            Preview { bytes: bytes.to_vec(), is_whole, bytes_on_disk: 10 * bytes.len() as u64 };
        TextProfile::of(preview, Path::new("my.txt"), as_bytes)
    }

    #[test]
    fn characters_are_counted_whatever_the_language() {
        let profile = profile(&"aab\u{4e00}\u{1f525}\n".repeat(50));
        let characters = profile.characters.unwrap();
        assert_eq!(characters.n, 300);
        assert_eq!(profile.bytes, 50 * 11);
        assert_eq!(characters.counts[0], ('a', 100));
        assert_eq!(characters.n_distinct(), 5);
        assert_eq!(profile.n_lines, 50);
        assert!((profile.repeated - 490.0 / 550.0).abs() < 1e-9); // all but the first line, without its end
        assert!(profile.gzip_bits_per_byte < 1.0);
    }

    #[test]
    fn common_characters_make_up_99_of_100() {
        let text = "a".repeat(60) + &"b".repeat(39) + "c";
        assert_eq!(Characters::of(&text).n_common(), 2);
        let text = "a".repeat(60) + &"b".repeat(38) + "cc";
        assert_eq!(Characters::of(&text).n_common(), 3);
        assert_eq!(Characters::of("xyz").n_common(), 3);
    }

    #[test]
    fn a_long_text_is_measured_by_its_beginning() {
        let text = "ab\u{e9}\u{4e00}".repeat(100);
        let cut = &text.as_bytes()[..text.len() - 1]; // within its last character
        let profile = profiled(cut, false, false).unwrap();
        assert_eq!(profile.sample_text(), &text[..text.len() - 3]);
        assert_eq!(profile.bytes, 6990);
        assert_eq!(profile.characters.unwrap().n, 399 * 6990 / 697);
        assert!(matches!(
            profiled(cut, true, false),
            Err(RecipeError::NotUtf8 { offset: 697, .. })
        ));
    }

    #[test]
    fn what_cannot_be_learned_is_an_error() {
        let fails = |bytes: &[u8], as_bytes| profiled(bytes, true, as_bytes).unwrap_err();
        let text = "a text with a zero ".repeat(20);
        let zero = [text.as_bytes(), b"\0"].concat();
        assert!(matches!(fails(&zero, false), RecipeError::Binary { .. }));
        assert!(profiled(&zero, true, true).is_ok());
        let utf16 = [b"\xff\xfe", text.as_bytes()].concat();
        assert!(matches!(fails(&utf16, false), RecipeError::Binary { .. }));
        let latin1 = [text.as_bytes(), b"caf\xe9."].concat();
        assert!(matches!(fails(&latin1, false), RecipeError::NotUtf8 { offset: 383, .. }));
        assert!(matches!(fails(b"short", false), RecipeError::TooShort { n_tokens: 5, .. }));
        let constant = "\u{4e00}".repeat(1000);
        let error = fails(constant.as_bytes(), false);
        assert!(error.to_string().contains("1,000 times the character '\u{4e00}'"), "{error}");
        let error = fails(&[7; 100], true);
        assert!(error.to_string().contains("100 times the byte 0x07"), "{error}");
    }
}
