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
        // The fraction of a length below 2^53 is exact enough: this is Python's `int(0.9 * n)`.
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss
        )]
        let n_train = ((1.0 - val_fraction) * n_units as f64) as u64;
        match unit {
            Unit::Byte => Self::Bytes(n_train),
            Unit::Character => Self::Characters(n_train),
            Unit::Text => Self::LineEnd {
                from: n_train,
                // Of a short text, nearly all of the validation split would be lost on the way.
                latest: n_train + MOST_BYTES_TO_LINE_END.min((n_units - n_train) / 8),
            },
        }
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
        Self {
            reader,
            place,
            position: 0,
            half: Half::Train,
            rest: None,
        }
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
    [end_of_document, end_of_line, at_latest]
        .into_iter()
        .flatten()
        .min()
}

/// Whether a character begins with this byte.
fn is_first(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

fn length(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
