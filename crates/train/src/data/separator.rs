//! Finds the ends of documents within a text file: the positions after a separator.

/// Finds a separator in streamed text.
#[derive(Debug)]
pub(super) struct Separator {
    text: Vec<u8>,
    /// For each prefix of the separator, its longest proper prefix that is also its suffix (Knuth, Morris and Pratt
    /// 1977).
    fallback: Vec<usize>,
    /// The length of the separator prefix that the text so far ends in.
    matched: usize,
    /// The number of bytes of the document so far that are not white space, and of the separator.
    n_visible: usize,
    n_own: usize,
}

impl Separator {
    /// # Panics
    /// If the separator is empty.
    pub(super) fn new(separator: &str) -> Self {
        let text = separator.as_bytes().to_vec();
        let mut fallback = vec![0];
        for n in 2..=text.len() {
            let is_border = |m: &usize| text[..n].ends_with(&text[..*m]);
            fallback.push((0..n).rev().find(is_border).unwrap_or(0));
        }
        let n_own = text.iter().filter(|byte| !byte.is_ascii_whitespace()).count();
        Self { text, fallback, matched: 0, n_visible: 0, n_own }
    }

    /// The document ends in the next piece of the text, each after a separator. White space alone is not a document: it
    /// begins the next one.
    pub(super) fn find(&mut self, text: &[u8]) -> Vec<usize> {
        let mut ends = Vec::new();
        for (at, byte) in text.iter().enumerate() {
            self.n_visible += usize::from(!byte.is_ascii_whitespace());
            while self.matched > 0 && self.text[self.matched] != *byte {
                self.matched = self.fallback[self.matched - 1];
            }
            self.matched += usize::from(self.text[self.matched] == *byte);
            if self.matched == self.text.len() {
                self.matched = 0;
                if self.n_visible > self.n_own {
                    self.n_visible = 0;
                    ends.push(at + 1);
                }
            }
        }
        ends
    }

    /// Ends the text; returns whether it ends in a document.
    pub(super) fn end(&mut self) -> bool {
        self.matched = 0;
        std::mem::take(&mut self.n_visible) > 0
    }
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
