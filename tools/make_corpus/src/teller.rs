//! Tells one story after another: walks through the grammar, fills the slots, keeps the notes.
//!
//! It knows what each slot means and what a story has settled so far. It does not know the words: those
//! are the grammar's. The slots:
//!
//! ```text
//! {pool}  {pool.s}         one alternative of a pool; its second form (`leaf/leaves`)
//! {pool=x}                 the same, and from now on `x` stands for what was written
//! {pool h}                 the same, with `me` standing for the character `h`
//! {^...}                   any slot, with its first letter a capital
//! {a}                      the article `a` or `an`
//! {cast h=hero f=animal}   who is in the story
//! {h} {h.s} {h.the}        a character by name; by whatever fits a subject; by `the fox`
//! {h.he} {h.him} {h.his}   a pronoun, or the name where the pronoun could mean somebody else
//! {h.noun} {h.himself}     `fox`; `herself`
//! {h.went}                 the pool `went_beast` or `went`, with `me` standing for `h`
//! {both} {they} {them} {their}   the characters `h` and `f` together
//! {=x} {x.one} {x.s}       the words of `x` again; its first and its second form
//! {x.it} {x.it~y}          a pronoun for `x`; one that could have meant `y`
//! {x.answer} {x.answers}   the first or second form of `x` as the answer to a question
//! {n.minus m} {n.plus m}   a number word computed from two others
//! {bank.river} {bank.money} {town} {river}
//! {rare} {elsewhere}       the name of somebody, or of a town, that does not come again
//! ```

use std::collections::BTreeMap;

use crate::cast::{Character, Gender, Names, Role};
use crate::chooser::Chooser;
use crate::grammar::{Grammar, Piece, pieces};
use crate::memories::Memory;
use crate::notes::{Notes, Span};
use crate::page::Page;

/// What the story under way has settled.
#[derive(Debug, Default)]
pub struct Story {
    /// Characters by their letter.
    pub cast: BTreeMap<String, Character>,
    /// What the grammar has bound to a letter.
    pub memories: BTreeMap<String, Memory>,
    /// Alternatives that had their turn, by pool.
    pub used: BTreeMap<String, Vec<usize>>,
    /// Names that had their turn, sorted.
    pub used_names: BTreeMap<Names, Vec<u64>>,
    /// The story's town and river.
    pub places: BTreeMap<&'static str, Memory>,
    /// Whom a pronoun of this gender would be taken to mean.
    pub focus: BTreeMap<Gender, String>,
    /// Where `{both}` stood last.
    pub pair: Option<Span>,
    /// Whom a pool is about; the innermost last.
    pub me: Vec<String>,
    /// The notes so far.
    pub notes: Notes,
}

/// Writes stories one after another.
pub struct Teller {
    /// Where the words come from.
    pub grammar: Grammar,
    /// Where the choices come from.
    pub chooser: Chooser,
    /// Where the text goes.
    pub page: Page,
    /// What is settled in this story.
    pub story: Story,
}

impl Teller {
    /// A teller with an empty page.
    pub fn new(grammar: Grammar, seed: [u8; 32]) -> Self {
        Self { grammar, chooser: Chooser::new(seed), page: Page::default(), story: Story::default() }
    }

    /// Length of the text so far, in characters.
    pub fn len(&self) -> usize {
        self.page.len()
    }

    /// Writes one more story, followed by a blank line, and returns its notes.
    pub fn tell(&mut self) -> Notes {
        self.story = Story::default();
        let start = self.page.len();
        self.pool("story", 0, None);
        let end = self.page.len();
        self.page.word("\n\n");
        let mut notes = std::mem::take(&mut self.story.notes);
        (notes.start, notes.end) = (start, end);
        notes
    }

    /// Hands over the text and the record of all choices.
    pub fn finish(self) -> (String, Chooser) {
        (self.page.into_text(), self.chooser)
    }

