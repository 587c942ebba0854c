//! A text in pieces that encode to the same tokens as the whole of it does.

use super::DataError;
use super::divide::{Divided, Half};
use super::reader::Chunk;

/// The longest text that is held back in search of a place to cut. Beyond that, as with megabytes
/// without any space, or a tokenizer that gives no such place, it is cut at the end of a line, or
/// where there is none between two characters, which may change the tokens beside the cut.
const MOST_BYTES_HELD_BACK: usize = 1 << 22;

/// Reads a text in pieces that may be encoded one by one.
pub(super) struct Pieces<'a, C> {
    divided: Divided<'a>,
    cut: C,
    most_bytes_held_back: usize,
    /// The end of what was read, which has to wait for what follows it.
    held_back: Option<(Half, Chunk)>,
}

impl<'a, C: FnMut(&[u8]) -> usize> Pieces<'a, C> {
    /// Cuts where `cut` says: it returns the last place up to which a text may be encoded without
    /// knowing what follows, or 0.
    pub(super) fn new(divided: Divided<'a>, cut: C) -> Self {
        Self { divided, cut, most_bytes_held_back: MOST_BYTES_HELD_BACK, held_back: None }
    }

    #[cfg(test)]
    fn with_most_bytes_held_back(self, most_bytes_held_back: usize) -> Self {
        Self { most_bytes_held_back, ..self }
    }

    /// The next piece, which may hold several documents, and where it belongs; none at the end.
    ///
    /// # Errors
    /// As [`Divided::next`].
    pub(super) fn next(&mut self) -> Result<Option<(Half, Chunk)>, DataError> {
        loop {
            let Some((half, chunk)) = self.divided.next()? else {
                return Ok(self.held_back.take());
            };
            let mut piece = match self.held_back.take() {
                Some((before, held_back)) if before != half => {
                    self.held_back = Some((half, chunk)); // cut when the next one is here
                    return Ok(Some((before, held_back)));
                }
                Some((_, held_back)) => joined(held_back, chunk),
                None => chunk,
            };
            let at = self.end_of_piece(&piece);
            let rest = piece.split_off(at);
            self.held_back = Some((half, rest)).filter(|(_, rest)| !rest.is_empty());
            if !piece.is_empty() {
                return Ok(Some((half, piece)));
            }
        }
    }

    /// Up to where a piece may be encoded.
    fn end_of_piece(&mut self, piece: &Chunk) -> usize {
        let start = piece.ends.last().copied().unwrap_or(0);
        let open_document = &piece.text[start..];
        match (self.cut)(open_document) {
            0 if open_document.len() > self.most_bytes_held_back => {
                start + end_of_line(open_document)
            }
            n => start + n,
        }
    }
}

/// The end of the last whole line, or of all if there is none.
fn end_of_line(text: &[u8]) -> usize {
    let last = text.iter().rposition(|byte| *byte == b'\n');
    last.map_or(text.len(), |at| at + 1)
}

fn joined(mut first: Chunk, second: Chunk) -> Chunk {
    let n = first.text.len();
    first.text.extend_from_slice(&second.text);
    first.ends.extend(second.ends.iter().map(|end| n + end));
    first
}

#[cfg(test)]
mod tests {
    use super::super::divide::Place;
    use super::super::reader::{Needs, Reader};
    use super::super::source::Source;
    use super::*;
    use crate::config::SourceConfig;

    /// The pieces of a text in which there is no place to cut, read four bytes at a time.
    fn pieces(text: &str, most_bytes_held_back: usize) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, text).unwrap();
        let source = Source::find(&SourceConfig { path, ..SourceConfig::default() });
        let source = source.unwrap();
        let reader = Reader::new(&source, Needs::of_new_bpe()).with_chunk_bytes(4);
        let mut pieces = Pieces::new(Divided::new(reader, Place::beginning()), |_| 0)
            .with_most_bytes_held_back(most_bytes_held_back);
        let mut found = Vec::new();
        while let Some((_, chunk)) = pieces.next().unwrap() {
            found.push(String::from_utf8(chunk.text).unwrap());
        }
        found
    }

    #[test]
    fn without_a_place_to_cut_a_text_is_cut_at_the_end_of_a_line() {
        let text = "one\ntwo\nthree\nfour\n";
        assert_eq!(pieces(text, 100), [text], "what can be held back is");
        assert_eq!(pieces(text, 10), ["one\ntwo\n", "three\nfour\n"]);
    }

    #[test]
    fn without_a_line_a_text_is_cut_between_characters() {
        let text = "\u{4e00}".repeat(7);
        let pieces = pieces(&text, 10);
        assert!(pieces.len() > 1, "{pieces:?}");
        assert!(pieces.iter().all(|piece| piece.len() <= 14), "{pieces:?}");
        assert_eq!(pieces.concat(), text);
    }
}
