//! Where a text ends for training and begins for validation.
//!
//! The place is found before there are tokens, so that a tokenizer can be learned from the training
//! split alone, and each split is encoded on its own.

use super::DataError;
use super::reader::{Chunk, Reader, Unit};

/// The most bytes that lie between the exact place and the end of the line there.
const MOST_BYTES_TO_LINE_END: u64 = 4096;

/// Which part of a text something belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    /// What is learned from.
    Train,
    /// What is only predicted.
    Val,
}

/// Where the training split ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// After so many bytes.
    Bytes(u64),
    /// After so many characters.
    Characters(u64),
    /// At the first end of a line or of a document that is `from` bytes or more from the beginning;
    /// at the first character from `latest` on if there is none before it.
    LineEnd {
        /// The first place that is considered.
        from: u64,
        /// The last one.
        latest: u64,
    },
}

impl Place {
    /// The place where `val_fraction` of a text, which is so many units and bytes long, lies behind
    /// it.
    pub(super) fn of(val_fraction: f64, unit: Unit, n_units: u64) -> Self {
        let n_train = Self::share(1.0 - val_fraction, n_units);
        match unit {
            Unit::Byte => Self::Bytes(n_train),
            Unit::Character => Self::Characters(n_train),
            Unit::Piece => Self::LineEnd {
                from: n_train,
                // Of a short text, nearly all of the validation split would be lost on the way.
                latest: n_train + MOST_BYTES_TO_LINE_END.min((n_units - n_train) / 8),
            },
        }
    }

    /// A fraction of a number of units, rounded down.
    pub(super) fn share(fraction: f64, n_units: u64) -> u64 {
        // That of a length below 2^53 is exact enough: this is Python's `int(0.9 * n)`.
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss
        )]
        let share = (fraction * n_units as f64) as u64;
        share
    }

    /// All of a text is for validation.
    pub(super) fn beginning() -> Self {
        Self::Bytes(0)
    }
}

/// Reads a text in chunks, none of which is in both splits.
pub(super) struct Divided<'a> {
    reader: Reader<'a>,
    place: Place,
    /// Units of what was read so far.
    position: u64,
    half: Half,
    /// What was read already and lies behind the place.
    rest: Option<Chunk>,
}

impl<'a> Divided<'a> {
    pub(super) fn new(reader: Reader<'a>, place: Place) -> Self {
        Self { reader, place, position: 0, half: Half::Train, rest: None }
    }

    /// The next chunk, and where it belongs; none at the end.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub(super) fn next(&mut self) -> Result<Option<(Half, Chunk)>, DataError> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some((self.half, rest)));
        }
        let Some(mut chunk) = self.reader.next()? else {
            return Ok(None);
        };
        if self.half == Half::Train
            && let Some(at) = self.find(&chunk)
        {
            if at == chunk.text.len() {
                // A document may end here, too, and only the next chunk would say so.
                (self.place, self.position) = (Place::beginning(), 0);
                return Ok(Some((Half::Train, chunk)));
            }
            self.half = Half::Val;
            let rest = chunk.split_off(at);
            if chunk.is_empty() {
                return Ok(Some((Half::Val, rest)));
            }
            self.rest = Some(rest);
            return Ok(Some((Half::Train, chunk)));
        }
        Ok(Some((self.half, chunk)))
    }

    /// Where in this chunk, which is the next one, the training split ends; none if it goes on.
    fn find(&mut self, chunk: &Chunk) -> Option<usize> {
        let position = self.position;
        match self.place {
            Place::Bytes(n) => {
                self.position += chunk.text.len() as u64;
                (n <= self.position).then(|| length(n - position))
            }
            Place::Characters(n) => {
                let n_characters = chunk.text.iter().filter(|byte| is_first(**byte)).count();
                self.position += n_characters as u64;
                (n <= self.position).then(|| {
                    let mut firsts = (0..chunk.text.len()).filter(|at| is_first(chunk.text[*at]));
                    firsts.nth(length(n - position)).unwrap_or(chunk.text.len())
                })
            }
            Place::LineEnd { from, latest } => {
                self.position += chunk.text.len() as u64;
                let from = length(from.saturating_sub(position));
                let latest = length(latest.saturating_sub(position));
                line_end(chunk, from, latest)
            }
        }
    }
}

/// The place in a chunk that [`Place::LineEnd`] means, both bounds being counted in the chunk.
fn line_end(chunk: &Chunk, from: usize, latest: usize) -> Option<usize> {
    let text = &chunk.text;
    let end_of_document = chunk.ends.iter().copied().find(|end| *end >= from);
    let before = from.saturating_sub(1); // a line that ends exactly there will do
    let line_break = text.iter().skip(before).position(|byte| *byte == b'\n');
    let end_of_line = line_break.map(|n| before + n + 1);
    let at_latest = (latest..text.len()).find(|at| is_first(text[*at]));
    [end_of_document, end_of_line, at_latest].into_iter().flatten().min()
}

