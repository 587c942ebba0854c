//! Where a text is split for training and validation, and the tokens of one split of a corpus.
//!
//! The split point is found before there are tokens, so that a tokenizer can be trained on the training
//! split alone, and each split is encoded on its own.

use super::reader::{Chunk, Reader, Unit};
use super::{DataError, Tokens};

/// The most bytes between the exact split point and the end of the line there.
const MAX_BYTES_TO_LINE_END: u64 = 4096;

/// The split that a part of a text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    Train,
    Val,
}

/// Where the training split ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SplitPoint {
    Bytes(u64),
    Characters(u64),
    /// At the first end of a line or of a document `from` bytes or more from the beginning; at the first
    /// character from `latest` on if there is none before it.
    LineEnd {
        from: u64,
        latest: u64,
    },
}

impl SplitPoint {
    /// All of a text is for validation.
    pub(super) const START: Self = Self::Bytes(0);

    /// The split point that leaves `val_fraction` of a text of `n_units` for validation.
    pub(super) fn of(val_fraction: f64, unit: Unit, n_units: u64) -> Self {
        let n_train = train_share(val_fraction, n_units);
        match unit {
            Unit::Byte => Self::Bytes(n_train),
            Unit::Character => Self::Characters(n_train),
            Unit::Piece => Self::LineEnd {
                from: n_train,
                // Of a short text, nearly all of the validation split would be lost on the way.
                latest: n_train + MAX_BYTES_TO_LINE_END.min((n_units - n_train) / 8),
            },
        }
    }
}

/// How many of `n` are for training: Python's `int((1 - val_fraction) * n)`.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths are below 2^53"
)]
pub(super) fn train_share(val_fraction: f64, n: u64) -> u64 {
    ((1.0 - val_fraction) * n as f64) as u64
}

/// Reads a text in chunks, none of which is in both splits.
pub(super) struct SplitReader<'a> {
    reader: Reader<'a>,
    split_point: SplitPoint,
    /// Units read so far.
    position: u64,
    half: Half,
    /// The part of the last chunk behind the split point.
    rest: Option<Chunk>,
}

impl<'a> SplitReader<'a> {
    pub(super) fn new(reader: Reader<'a>, split_point: SplitPoint) -> Self {
        Self { reader, split_point, position: 0, half: Half::Train, rest: None }
    }

    /// The next chunk and its split; `None` at the end.
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
                (self.split_point, self.position) = (SplitPoint::START, 0);
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

    /// Where in the next chunk the training split ends; `None` if it goes on.
    fn find(&mut self, chunk: &Chunk) -> Option<usize> {
        let position = self.position;
        match self.split_point {
            SplitPoint::Bytes(n) => {
                self.position += chunk.text.len() as u64;
                (n <= self.position).then(|| length(n - position))
            }
            SplitPoint::Characters(n) => {
                let n_characters = chunk.text.iter().filter(|byte| is_first(**byte)).count();
                self.position += n_characters as u64;
                (n <= self.position).then(|| {
                    let mut firsts = (0..chunk.text.len()).filter(|at| is_first(chunk.text[*at]));
                    firsts.nth(length(n - position)).unwrap_or(chunk.text.len())
                })
            }
            SplitPoint::LineEnd { from, latest } => {
                self.position += chunk.text.len() as u64;
                let from = length(from.saturating_sub(position));
                let latest = length(latest.saturating_sub(position));
                line_end(chunk, from, latest)
            }
        }
    }
}

