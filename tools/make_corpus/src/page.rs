//! The text as it is written: spaces, capitals and the article `a` or `an`.
//!
//! It knows letters, not what they say.

/// A growing text that keeps its spacing right.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
    capital_next: bool,
    article_open: bool,
}

impl Page {
    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Length of the text in characters, which are bytes.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// The next letter that is written will be a capital.
    pub fn capital_next(&mut self) {
        self.capital_next = true;
    }

    /// Writes `a`, which becomes `an` if the next word begins with a vowel.
    pub fn article(&mut self) {
        self.word("a");
        self.article_open = true;
    }

    /// Writes text and returns the offset at which it starts.
    ///
    /// A space after a space or at the start of a paragraph is dropped, and so is one before a new paragraph.
    pub fn word(&mut self, text: &str) -> usize {
        let mut start = None;
        for sign in text.chars() {
            if sign == ' ' && (self.text.is_empty() || self.text.ends_with([' ', '\n'])) {
                continue;
            }
            if sign == '\n' && self.text.ends_with(' ') {
                self.text.pop();
            }
            if self.article_open && sign != ' ' {
                self.article_open = false;
                if "aeiouAEIOU".contains(sign) {
                    let space = self.text.pop();
                    assert_eq!(space, Some(' '), "an article is followed by a space");
                    self.text.push_str("n ");
                }
            }
            start.get_or_insert(self.text.len());
            if self.capital_next && sign.is_ascii_alphabetic() {
                self.capital_next = false;
                self.text.push(sign.to_ascii_uppercase());
            } else {
                // A number at the start of a sentence needs no capital after it.
                self.capital_next &= !sign.is_ascii_digit();
                self.text.push(sign);
            }
        }
        start.unwrap_or(self.text.len())
    }

    /// Hands the text over.
    pub fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_article_fits_the_next_word() {
        let mut page = Page::default();
        for word in ["owl", "fox"] {
            page.capital_next();
            page.article();
            page.word(" ");
            page.word(" ");
            page.word(word);
            page.word(". ");
        }
        page.word("\nEnd");
        assert_eq!(page.text(), "An owl. A fox.\nEnd");
    }

    #[test]
    fn an_offset_is_that_of_the_first_letter_written() {
        let mut page = Page::default();
        page.article();
        page.word(" ");
        let start = page.word("apple");
        assert_eq!(&page.text()[start..], "apple");
    }
}