    fn text(&mut self, text: &str) {
        for piece in pieces(text) {
            match piece {
                Piece::Literal(literal) => self.literal(literal),
                Piece::Slot(slot) => self.slot(slot),
                Piece::Choice(options) => {
                    let weights: Vec<u64> = options.iter().map(|option| option.weight).collect();
                    let taken = self.chooser.weighted(&weights, self.page.len());
                    self.text(&options[taken].text);
                }
            }
        }
    }

    fn literal(&mut self, literal: &str) {
        for (i, paragraph) in literal.split("\\n").enumerate() {
            if i > 0 {
                self.page.word("\n");
                // A new paragraph starts with names, not with pronouns.
                self.story.focus.clear();
            }
            self.page.word(paragraph);
        }
    }

    /// Takes one alternative of a pool and returns its text, with slots and brackets still in it.
    ///
    /// A story takes every alternative once before it takes one twice, unless the pool says otherwise.
    fn take(&mut self, name: &str) -> String {
        let pool = self.grammar.pool(name).unwrap_or_else(|| panic!("there is no pool `{name}`"));
        let mut weights: Vec<u64> = pool.alternatives.iter().map(|alternative| alternative.weight).collect();
        let used = self.story.used.entry(name.to_owned()).or_default();
        if pool.repeats || used.len() == weights.len() {
            used.clear();
        }
        for &index in used.iter() {
            weights[index] = 0;
        }
        let taken = self.chooser.weighted(&weights, self.page.len());
        used.push(taken);
        pool.alternatives[taken].text.clone()
    }

    /// Takes the first form of an alternative without writing it.
    pub fn take_word(&mut self, pool: &str) -> String {
        let text = self.take(pool);
        text.split_once('/').map_or(text.as_str(), |(one, _)| one).to_owned()
    }

    /// Writes one alternative of a pool, in its first or second form, and returns both forms.
    pub fn pool(&mut self, name: &str, form: usize, me: Option<&str>) -> [String; 2] {
        let text = self.take(name);
        if name == "story" {
            let plot = text.trim_matches(['{', '}']).trim_start_matches("plot_");
            plot.clone_into(&mut self.story.notes.plot);
        }
        if let Some(me) = me {
            self.story.me.push(me.to_owned());
        }
        let forms = match text.split_once('/') {
            Some((one, many)) => {
                self.page.word([one, many][form]);
                [one.to_owned(), many.to_owned()]
            }
            None if form == 1 => {
                let many = format!("{text}s");
                self.page.word(&many);
                [text, many]
            }
            None => {
                let start = self.page.len();
                self.text(&text);
                let said = self.span_since(start).of(self.page.text()).to_owned();
                [said.clone(), format!("{said}s")]
            }
        };
        if me.is_some() {
            self.story.me.pop();
        }
        forms
    }

    fn slot(&mut self, slot: &str) {
        let slot = match slot.strip_prefix('^') {
            Some(rest) => {
                self.page.capital_next();
                rest
            }
            None => slot,
        };
        if let Some(cast) = slot.strip_prefix("cast ") {
            for part in cast.split(' ') {
                let (id, role) = part.split_once('=').expect("a cast entry reads `h=hero`");
                self.story.cast.insert(id.to_owned(), Character::new(Role::parse(role)));
            }
            return;
        }
        if let Some(var) = slot.strip_prefix('=') {
            return self.recall(var, "said");
        }
        let (slot, bind) = slot.split_once('=').map_or((slot, None), |(slot, var)| (slot, Some(var)));
        let (slot, argument) = slot.split_once(' ').map_or((slot, None), |(slot, argument)| (slot, Some(argument)));
        let (head, field) = slot.split_once('.').map_or((slot, None), |(head, field)| (head, Some(field)));
        let start = self.page.len();
        match head {
            "a" => self.page.article(),
            "bank" | "banks" => self.bank(head, field),
            "town" | "river" => self.place(head),
            "rare" | "elsewhere" => {
                let name = self.new_name(if head == "rare" { Names::Rare } else { Names::Town });
                self.page.word(&name);
            }
            "both" | "they" | "them" | "their" => self.pair(head),
            _ if self.story.memories.contains_key(head) => match (field, argument) {
                (Some(operation @ ("minus" | "plus")), Some(other)) => {
                    self.compute(head, operation, other);
                }
                (Some(field), _) => self.recall(head, field),
                (None, _) => panic!("`{head}` is a memory: write `{{={head}}}`"),
            },
            _ => {
                if let Some(id) = self.resolve(head) {
                    return self.character(&id, field);
                }
                let me = argument.map(|raw| self.resolve(raw).unwrap_or_else(|| panic!("`{raw}` is nobody")));
                let forms = self.pool(head, usize::from(field == Some("s")), me.as_deref());
                if let Some(var) = bind {
                    self.remember(var, forms, start);
                }
            }
        }
    }

