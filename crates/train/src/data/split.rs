//! The point at which a text is split into training and validation, and the tokens of one split of a corpus.
//!
//! The split point is found before there are tokens, so that a tokenizer can be trained on the training split alone.

use super::Tokens;
use super::reader::Chunk;
use tinderbox_model::tokenizer::TokenizerKind;

/// The most bytes between the exact split point and the end of the line there.
const MAX_BYTES_TO_LINE_END: u64 = 4096;

/// The point at which the training split ends, counted from the start of the next chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SplitPoint {
    Bytes(u64),
    Characters(u64),
    /// At the first end of a line or of a document at least `from` bytes away; if there is none before `latest`, at the
    /// first character from there on.
    LineEnd {
        from: u64,
        latest: u64,
    },
}

impl SplitPoint {
    /// The whole text is for validation.
    pub(super) const START: Self = Self::Bytes(0);

    /// The split point that leaves `val_fraction` of a text of `n_units` for validation.
    pub(super) fn new(val_fraction: f64, kind: TokenizerKind, n_units: u64) -> Self {
        let n_train = n_train_units(val_fraction, n_units);
        match kind {
            TokenizerKind::Byte => Self::Bytes(n_train),
            TokenizerKind::Char => Self::Characters(n_train),
            TokenizerKind::Bpe | TokenizerKind::File => Self::LineEnd {
                from: n_train,
                // In a short text the search for a line end could use up nearly all of the validation split.
                latest: n_train + MAX_BYTES_TO_LINE_END.min((n_units - n_train) / 8),
            },
        }
    }

    /// The position in a chunk at which the training split ends; `None`, with the chunk's length subtracted, if it goes
    /// on.
    pub(super) fn find(&mut self, chunk: &Chunk) -> Option<usize> {
        let n_bytes = chunk.text.len();
        match self {
            Self::Bytes(n) => within(n, n_bytes),
            Self::Characters(n) => {
                let n_characters = chunk.text.iter().filter(|byte| is_first(**byte)).count();
                let nth = within(n, n_characters)?;
                let mut firsts = (0..n_bytes).filter(|at| is_first(chunk.text[*at]));
                Some(firsts.nth(nth).unwrap_or(n_bytes))
            }
            Self::LineEnd { from, latest } => {
                let at = line_end(chunk, length(*from), length(*latest));
                *from = from.saturating_sub(n_bytes as u64);
                *latest = latest.saturating_sub(n_bytes as u64);
                at
            }
        }
    }
}

/// `n` as a position, if it is within the next `length`; otherwise subtracts `length` from it.
fn within(n: &mut u64, length: usize) -> Option<usize> {
    if *n <= length as u64 {
        return usize::try_from(*n).ok();
    }
    *n -= length as u64;
    None
}

/// The number of units, out of `n`, that are for training: Python's `int((1 - val_fraction) * n)`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lengths are below 2^53")]
pub(super) fn n_train_units(val_fraction: f64, n: u64) -> u64 {
    ((1.0 - val_fraction) * n as f64) as u64
}

/// The position in a chunk of a [`SplitPoint::LineEnd`] with these bounds, both relative to the chunk.
fn line_end(chunk: &Chunk, from: usize, latest: usize) -> Option<usize> {
    let text = &chunk.text;
    let end_of_document = chunk.ends.iter().copied().find(|end| *end >= from);
    let before = from.saturating_sub(1); // a line may end exactly there
    let line_break = text.iter().skip(before).position(|byte| *byte == b'\n');
    let end_of_line = line_break.map(|n| before + n + 1);
    let at_latest = (latest..text.len()).find(|at| is_first(text[*at]));
    [end_of_document, end_of_line, at_latest].into_iter().flatten().min()
}

/// Whether this byte starts a character.
fn is_first(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

fn length(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// The tokens of one split of one or several texts. No window crosses from one text into another. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Split {
    parts: Vec<WeightedText>,
}

#[derive(Debug, Clone)]
struct WeightedText {
    tokens: Tokens,
    /// 64-bit draws below this bound, and not below that of the part before, select this part.
    until: u128,
}

impl Split {
    /// Weighted texts: a window is drawn from each with probability weight / sum of all weights.
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
            WeightedText { tokens, until }
        });
        Self { parts: parts.collect() }
    }

    /// The tokens of each text.
    #[must_use]
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &Tokens> {
        self.parts.iter().map(|part| &part.tokens)
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

    /// The text that 64 random bits select, and the fraction, of 2^64, at which they fall within it.
    pub(super) fn drawn(&self, draw: u64) -> (&Tokens, u64) {
        let draw = u128::from(draw);
        let idx = self.parts.iter().position(|part| draw < part.until);
        let idx = idx.expect("the last one takes all that is left");
        let from = if idx == 0 { 0 } else { self.parts[idx - 1].until };
        let WeightedText { tokens, until } = &self.parts[idx];
        let fraction = ((draw - from) << 64) / (until - from);
        (tokens, u64::try_from(fraction).expect("below the whole"))
    }
}

impl From<Tokens> for Split {
    fn from(tokens: Tokens) -> Self {
        Self::new(vec![(tokens, 1.0)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_is_pythons() {
        for (n, expected) in [(1_115_394, 1_003_854), (11, 9)] {
            assert_eq!(SplitPoint::new(0.1, TokenizerKind::Char, n), SplitPoint::Characters(expected));
            assert_eq!(SplitPoint::new(0.1, TokenizerKind::Byte, n), SplitPoint::Bytes(expected));
        }
    }

    #[test]
    fn draws_fall_as_the_weights_say() {
        let text = |n: u32| Tokens::from_ids(&(0..n).collect::<Vec<_>>(), u64::from(n) * 2);
        let split = Split::new(vec![(text(10), 3.0), (text(1000), 1.0), (text(3), 4.0)]);
        assert_eq!((split.len(), split.bytes()), (1013, 2026));
        let drawn = |sixteenth: u64| split.drawn((sixteenth << 60) + 1).0.len();
        let lengths: Vec<usize> = (0..16).map(drawn).collect();
        assert_eq!(lengths, [vec![10; 6], vec![1000; 2], vec![3; 8]].concat());
        let fractions: Vec<u64> = (0..16).map(|sixteenth: u64| split.drawn(sixteenth << 60).1 >> 52).collect();
        let even = |n: u64| (0..n).map(move |part| 4096 * part / n);
        assert_eq!(fractions, even(6).chain(even(2)).chain(even(8)).collect::<Vec<_>>());
        assert!(split.only().is_none());
        assert_eq!(Split::from(text(5)).only().unwrap().len(), 5);
        for [one, other] in [[1e-300, 1.0], [1.0, 1e-300], [1e150, 1e-150], [0.1, 0.2]] {
            let split = Split::new(vec![(text(1), one), (text(2), other)]);
            for draw in [0, 1, u64::MAX / 2, u64::MAX] {
                split.drawn(draw); // extreme weights leave no gap
            }
        }
    }
}
    /// The number of tokens with this id that have others before them, and so count in a loss.
    #[must_use]
    pub fn count(&self, id: u32) -> u64 {
        self.texts().map(|tokens| tokens.count_after_first(id)).sum()
    }

