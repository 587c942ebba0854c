//! The slots that come back to what a story said before: things, numbers, colours, places, banks.
//!
//! Whatever comes back is a copy, which costs no choice, and leaves a note of where it came from.

use crate::cast::Names;
use crate::notes::{Link, Sense, Span};
use crate::teller::Teller;

/// Words for 0 to 24, which sums of two small numbers do not leave.
const NUMBER_WORDS: [&str; 25] = [
    "none",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "twenty-one",
    "twenty-two",
    "twenty-three",
    "twenty-four",
];

/// Words that a story has chosen and can come back to.
#[derive(Clone, Debug)]
pub struct Memory {
    /// First and second form: singular and plural, or word and digits.
    pub forms: [String; 2],
    /// The form that was written.
    pub said: String,
    /// Where it stood first.
    pub first: Span,
    /// Where it stood last: what `it` refers to.
    pub last: Span,
}

impl Teller {
    pub fn remember(&mut self, var: &str, forms: [String; 2], before: usize) {
        let wide = self.span_since(before);
        let text = wide.of(self.page.text());
        // An open article may have put an `n ` in front of the word.
        let said = forms.iter().find(|form| text.to_lowercase().ends_with(&form.to_lowercase()));
        let said = said.expect("what was written is one of the two forms").clone();
        let span = Span { start: wide.start + wide.len - said.len(), len: said.len() };
        self.story.memories.insert(var.to_owned(), Memory { forms, said, first: span, last: span });
    }

    fn memory(&self, var: &str) -> &Memory {
        self.story.memories.get(var).unwrap_or_else(|| panic!("`{var}` was never set in a `{}`", self.story.notes.plot))
    }

    pub fn recall(&mut self, var: &str, field: &str) {
        let memory = self.memory(var).clone();
        let (field, other) = field.split_once('~').map_or((field, None), |(field, other)| (field, Some(other)));
        let (text, is_answer) = match field {
            "said" => (memory.said.as_str(), false),
            "one" => (memory.forms[0].as_str(), false),
            "s" => (memory.forms[1].as_str(), false),
            "answer" => (memory.forms[0].as_str(), true),
            "answers" => (memory.forms[1].as_str(), true),
            "it" | "its" | "they" | "them" | "their" => {
                let instead = other.map(|other| self.memory(other).last);
                let here = Span { start: self.page.word(field), len: field.len() };
                return self.story.notes.pronouns.push(Link { here, there: memory.last, instead });
            }
            _ => panic!("a memory has no field `{field}`"),
        };
        let here = Span { start: self.page.word(text), len: text.len() };
        if is_answer {
            self.story.notes.answers.push(Link { here, there: memory.first, instead: None });
        } else if let Some(memory) = self.story.memories.get_mut(var) {
            memory.last = here;
        }
    }

    pub fn compute(&mut self, var: &str, operation: &str, other: &str) {
        let value = |raw: &str| raw.parse::<usize>().unwrap_or_else(|_| panic!("`{raw}` is no number"));
        let a = value(&self.memory(var).forms[1]);
        let b = value(self.story.memories.get(other).map_or(other, |memory| &memory.forms[1]));
        let word = NUMBER_WORDS[if operation == "minus" { a - b } else { a + b }];
        let here = Span { start: self.page.word(word), len: word.len() };
        let there = self.memory(var).first;
        self.story.notes.answers.push(Link { here, there, instead: None });
    }

    pub fn bank(&mut self, word: &str, field: Option<&str>) {
        let sense = match field {
            Some("river") => Sense::River,
            Some("money") => Sense::Money,
            _ => panic!("a bank is a river's or money's"),
        };
        let start = self.page.word(word);
        self.story.notes.banks.push((start, sense));
    }

    pub fn place(&mut self, kind: &str) {
        let (key, names) = if kind == "town" { ("town", Names::Town) } else { ("river", Names::River) };
        if let Some(memory) = self.story.places.get(key).cloned() {
            let here = Span { start: self.page.word(&memory.said), len: memory.said.len() };
            self.story.notes.names.push(Link { here, there: memory.first, instead: None });
            return;
        }
        let said = self.new_name(names);
        let span = Span { start: self.page.word(&said), len: said.len() };
        let memory = Memory { forms: [said.clone(), said.clone()], said, first: span, last: span };
        self.story.places.insert(key, memory);
    }

    /// A name from a table that this story has not used yet.
    pub fn new_name(&mut self, names: Names) -> String {
        let used = self.story.used_names.entry(names).or_default();
        let mut index = self.chooser.uniform(names.count() - used.len() as u64, self.page.len());
        // `used` is sorted, so that skipping makes the draw uniform over what is left.
        for &taken in used.iter() {
            index += u64::from(index >= taken);
        }
        used.insert(used.partition_point(|&taken| taken < index), index);
        names.name(index)
    }
}
