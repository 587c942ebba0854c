//! The division of a text into training and validation, and the tokens of one split of a corpus.
//!
//! The division is found before there are tokens, so that a tokenizer can be trained on the training split alone.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use super::Tokens;
use super::chunk::{Chunk, Half};
use tinderbox_model::tokenizer::TokenizerKind;

/// The most bytes between the exact split point and the end of the line there.
const MAX_BYTES_TO_LINE_END: u64 = 4096;

/// The most groups of documents whose lengths are kept.
const MAX_GROUPS: usize = 1 << 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Division {
    At(SplitPoint),
    Documents(HeldOut),
}

impl Division {
    /// The halves to read the text for: once for both, or first for the training split and then for validation.
    pub(super) fn passes(&self) -> &'static [Half] {
        match self {
            Self::At(_) => &[Half::Train],
            Self::Documents(_) => &[Half::Train, Half::Val],
        }
    }
}

/// The lengths of the documents of a text, in bytes. If there are very many, adjacent documents form groups of 2, 4, 8
/// and so on, so that the memory is bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DocumentLengths {
    n_documents: u64,
    documents_per_group: u64,
    groups: Vec<u64>,
}

impl Default for DocumentLengths {
    fn default() -> Self {
        Self { n_documents: 0, documents_per_group: 1, groups: Vec::new() }
    }
}

impl DocumentLengths {
    pub(super) fn begin(&mut self) {
        if self.n_documents.is_multiple_of(self.documents_per_group) {
            if self.groups.len() == MAX_GROUPS {
                self.documents_per_group *= 2;
                self.groups = self.groups.chunks(2).map(|pair| pair.iter().sum()).collect();
            }
            self.groups.push(0);
        }
        self.n_documents += 1;
    }

    /// Adds to the length of the current document.
    pub(super) fn add(&mut self, n_bytes: usize) {
        if let Some(group) = self.groups.last_mut() {
            *group += n_bytes as u64;
        }
    }
}

/// The documents of a text that are held out for validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldOut {
    documents_per_group: u64,
    groups: Arc<[bool]>,
    /// The length of the other documents.
    pub train_bytes: u64,
    pub val_bytes: u64,
}

impl HeldOut {
    /// Draws documents until they make up `val_fraction` of the text; documents that would exceed it are skipped.
    /// `None` if this gives less than half of it, because the text has a few long documents.
    pub(super) fn draw(lengths: &DocumentLengths, val_fraction: f64, seed: u64) -> Option<Self> {
        let n_bytes: u64 = lengths.groups.iter().sum();
        let wanted = n_bytes - n_train_units(val_fraction, n_bytes);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut order: Vec<(u64, usize)> = (0..lengths.groups.len()).map(|idx| (rng.next_u64(), idx)).collect();
        order.sort_unstable();
        let mut groups = vec![false; lengths.groups.len()];
        let mut val_bytes = 0;
        for (_, idx) in order {
            if val_bytes + lengths.groups[idx] <= wanted {
                groups[idx] = true;
                val_bytes += lengths.groups[idx];
            }
        }
        let (documents_per_group, train_bytes) = (lengths.documents_per_group, n_bytes - val_bytes);
        (val_bytes > wanted / 2).then(|| Self { documents_per_group, groups: groups.into(), train_bytes, val_bytes })
    }

    /// Whether the document with this index, counted from 0, is held out.
    pub(super) fn holds(&self, document_idx: u64) -> bool {
        let group = usize::try_from(document_idx / self.documents_per_group).ok();
        group.and_then(|group| self.groups.get(group)).is_some_and(|is_held| *is_held)
    }

    pub(super) fn hash(&self) -> [u8; 32] {
        let groups: Vec<u8> = self.groups.iter().map(|is_held| u8::from(*is_held)).collect();
        Sha256::new().chain_update(self.documents_per_group.to_le_bytes()).chain_update(groups).finalize().into()
    }
}

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

    /// The position in a chunk where the training split ends; if it continues, subtracts the chunk's length and returns
    /// `None`.
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