/// The place in a chunk that [`SplitPoint::LineEnd`] means, with both bounds counted in the chunk.
fn line_end(chunk: &Chunk, from: usize, latest: usize) -> Option<usize> {
    let text = &chunk.text;
    let end_of_document = chunk.ends.iter().copied().find(|end| *end >= from);
    let before = from.saturating_sub(1); // a line may end exactly there
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

/// The tokens of one split of one or several texts. No window crosses from one text into another. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Split {
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
struct Part {
    tokens: Tokens,
    share: f64,
    /// Draws of 64 bits below this, and not below the part before, fall on this one.
    until: u128,
}

impl Split {
    /// Texts with weights: a window is drawn from each with the probability of its weight over the sum of all.
    ///
    /// # Panics
    /// If there are no texts, or a weight is not a finite number above 0.
    #[must_use]
    pub fn new(texts: Vec<(Tokens, f64)>) -> Self {
        const ALL: f64 = 18_446_744_073_709_551_616.0; // 2^64 draws
        let sum: f64 = texts.iter().map(|(_, weight)| weight).sum();
        assert!(
            !texts.is_empty() && texts.iter().all(|(_, weight)| *weight > 0.0) && sum.is_finite(),
            "weights are checked with the config"
        );
        let n = texts.len();
        let mut so_far = 0.0;
        let parts = texts.into_iter().enumerate().map(|(idx, (tokens, weight))| {
            so_far += weight;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is from 0 to 1")]
            let until = if idx + 1 == n { 1 << 64 } else { (so_far / sum * ALL) as u128 };
            Part { tokens, share: weight / sum, until }
        });
        Self { parts: parts.collect() }
    }

    /// Each text.
    #[must_use]
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &Tokens> {
        self.parts.iter().map(|part| &part.tokens)
    }

    /// The share of windows that are drawn from each text; together 1.
    #[must_use]
    pub fn shares(&self) -> impl ExactSizeIterator<Item = f64> {
        self.parts.iter().map(|part| part.share)
    }

    /// The number of tokens in all texts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts().map(Tokens::len).sum()
    }

    /// Whether there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts().all(Tokens::is_empty)
    }

    /// The bytes of text that the tokens stand for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.texts().map(Tokens::bytes).sum()
    }

    /// The only text, or `None` if there are several.
    pub(super) fn only(&self) -> Option<&Tokens> {
        match &self.parts[..] {
            [part] => Some(&part.tokens),
            _ => None,
        }
    }

    /// The text on which a draw of 64 random bits falls.
    pub(super) fn drawn(&self, draw: u64) -> &Tokens {
        let part = self.parts.iter().find(|part| u128::from(draw) < part.until);
        &part.expect("the last one takes all that is left").tokens
    }
}

impl From<Tokens> for Split {
    fn from(tokens: Tokens) -> Self {
        Self::new(vec![(tokens, 1.0)])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{SourceConfig, TextFormat};
    use crate::data::reader::Needs;
    use crate::data::source::Source;

    /// Both halves of these documents, if they are told apart, or of the first one.
    fn halves(documents: &[String], needs: Needs, val_fraction: f64, chunk_bytes: usize) -> [Chunk; 2] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let record = |text| serde_json::json!({ "text": text }).to_string() + "\n";
        let (format, content, text) = match needs.documents {
            true => (TextFormat::Jsonl, documents.iter().map(record).collect(), documents.concat()),
            false => (TextFormat::Text, documents[0].clone(), documents[0].clone()),
        };
        std::fs::write(&path, content).unwrap();
        let config = SourceConfig { path, format: Some(format), ..SourceConfig::default() };
        let source = Source::find(&config).unwrap();
        let n_units = match needs.unit {
            Unit::Character => text.chars().count(),
            _ => text.len(),
        };
        let split_point = SplitPoint::of(val_fraction, needs.unit, n_units as u64);
        let mut reader = Reader::new(&source, needs);
        reader.chunk_bytes = chunk_bytes;
        let mut reader = SplitReader::new(reader, split_point);
        let mut halves = [Chunk::default(), Chunk::default()];
        while let Some((half, chunk)) = reader.next().unwrap() {
            assert!(half == Half::Val || halves[1].is_empty());
            halves[usize::from(half == Half::Val)].append(&chunk);
        }
        halves
    }

