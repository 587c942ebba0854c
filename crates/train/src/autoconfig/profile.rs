//! The properties of a text that determine its config. They are language-independent: characters are counted, and gzip
//! measures repetition.

use std::path::{Path, PathBuf};

use super::AutoconfigError;
use crate::config::{DataConfig, TokenizerKind};
use crate::data::{DataError, Preview, gzip_bits_per_byte};

/// The number of bytes of a text that are read; the rest is assumed to be similar.
const SAMPLE_BYTES: usize = 32 << 20;

/// The shortest text that gets a config, in characters or bytes.
pub(super) const MIN_TOKENS: u64 = 64;

#[derive(Debug, Clone)]
pub(super) struct TextProfile {
    /// Whether the whole text was read; otherwise everything is an estimate.
    pub is_whole: bool,
    /// The length of the text in bytes.
    pub bytes: u64,
    /// `None` if it is read as bytes.
    pub characters: Option<Characters>,
    /// Line breaks in the sample.
    pub n_lines: u64,
    pub gzip_bits_per_byte: f64,
    /// The text, or the beginning that was read, cut at a character boundary.
    pub sample: Vec<u8>,
    /// The files of a folder that are left out, since they are not text.
    pub left_out: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Characters {
    /// The number of characters in the text.
    pub n: u64,
    /// The number of distinct characters in the sample.
    pub n_distinct: usize,
}

impl TextProfile {
    /// Reads the text that `data` names; if `kind` is byte, it may be any file.
    pub fn read(data: &DataConfig, kind: Option<TokenizerKind>) -> Result<Self, AutoconfigError> {
        let as_bytes = kind == Some(TokenizerKind::Byte);
        let preview = Preview::read(&data.all_sources()[0], SAMPLE_BYTES, !as_bytes)?;
        Self::from_preview(preview, &data.path, as_bytes)
    }

    fn from_preview(preview: Preview, path: &Path, as_bytes: bool) -> Result<Self, AutoconfigError> {
        let Preview { bytes: mut sample, is_whole, bytes_on_disk, left_out } = preview;
        let n_read = sample.len() as u64;
        let whole = if is_whole { n_read } else { bytes_on_disk.max(n_read + 1) }; // files on disk may be compressed
        let mut characters = None;
        if !as_bytes {
            if let Some(offset) = sample.iter().position(|&byte| byte == 0) {
                return Err(DataError::Binary { path: path.to_owned(), offset }.into());
            }
            let text = whole_characters(&sample);
            let n_kept = text.len();
            let mut counted = Characters::count(text);
            counted.n = scaled(counted.n, whole, n_kept as u64);
            characters = Some(counted);
            sample.truncate(n_kept);
        }
        let profile = Self {
            is_whole,
            bytes: whole,
            characters,
            n_lines: sample.split(|&byte| byte == b'\n').skip(1).count() as u64,
            gzip_bits_per_byte: gzip_bits_per_byte(&sample),
            sample,
            left_out,
        };
        let (n_tokens, unit) = profile.length();
        if n_tokens < MIN_TOKENS {
            return Err(AutoconfigError::TooShort(path.to_owned(), n_tokens, unit));
        }
        Ok(profile)
    }

    /// The length of the text, and its unit.
    pub fn length(&self) -> (u64, &'static str) {
        match &self.characters {
            Some(characters) => (characters.n, "characters"),
            None => (self.bytes, "bytes"),
        }
    }

    /// The sample as text; empty if it is read as bytes.
    pub fn sample_text(&self) -> &str {
        std::str::from_utf8(&self.sample).unwrap_or_default()
    }
}

impl Characters {
    fn count(text: &str) -> Self {
        let (mut n, mut seen) = (0, vec![false; char::MAX as usize + 1]);
        for character in text.chars() {
            seen[character as usize] = true;
            n += 1;
        }
        Self { n, n_distinct: seen.into_iter().filter(|seen| *seen).count() }
    }
}

/// The bytes as text, without a character cut off at the end of a preview.
fn whole_characters(bytes: &[u8]) -> &str {
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// `n`, counted in a part of length `part`, extrapolated to length `whole`.
fn scaled(n: u64, whole: u64, part: u64) -> u64 {
    let scaled = u128::from(n) * u128::from(whole) / u128::from(part.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The profile of a complete text.
    pub fn profile(text: &str) -> TextProfile {
        profiled(text.as_bytes(), true, false).unwrap()
    }

    fn profiled(bytes: &[u8], is_whole: bool, as_bytes: bool) -> Result<TextProfile, AutoconfigError> {
        let bytes_on_disk = 10 * bytes.len() as u64;
        let preview = Preview { bytes: bytes.to_vec(), is_whole, bytes_on_disk, left_out: Vec::new() };
        TextProfile::from_preview(preview, Path::new("my.txt"), as_bytes)
    }

    #[test]
    fn profile_counts_characters_of_any_language() {
        let profile = profile(&"aab\u{4e00}\u{1f525}\n".repeat(50));
        let characters = profile.characters.unwrap();
        assert_eq!(characters.n, 300);
        assert_eq!(profile.bytes, 50 * 11);
        assert_eq!(characters.n_distinct, 5);
        assert_eq!(profile.n_lines, 50);
        assert!(profile.gzip_bits_per_byte < 1.0);
    }

    #[test]
    fn profile_samples_beginning_of_long_texts() {
        let text = "ab\u{e9}\u{4e00}".repeat(100);
        let cut = &text.as_bytes()[..text.len() - 1]; // within its last character
        let profile = profiled(cut, false, false).unwrap();
        assert_eq!(profile.sample_text(), &text[..text.len() - 3]);
        assert_eq!(profile.bytes, 6990);
        assert_eq!(profile.characters.unwrap().n, 399 * 6990 / 697);
    }

    #[test]
    fn profile_rejects_unusable_texts() {
        let fails = |bytes: &[u8], as_bytes| profiled(bytes, true, as_bytes).unwrap_err();
        let text = "a text with a zero ".repeat(20);
        let zero = [text.as_bytes(), b"\0"].concat();
        assert!(matches!(fails(&zero, false), AutoconfigError::Data(DataError::Binary { .. })));
        assert!(profiled(&zero, true, true).is_ok());
        assert!(matches!(fails(b"short", false), AutoconfigError::TooShort(_, 5, _)));
    }
}
