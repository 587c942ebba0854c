//! What the corpus says about itself: where a pronoun's noun stands, where a name came first.
//!
//! Offsets count characters from the start of the corpus, which is ASCII: a character is a byte.
//! This module does not know how the text came about.

use serde_json::{Value, json};

/// A stretch of the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first character.
    pub start: usize,
    /// Length in characters.
    pub len: usize,
}

impl Span {
    /// The text that it covers.
    pub fn of(self, text: &str) -> &str {
        &text[self.start..self.start + self.len]
    }

    fn pair(self) -> [usize; 2] {
        [self.start, self.len]
    }
}

/// What a `bank` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// The side of a river, a stream or a pond.
    River,
    /// The place that keeps money.
    Money,
}

/// A place and the earlier place that settles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The pronoun, the repeated name or the answer.
    pub here: Span,
    /// Its noun, its first mention or the statement that decides it.
    pub there: Span,
    /// The noun that a pronoun could have meant instead, where only the rest of the sentence decides.
    pub instead: Option<Span>,
}

impl Link {
    fn json(&self) -> Value {
        let spans = [Some(self.here), Some(self.there), self.instead];
        json!(spans.into_iter().flatten().flat_map(Span::pair).collect::<Vec<_>>())
    }
}

/// The annotations of one story.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Name of the plot.
    pub plot: String,
    /// Offset of the story's first character.
    pub start: usize,
    /// Offset just past its last character, before the blank line.
    pub end: usize,
    /// Pronouns and their nouns.
    pub pronouns: Vec<Link>,
    /// Later mentions of a name and its first mention.
    pub names: Vec<Link>,
    /// Answers and what states them.
    pub answers: Vec<Link>,
    /// Each `bank` with what it is.
    pub banks: Vec<(usize, Sense)>,
}

impl Notes {
    /// One line of `stories.jsonl`, without its newline.
    pub fn to_line(&self) -> String {
        let Self { plot, start, end, pronouns, names, answers, banks } = self;
        let links = |links: &[Link], unclear: bool| -> Value {
            links.iter().filter(|link| link.instead.is_some() == unclear).map(Link::json).collect()
        };
        let banks_of =
            |sense: Sense| -> Value { banks.iter().filter(|bank| bank.1 == sense).map(|bank| json!(bank.0)).collect() };
        // In the order of the alphabet, which is what `serde_json` gives with and without `preserve_order`.
        json!({
            "ambiguous": links(pronouns, true),
            "answers": links(answers, false),
            "bank_money": banks_of(Sense::Money),
            "bank_river": banks_of(Sense::River),
            "end": end,
            "names": links(names, false),
            "plot": plot,
            "pronouns": links(pronouns, false),
            "start": start,
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_clear_and_unclear_pronouns_apart() {
        let (noun, other) = (Span { start: 4, len: 3 }, Span { start: 20, len: 6 });
        let here = Span { start: 35, len: 2 };
        let notes = Notes {
            pronouns: vec![Link { here, there: noun, instead: Some(other) }, Link { here, there: noun, instead: None }],
            banks: vec![(50, Sense::Money)],
            ..Notes::default()
        };
        let line: Value = serde_json::from_str(&notes.to_line()).expect("a line is JSON");
        assert_eq!(line["ambiguous"], json!([[35, 2, 4, 3, 20, 6]]));
        assert_eq!(line["pronouns"], json!([[35, 2, 4, 3]]));
        assert_eq!(line["bank_money"], json!([50]));
        assert_eq!(line["bank_river"], json!([]));
    }
}