/// Whether a character begins with this byte.
fn is_first(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

fn length(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{SourceConfig, TextFormat};
    use crate::data::reader::Needs;
    use crate::data::source::Source;

    /// Both halves of these documents, if they are told apart, or of the first one.
    fn halves(
        documents: &[String],
        needs: Needs,
        place: impl Fn(u64) -> Place,
        chunk_bytes: usize,
    ) -> [Chunk; 2] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let content = match needs.documents {
            true => documents
                .iter()
                .map(|text| serde_json::json!({ "text": text }).to_string() + "\n")
                .collect(),
            false => documents[0].clone(),
        };
        std::fs::write(&path, content).unwrap();
        let format = match needs.documents {
            true => TextFormat::Jsonl,
            false => TextFormat::Text,
        };
        let source =
            Source::find(&SourceConfig { path, format: Some(format), ..SourceConfig::default() });
        let source = source.unwrap();
        let mut n_bytes = 0;
        let mut reader = Reader::new(&source, needs);
        while let Some(chunk) = reader.next().unwrap() {
            n_bytes += chunk.text.len() as u64;
        }
        let reader = Reader::new(&source, needs).with_chunk_bytes(chunk_bytes);
        let mut divided = Divided::new(reader, place(n_bytes));
        let mut halves = [Chunk::default(), Chunk::default()];
        while let Some((half, chunk)) = divided.next().unwrap() {
            assert!(half == Half::Val || halves[1].is_empty());
            let so_far = &mut halves[usize::from(half == Half::Val)];
            so_far.ends.extend(chunk.ends.iter().map(|end| end + so_far.text.len()));
            so_far.text.extend(chunk.text);
        }
        halves
    }

    fn text(chunk: &Chunk) -> &str {
        std::str::from_utf8(&chunk.text).unwrap()
    }

    #[test]
    fn the_split_is_pythons() {
        let place = |n| Place::of(0.1, Unit::Character, n);
        assert_eq!(place(1_115_394), Place::Characters(1_003_854));
        assert_eq!(place(11), Place::Characters(9));
        assert_eq!(Place::of(0.1, Unit::Byte, 1_115_394), Place::Bytes(1_003_854));
    }

    #[test]
    fn a_text_for_words_is_split_at_the_end_of_a_line() {
        let lines = vec!["a line of twenty b.\n".repeat(100)]; // 2000 bytes
        let at = |val_fraction| {
            let place = |n| Place::of(val_fraction, Unit::Piece, n);
            let needs = Needs { documents: false, ..Needs::of_new_bpe() };
            halves(&lines, needs, place, 64)[0].text.len()
        };
        assert_eq!(at(0.1), 1800, "exactly at the end of one");
        assert_eq!(at(0.0951), 1820, "at the end of the one that it is in");
        assert_eq!(at(0.9999), 20);
    }

    #[test]
    fn a_text_without_lines_is_split_at_a_character() {
        let text = vec!["\u{4e00}".repeat(400)]; // 1200 bytes
        let place = |n| Place::of(0.5, Unit::Piece, n);
        let [train, _] = halves(&text, Needs::of_new_bpe(), place, 64);
        assert_eq!(train.text.len(), 675); // an eighth of the other half behind 600
    }

    #[test]
    fn a_document_that_ends_at_the_split_ends_before_it() {
        let documents: Vec<String> = (0..10).map(|_| "ten bytes.".to_owned()).collect();
        for chunk_bytes in 4..30 {
            let place = |n| Place::of(0.2, Unit::Piece, n);
            let [train, val] = halves(&documents, Needs::of_new_bpe(), place, chunk_bytes);
            assert_eq!((train.text.len(), train.ends.len()), (80, 8), "{chunk_bytes}");
            assert_eq!(val.ends, [10, 20]);
        }
    }

    proptest! {
        #[test]
        fn the_place_does_not_depend_on_the_chunks(
            documents in prop::collection::vec("[a-z\u{e9}\n]{1,30}", 1..20),
            val_fraction in 0.01_f64..0.99,
            chunk_bytes in 4_usize..40,
        ) {
            for needs in [Needs::of_new_bpe(), Needs::of_new_char()] {
                let n_units = |n_bytes| match needs.unit {
                    Unit::Character => documents[0].chars().count() as u64,
                    _ => n_bytes,
                };
                let place = |n| Place::of(val_fraction, needs.unit, n_units(n));
                let whole = halves(&documents, needs, place, 1 << 20);
                prop_assert_eq!(&halves(&documents, needs, place, chunk_bytes), &whole);
                let both = text(&whole[0]).to_owned() + text(&whole[1]);
                let expected = if needs.documents { documents.concat() } else { documents[0].clone() };
                prop_assert_eq!(both, expected);
                if needs.unit == Unit::Character {
                    let n = documents[0].chars().count() as f64;
                    let n_train = ((1.0 - val_fraction) * n) as usize;
                    prop_assert_eq!(text(&whole[0]).chars().count(), n_train);
                }
            }
        }
    }
}