    /// The character that a letter, or `me`, stands for.
    fn resolve(&self, raw: &str) -> Option<String> {
        let id = if raw == "me" { self.story.me.last()?.as_str() } else { raw };
        self.story.cast.contains_key(id).then(|| id.to_owned())
    }

    /// What was written since `start`, without spaces around it.
    pub fn span_since(&self, start: usize) -> Span {
        let text = &self.page.text()[start.min(self.page.len())..];
        let lead = text.len() - text.trim_start().len();
        Span { start: start + lead, len: text.trim().len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tell(grammar: &str) -> (String, Notes) {
        let mut teller = Teller::new(Grammar::parse(&[grammar]), [7; 32]);
        let notes = teller.tell();
        (teller.finish().0, notes)
    }

    #[test]
    fn what_is_bound_comes_back_without_a_choice() {
        let (text, notes) =
            tell(":story\n{number.s=n} {fruit.s=x}. {^n.answer}. {^=x}.\n:number\nseven/7\n:fruit\npear\n");
        assert_eq!(text, "7 pears. Seven. Pears.\n\n");
        assert_eq!(notes.answers[0].here.of(&text), "Seven");
        assert_eq!(notes.answers[0].there.of(&text), "7");
    }

    #[test]
    fn an_open_pronoun_knows_both_nouns() {
        let (text, notes) = tell(":story\n{^a} {pet=u} saw {a} {road=v} and {u.it~v} sat.\n:pet\nowl\n:road\nlane\n");
        assert_eq!(text, "An owl saw a lane and it sat.\n\n");
        let link = notes.pronouns[0];
        assert_eq!(
            [link.here, link.there, link.instead.expect("it is open")].map(|span| span.of(&text)),
            ["it", "owl", "lane"]
        );
    }

    #[test]
    fn a_pronoun_gives_way_to_a_name_where_it_could_mean_somebody_else() {
        let grammar =
            ":story\n{cast h=adult:baker o=adult:miller}{h}, {h.he}. {o}, {h.he}, {o.he}.\n:surname\nBell\nFinch\n";
        for seed in 0..20 {
            let mut teller = Teller::new(Grammar::parse(&[grammar]), [seed; 32]);
            let notes = teller.tell();
            let genders = ["h", "o"].map(|id| teller.story.cast[id].nature.as_ref().expect("both were named").gender);
            // Of one gender: `A, he. B, A, B.`; of two: `A, he. B, he, she.`
            let pronouns = if genders[0] == genders[1] { 1 } else { 3 };
            assert_eq!(notes.pronouns.len(), pronouns, "{}", teller.page.text());
        }
    }

    #[test]
    fn a_story_takes_every_alternative_before_it_takes_one_again() {
        let (text, _) = tell(":story\n{word} {word} {word}\n:word\na\nb\nc\n");
        let mut words: Vec<&str> = text.split_whitespace().collect();
        words.sort_unstable();
        assert_eq!(words, ["a", "b", "c"]);
    }
}
