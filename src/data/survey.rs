//! What a text is, found out by reading it once: its hash, its length and its alphabet.

use sha2::{Digest, Sha256};

use super::progress::{OnProgress, Purpose};
use super::reader::{Chunk, Needs, Reader, Unit, as_utf8};
use super::source::Source;
use super::{DataError, pipeline};

/// What the first reading of a text tells.
#[derive(Debug)]
pub(super) struct Survey {
    /// SHA-256 of the text, and of where its documents end if they are told apart.
    pub hash: [u8; 32],
    /// The length of the text in bytes; at least 1.
    pub bytes: u64,
    /// The length of the text in the unit by which it is split.
    pub n_units: u64,
    /// The distinct characters in code point order, where they are tokens.
    pub alphabet: String,
}

impl Survey {
    /// Reads the whole text.
    ///
    /// # Errors
    /// If the text cannot be read, is empty or not what the tokenizer needs, and if `watch` puts an end to it.
    pub(super) fn read(
        source: &Source,
        needs: Needs,
        on_progress: OnProgress<'_>,
    ) -> Result<Self, DataError> {
        let mut reader = Reader::new(source, needs).with_progress(on_progress, Purpose::Scan, None);
        let mut hash = Sha256::new();
        let (mut bytes, mut n_units) = (0, 0);
        let mut seen = CharacterSet::default();
        pipeline::in_order(
            || reader.next(),
            |chunk| Ok(count(chunk, needs.unit)),
            |(chunk, n_units_here, seen_here)| {
                chunk.hash_into(&mut hash);
                bytes += chunk.text.len() as u64;
                n_units += n_units_here;
                seen.add_all(&seen_here);
                Ok(())
            },
        )?;
        if bytes == 0 {
            return Err(DataError::Empty { path: source.path.clone() });
        }
        Ok(Self {
            hash: hash.finalize().into(),
            bytes,
            n_units,
            alphabet: seen.characters().collect(),
        })
    }
}

/// How many units a chunk has, and which characters if these are the units.
fn count(chunk: Chunk, unit: Unit) -> (Chunk, u64, CharacterSet) {
    let mut seen = CharacterSet::default();
    let n_units = match unit {
        Unit::Byte | Unit::Piece => chunk.text.len() as u64,
        Unit::Character => {
            as_utf8(&chunk.text).chars().map(|character| seen.add(character)).count() as u64
        }
    };
    (chunk, n_units, seen)
}

/// Some of all characters, a bit for each, up to the last that was added.
#[derive(Debug, Default)]
struct CharacterSet(Vec<u64>);

impl CharacterSet {
    fn add(&mut self, character: char) {
        let (word, bit) = (character as usize / 64, character as usize % 64);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << bit;
    }

    fn add_all(&mut self, others: &Self) {
        if self.0.len() < others.0.len() {
            self.0.resize(others.0.len(), 0);
        }
        for (word, other) in self.0.iter_mut().zip(&others.0) {
            *word |= other;
        }
    }

    /// In code point order.
    fn characters(&self) -> impl Iterator<Item = char> {
        let is_in = |c: char| {
            let word = self.0.get(c as usize / 64).copied().unwrap_or(0);
            word >> (c as usize % 64) & 1 == 1
        };
        ('\0'..=char::MAX).filter(move |c| is_in(*c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SourceConfig;
    use crate::data::progress;
    use crate::tokenizer::Tokenizer;

    fn survey(text: &str, needs: Needs) -> Survey {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, text).unwrap();
        let config = SourceConfig { path, ..SourceConfig::default() };
        let source = Source::find(&config).unwrap();
        Survey::read(&source, needs, &progress::ignore).unwrap()
    }

    #[test]
    fn a_text_is_counted_as_its_tokenizer_does() {
        let text = "abc \u{1f525}\u{e9}\ncab";
        let characters = survey(text, Needs::of_new_char());
        assert_eq!((characters.bytes, characters.n_units), (14, 10));
        assert_eq!(characters.alphabet, "\n abc\u{e9}\u{1f525}");
        for needs in [Needs::of(&Tokenizer::byte()), Needs::of_new_bpe()] {
            let bytes = survey(text, needs);
            assert_eq!((bytes.bytes, bytes.n_units), (14, 14));
            assert_eq!(bytes.alphabet, "");
            assert_eq!(bytes.hash, characters.hash);
        }
    }

    #[test]
    fn the_hash_is_that_of_the_text() {
        // SHA-256 of "abc", from the standard's examples.
        let hash = survey("abc", Needs::of_new_char()).hash;
        assert_eq!(hash[..4], [0xba, 0x78, 0x16, 0xbf]);
    }
}
