//! Finds the ends of documents within a text file: the positions after a separator.

use std::mem;

/// Finds a separator in streamed text.
#[derive(Debug)]
pub(super) struct Separator {
    text: Vec<u8>,
    /// The last bytes so far, in which a separator may begin.
    tail: Vec<u8>,
    /// Whether the document has anything but white space before these.
    has_text: bool,
}

impl Separator {
    pub(super) fn new(separator: &str) -> Self {
        Self { text: separator.as_bytes().to_vec(), tail: Vec::new(), has_text: false }
    }

    /// The document ends in the next piece of the text, each after a separator. White space alone is not a document: it
    /// begins the next one.
    pub(super) fn find(&mut self, text: &[u8]) -> Vec<usize> {
        let (n, first) = (self.text.len(), self.text[0]);
        let is_separator = |window: &[u8]| window[0] == first && window == self.text; // most windows differ in a byte
        let joined = [&self.tail[..], text].concat();
        let (mut ends, mut start) = (Vec::new(), 0);
        while let Some(at) = joined[start..].windows(n).position(is_separator) {
            let (before, end) = (start..start + at, start + at + n);
            if self.has_text || has_text(&joined[before]) {
                self.has_text = false;
                ends.push(end - self.tail.len());
            } else {
                self.has_text = has_text(&self.text);
            }
            start = end;
        }
        let tail = start.max((joined.len() + 1).saturating_sub(n));
        self.has_text |= has_text(&joined[start..tail]);
        self.tail = joined[tail..].to_vec();
        ends
    }

    /// Ends the text; returns whether it ends in a document.
    pub(super) fn end(&mut self) -> bool {
        has_text(&mem::take(&mut self.tail)) | mem::take(&mut self.has_text)
    }
}

fn has_text(bytes: &[u8]) -> bool {
    !bytes.trim_ascii().is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The ends that are found in these pieces of a text, the last one included.
    fn ends<'a>(separator: &str, pieces: impl IntoIterator<Item = &'a str>) -> Vec<usize> {
        let mut separator = Separator::new(separator);
        let (mut ends, mut n) = (Vec::new(), 0);
        for piece in pieces {
            ends.extend(separator.find(piece.as_bytes()).into_iter().map(|end| n + end));
            n += piece.len();
        }
        ends.extend(separator.end().then_some(n));
        assert!(!separator.end(), "the next text begins anew");
        ends
    }

    #[test]
    fn documents_end_after_separators_and_at_text_end() {
        for (separator, text, expected) in [
            ("\n\n", "one\nmore\n\ntwo\n\n", &[10, 15][..]),
            ("\n\n", "one\n\ntwo", &[5, 8]),
            ("\n\n", "\n\none\n\n\n\n \n\ntwo\n\n\n", &[7, 17]), // empty lines are not documents
            ("\n---\n", "---\n---\none\n---\n\n---\ntwo", &[8, 16, 24]),
            ("aab", "aaab", &[4]),
            ("\n\n", " \n", &[]),
            ("\n\n", "", &[]),
        ] {
            assert_eq!(ends(separator, [text]), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn ends_do_not_depend_on_chunks(
            text in "[ab\n ]{0,40}",
            separator in "[ab\n]{1,4}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
        ) {
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces = at.windows(2).map(|ends| &text[ends[0]..ends[1]]);
            let found = ends(&separator, pieces);
            prop_assert_eq!(&found, &ends(&separator, [text.as_str()]));
            // Documents are whole texts between separators, unless they are blank.
            let (mut start, mut expected, mut from) = (0, Vec::new(), 0);
            while let Some(n) = text[from..].find(separator.as_str()) {
                let end = from + n + separator.len();
                if !text[start..end - separator.len()].trim().is_empty() {
                    expected.push(end);
                    start = end;
                }
                from = end;
            }
            expected.extend((!text[start..].trim().is_empty()).then_some(text.len()));
            prop_assert_eq!(found, expected);
        }
    }
}