    #[test]
    fn the_split_is_pythons() {
        for (unit, n, expected) in [
            (Unit::Character, 1_115_394, SplitPoint::Characters(1_003_854)),
            (Unit::Character, 11, SplitPoint::Characters(9)),
            (Unit::Byte, 1_115_394, SplitPoint::Bytes(1_003_854)),
        ] {
            assert_eq!(SplitPoint::of(0.1, unit, n), expected);
        }
    }

    #[test]
    fn a_text_for_words_is_split_at_the_end_of_a_line() {
        let lines = ["a line of twenty b.\n".repeat(100)]; // 2000 bytes
        let needs = Needs { documents: false, ..Needs::PIECES };
        let at = |val_fraction| halves(&lines, needs, val_fraction, 64)[0].text.len();
        assert_eq!(at(0.1), 1800, "exactly at the end of one");
        assert_eq!(at(0.0951), 1820, "at the end of the one that it is in");
        assert_eq!(at(0.9999), 20);
        let text = ["\u{4e00}".repeat(400)]; // 1200 bytes
        let [train, _] = halves(&text, Needs::PIECES, 0.5, 64);
        assert_eq!(train.text.len(), 675, "a character, an eighth of the other half behind 600");
    }

    #[test]
    fn a_document_that_ends_at_the_split_ends_before_it() {
        let documents = vec!["ten bytes.".to_owned(); 10];
        for chunk_bytes in 4..30 {
            let [train, val] = halves(&documents, Needs::PIECES, 0.2, chunk_bytes);
            assert_eq!((train.text.len(), train.ends.len()), (80, 8), "{chunk_bytes}");
            assert_eq!(val.ends, [10, 20]);
        }
    }

    proptest! {
        #[test]
        fn the_split_point_does_not_depend_on_the_chunks(
            documents in prop::collection::vec("[a-z\u{e9}\n]{1,30}", 1..20),
            val_fraction in 0.01_f64..0.99,
            chunk_bytes in 4_usize..40,
        ) {
            for needs in [Needs::PIECES, Needs::CHARACTERS] {
                let whole = halves(&documents, needs, val_fraction, 1 << 20);
                prop_assert_eq!(&halves(&documents, needs, val_fraction, chunk_bytes), &whole);
                let [train, val] = whole.map(|half| String::from_utf8(half.text).unwrap());
                let n_train = train.chars().count();
                let both = train + &val;
                let expected = if needs.documents { documents.concat() } else { documents[0].clone() };
                prop_assert_eq!(&both, &expected);
                if needs.unit == Unit::Character {
                    prop_assert_eq!(n_train, ((1.0 - val_fraction) * both.chars().count() as f64) as usize);
                }
            }
        }
    }

    #[test]
    fn draws_fall_as_the_weights_say() {
        let text = |n: u32| Tokens::from_ids(&(0..n).collect::<Vec<_>>(), u64::from(n) * 2);
        let split = Split::new(vec![(text(10), 3.0), (text(1000), 1.0), (text(3), 4.0)]);
        assert_eq!(split.shares().collect::<Vec<_>>(), [0.375, 0.125, 0.5]);
        assert_eq!((split.len(), split.bytes()), (1013, 2026));
        let drawn = |sixteenth: u64| split.drawn((sixteenth << 60) + 1).len();
        let lengths: Vec<usize> = (0..16).map(drawn).collect();
        assert_eq!(lengths, [vec![10; 6], vec![1000; 2], vec![3; 8]].concat());
        assert!(split.only().is_none());
        assert_eq!(Split::from(text(5)).only().unwrap().len(), 5);
        for weights in [[1e-300, 1.0], [1.0, 1e-300], [1e150, 1e-150], [0.1, 0.2]] {
            let split = Split::new(vec![(text(1), weights[0]), (text(2), weights[1])]);
            for draw in [0, 1, u64::MAX / 2, u64::MAX] {
                split.drawn(draw); // extreme weights leave no gap
            }
        }
    }
}
