//! The slots that are about characters: names, pronouns, and which of them may stand for whom.
//!
//! A pronoun is written only where it can mean nobody else; where it could, the name comes instead.

use crate::cast::{Character, Class, Gender, Names, Nature, Role};
use crate::notes::{Link, Span};
use crate::teller::Teller;

impl Teller {
    pub fn pair(&mut self, head: &str) {
        if head == "both" {
            let start = self.page.len();
            self.name_of("h");
            self.page.word(" and ");
            self.name_of("f");
            self.story.pair = Some(self.span_since(start));
            return;
        }
        let here = Span { start: self.page.word(head), len: head.len() };
        if let Some(there) = self.story.pair {
            self.story.notes.pronouns.push(Link { here, there, instead: None });
        }
    }

    fn who(&self, id: &str) -> &Character {
        &self.story.cast[id]
    }

    fn who_mut(&mut self, id: &str) -> &mut Character {
        self.story.cast.get_mut(id).expect("the character was resolved before")
    }

    /// Kind and gender of a character, drawn when they are first needed.
    fn nature(&mut self, id: &str) -> Nature {
        if let Some(nature) = &self.who(id).nature {
            return nature.clone();
        }
        let at = self.page.len();
        let role = self.who(id).role.clone();
        let role = match role {
            Role::Hero if self.chooser.weighted(&[3, 2], at) == 0 => Role::Child,
            Role::Hero => Role::Animal,
            role => role,
        };
        let gender = match self.partner_gender(id) {
            Some(gender) => gender.opposite(),
            None if self.chooser.uniform(2, at) == 0 => Gender::Female,
            None => Gender::Male,
        };
        let (class, noun) = match role {
            Role::Child => (Class::Person, if gender == Gender::Female { "girl" } else { "boy" }.to_owned()),
            Role::Adult(noun) => (Class::Person, noun),
            Role::Bird(noun) => (Class::Bird, noun),
            Role::Hero | Role::Animal => {
                let kinds = [Class::Beast, Class::Bird, Class::Hopper];
                let class = kinds[self.chooser.weighted(&[14, 8, 4], at)];
                let noun = self.take_word(&format!("kind_{}", class.suffix()));
                (class, noun)
            }
        };
        let nature = Nature { class, gender, noun };
        self.who_mut(id).nature = Some(nature.clone());
        nature
    }

    /// The two friends of a story differ in gender, so that a pronoun tells them apart.
    fn partner_gender(&self, id: &str) -> Option<Gender> {
        let partner = match id {
            "h" => "f",
            "f" => "h",
            _ => return None,
        };
        self.story.cast.get(partner)?.nature.as_ref().map(|nature| nature.gender)
    }

    /// The name of a character, drawn when it is first needed.
    fn full_name(&mut self, id: &str) -> String {
        let nature = self.nature(id);
        if let Some(name) = &self.who(id).name {
            return name.clone();
        }
        let at = self.page.len();
        let female = nature.gender == Gender::Female;
        let grown_up = matches!(self.who(id).role, Role::Adult(_));
        let person = nature.class == Class::Person;
        let name = if grown_up {
            let titles = if female { ["Mrs", "Miss", "Aunt"] } else { ["Mr", "Old", "Uncle"] };
            let title = titles[self.chooser.weighted(&[3, 2, 1], at)];
            format!("{title} {}", self.take_word("surname"))
        } else if self.chooser.weighted(if person { &[2, 3] } else { &[1, 3] }, at) == 1 {
            self.new_name(Names::Rare)
        } else {
            self.take_word(if !person {
                "name_animal"
            } else if female {
                "name_girl"
            } else {
                "name_boy"
            })
        };
        self.who_mut(id).name = Some(name.clone());
        name
    }

    fn name_of(&mut self, id: &str) {
        let name = self.full_name(id);
        let here = Span { start: self.page.word(&name), len: name.len() };
        match self.who(id).first {
            Some(there) => self.story.notes.names.push(Link { here, there, instead: None }),
            None => self.who_mut(id).first = Some(here),
        }
        self.mention(id, here);
    }

    fn mention(&mut self, id: &str, here: Span) {
        let gender = self.nature(id).gender;
        self.who_mut(id).last = Some(here);
        self.story.focus.insert(gender, id.to_owned());
    }

    fn noun_of(&mut self, id: &str) {
        let noun = self.nature(id).noun;
        self.page.word("the ");
        let here = Span { start: self.page.word(&noun), len: noun.len() };
        self.mention(id, here);
    }

    fn is_clear(&mut self, id: &str) -> bool {
        let gender = self.nature(id).gender;
        self.story.focus.get(&gender).is_some_and(|focus| focus == id)
    }

    fn pronoun(&mut self, id: &str, pronoun: &str) {
        let here = Span { start: self.page.word(pronoun), len: pronoun.len() };
        if let Some(there) = self.who(id).last {
            self.story.notes.pronouns.push(Link { here, there, instead: None });
        }
    }

    /// Whether `the fox` can only mean this character.
    fn noun_is_clear(&mut self, id: &str) -> bool {
        let noun = self.nature(id).noun;
        let met = self.who(id).last.is_some();
        let mut others = self.story.cast.iter().filter(|(other, _)| *other != id);
        met && others.all(|(_, who)| who.nature.as_ref().is_none_or(|nature| nature.noun != noun))
    }

    fn subject(&mut self, id: &str) {
        let at = self.page.len();
        let by_pronoun = if self.is_clear(id) { 14 } else { 0 };
        let by_noun = if self.noun_is_clear(id) { 4 } else { 0 };
        match self.chooser.weighted(&[8, by_pronoun, by_noun], at) {
            0 => self.name_of(id),
            1 => {
                let pronoun = self.nature(id).gender.pronoun("he").expect("`he` is a pronoun");
                self.pronoun(id, pronoun);
            }
            _ => self.noun_of(id),
        }
    }

    pub fn character(&mut self, id: &str, field: Option<&str>) {
        let Some(field) = field else {
            return self.name_of(id);
        };
        let nature = self.nature(id);
        if let Some(pronoun) = nature.gender.pronoun(field) {
            if field == "himself" || self.is_clear(id) {
                return self.pronoun(id, pronoun);
            }
            self.name_of(id);
            if field == "his" {
                self.page.word("'s");
            }
            return;
        }
        match field {
            "s" => self.subject(id),
            "the" if self.noun_is_clear(id) => self.noun_of(id),
            "the" => self.name_of(id),
            "noun" => {
                let here = Span { start: self.page.word(&nature.noun), len: nature.noun.len() };
                self.mention(id, here);
            }
            _ => {
                let special = format!("{field}_{}", nature.class.suffix());
                let name = if self.grammar.pool(&special).is_some() { special.as_str() } else { field };
                self.pool(name, 0, Some(id));
            }
        }
    }
}