/// The number of training units out of `n`: Python's `int((1 - val_fraction) * n)`.
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
    /// 64-bit draws below this bound, but not below the previous part's, select this part.
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
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &Tokens> {
        self.parts.iter().map(|part| &part.tokens)
    }

    /// The number of tokens in all texts.
    pub fn len(&self) -> usize {
        self.texts().map(Tokens::len).sum()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.texts().all(Tokens::is_empty)
    }

    /// The number of tokens of each id, `[vocab_size]`, that have others before them, and so count in a loss.
    pub fn counts(&self, vocab_size: usize) -> Vec<u64> {
        let mut counts = vec![0; vocab_size];
        self.texts().for_each(|tokens| tokens.count_after_first(&mut counts));
        counts
    }

    /// The bytes of text that the tokens stand for.
    pub fn bytes(&self) -> u64 {
        self.texts().map(Tokens::bytes).sum()
    }

    /// The text that 64 random bits select, and their position within its share, as a fraction of 2^64.
    pub(super) fn drawn(&self, draw: u64) -> (&Tokens, u64) {
        let draw = u128::from(draw);
        let idx = self.parts.iter().position(|part| draw < part.until);
        let idx = idx.expect("the last one takes all that is left");
        let from = if idx == 0 { 0 } else { self.parts[idx - 1].until };
        let WeightedText { tokens, until } = &self.parts[idx];
        let fraction = ((draw - from) << 64) / (until - from);
        (tokens, u64::try_from(fraction).expect("the fraction is below 2^64"))
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
    fn split_point_matches_python() {
        for (n, expected) in [(1_115_394, 1_003_854), (11, 9)] {
            assert_eq!(SplitPoint::new(0.1, TokenizerKind::Char, n), SplitPoint::Characters(expected));
            assert_eq!(SplitPoint::new(0.1, TokenizerKind::Byte, n), SplitPoint::Bytes(expected));
        }
    }

    #[test]
    fn held_out_documents_fill_fraction_and_depend_on_seed() {
        let lengths_of = |lengths: &[usize]| {
            let mut found = DocumentLengths::default();
            for length in lengths {
                found.begin();
                found.add(length / 2);
                found.add(length - length / 2);
            }
            found
        };
        let held = |lengths: &DocumentLengths, seed| HeldOut::draw(lengths, 0.1, seed);
        for n in [30, MAX_GROUPS, 5 * MAX_GROUPS + 3] {
            let lengths: Vec<usize> = (0..n).map(|idx| 20 + idx % 7).collect();
            let n_bytes: usize = lengths.iter().sum();
            let measured = lengths_of(&lengths);
            assert!(measured.groups.len() <= MAX_GROUPS);
            let [one, same, other] = [1, 1, 2].map(|seed| held(&measured, seed).unwrap());
            assert!(one == same && one != other && one.hash() != other.hash());
            let val: usize =
                lengths.iter().enumerate().filter(|(idx, _)| one.holds(*idx as u64)).map(|(_, length)| length).sum();
            assert_eq!((one.train_bytes, one.val_bytes), ((n_bytes - val) as u64, val as u64));
            assert!(val <= n_bytes.div_ceil(10) && val > n_bytes / 20, "{n}: {val}");
        }
        assert_eq!(held(&lengths_of(&[50, 50, 50]), 1), None, "a document is more than the tenth");
        assert!((0..9).all(|seed| !held(&lengths_of(&[1000, 60, 60]), seed).unwrap().holds(0)));
    }

    #[test]
    fn draws_follow_weights() {
        let text = |n: u32| Tokens::from_ids(&(0..n).collect::<Vec<_>>(), u64::from(n) * 2);
        let split = Split::new(vec![(text(10), 3.0), (text(1000), 1.0), (text(3), 4.0)]);
        assert_eq!((split.len(), split.bytes()), (1013, 2026));
        let drawn = |sixteenth: u64| split.drawn((sixteenth << 60) + 1).0.len();
        let lengths: Vec<usize> = (0..16).map(drawn).collect();
        assert_eq!(lengths, [vec![10; 6], vec![1000; 2], vec![3; 8]].concat());
        let fractions: Vec<u64> = (0..16).map(|sixteenth: u64| split.drawn(sixteenth << 60).1 >> 52).collect();
        let even = |n: u64| (0..n).map(move |part| 4096 * part / n);
        assert_eq!(fractions, even(6).chain(even(2)).chain(even(8)).collect::<Vec<_>>());
        for [one, other] in [[1e-300, 1.0], [1.0, 1e-300], [1e150, 1e-150], [0.1, 0.2]] {
            let split = Split::new(vec![(text(1), one), (text(2), other)]);
            for draw in [0, 1, u64::MAX / 2, u64::MAX] {
                split.drawn(draw); // extreme weights leave no gap
            }
        }
    }
}
