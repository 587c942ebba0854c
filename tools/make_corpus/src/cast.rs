//! Who is in a story: kinds of characters, their pronouns, and names built from syllables.
//!
//! It knows tables and how to index them; it draws nothing and writes nothing.

use crate::notes::Span;

/// What a character can do with its body, which decides the words for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A girl, a boy, a woman or a man.
    Person,
    /// An animal on four paws.
    Beast,
    /// An animal with wings.
    Bird,
    /// An animal that hops.
    Hopper,
}

impl Class {
    /// The ending of pools that belong to this class, as in `went_bird`.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Beast => "beast",
            Self::Bird => "bird",
            Self::Hopper => "hopper",
        }
    }
}

/// Decides a character's pronouns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gender {
    /// She, her, her, herself.
    Female,
    /// He, him, his, himself.
    Male,
}

impl Gender {
    /// The other one.
    pub fn opposite(self) -> Self {
        match self {
            Self::Female => Self::Male,
            Self::Male => Self::Female,
        }
    }

    /// The pronoun in the form that a slot's field names, or `None` where the field names no pronoun.
    pub fn pronoun(self, field: &str) -> Option<&'static str> {
        let [female, male] = match field {
            "he" => ["she", "he"],
            "him" => ["her", "him"],
            "his" => ["her", "his"],
            "himself" => ["herself", "himself"],
            _ => return None,
        };
        Some(if self == Self::Female { female } else { male })
    }
}

/// What kind of character a story asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A child or an animal.
    Hero,
    /// A girl or a boy.
    Child,
    /// An animal with a name.
    Animal,
    /// An animal with wings, of this kind.
    Bird(String),
    /// A grown-up with this profession.
    Adult(String),
}

impl Role {
    /// Reads a role as the grammar writes it: `hero`, `child`, `animal`, `bird:owl`, `adult:baker`.
    ///
    /// # Panics
    /// On any other word: a bug in the grammar.
    pub fn parse(raw: &str) -> Self {
        match raw.split_once(':') {
            Some(("adult", noun)) => Self::Adult(noun.to_owned()),
            Some(("bird", noun)) => Self::Bird(noun.to_owned()),
            None if raw == "hero" => Self::Hero,
            None if raw == "child" => Self::Child,
            None if raw == "animal" => Self::Animal,
            _ => panic!("`{raw}` is no role"),
        }
    }
}

/// What is settled about a character once the text has shown it.
#[derive(Clone, Debug)]
pub struct Nature {
    /// Decides words for limbs and ways of moving.
    pub class: Class,
    /// Decides pronouns.
    pub gender: Gender,
    /// `girl`, `fox`, `baker`.
    pub noun: String,
}

/// One character of a story; everything is drawn when the text first needs it.
#[derive(Clone, Debug)]
pub struct Character {
    /// What the story asked for.
    pub role: Role,
    /// Kind and pronouns, once drawn.
    pub nature: Option<Nature>,
    /// Name, once drawn.
    pub name: Option<String>,
    /// Where the name stood first.
    pub first: Option<Span>,
    /// Where the name or the noun stood last: what a pronoun refers to.
    pub last: Option<Span>,
}

impl Character {
    /// A character of whom nothing is settled yet.
    pub fn new(role: Role) -> Self {
        Self { role, nature: None, name: None, first: None, last: None }
    }
}

const STARTS: [&str; 24] = [
    "B", "Br", "D", "F", "Fl", "G", "Gr", "H", "J", "K", "L", "M", "N", "P", "Qu", "R", "S", "T", "Tr", "V", "W", "X",
    "Y", "Z",
];
const VOWELS: [&str; 6] = ["a", "e", "i", "o", "u", "oo"];
const MIDDLES: [&str; 22] = [
    "b", "bb", "ck", "d", "dd", "ff", "g", "l", "lv", "m", "mb", "nd", "nk", "p", "rb", "rl", "rv", "sk", "t", "v",
    "x", "zz",
];
const ENDS: [&str; 18] =
    ["ab", "ack", "am", "ap", "el", "en", "ett", "i", "iff", "il", "im", "ip", "ish", "it", "ob", "om", "oon", "y"];
const TOWN_STARTS: [&str; 24] = [
    "Alder", "Ash", "Bram", "Brindle", "Clover", "Crow", "Dapple", "Elm", "Fern", "Glen", "Hazel", "Ivy", "Juniper",
    "Kettle", "Lark", "Mill", "Nettle", "Oak", "Pebble", "Quill", "Rook", "Thistle", "Under", "Willow",
];
const TOWN_ENDS: [&str; 14] = [
    "bridge", "brook", "bury", "combe", "dale", "field", "ford", "gate", "ham", "mere", "stead", "ton", "wick", "wood",
];
const RIVER_STARTS: [&str; 14] = ["Al", "Br", "D", "Fl", "G", "Kel", "L", "M", "Nar", "R", "Sev", "T", "W", "Y"];
const RIVER_ENDS: [&str; 10] = ["all", "arrow", "eddle", "ello", "en", "imble", "indle", "ove", "una", "yre"];

/// A table of syllables, each name in it exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Names {
    /// Made-up first names, thousands of them.
    Rare,
    /// Towns and villages.
    Town,
    /// Rivers, without their article.
    River,
}

impl Names {
    fn syllables(self) -> Vec<&'static [&'static str]> {
        match self {
            Self::Rare => vec![&STARTS, &VOWELS, &MIDDLES, &ENDS],
            Self::Town => vec![&TOWN_STARTS, &TOWN_ENDS],
            Self::River => vec![&RIVER_STARTS, &RIVER_ENDS],
        }
    }

    /// How many names the table holds.
    pub fn count(self) -> u64 {
        self.syllables().iter().map(|list| list.len() as u64).product()
    }

    /// The name with that index, below [`Names::count`].
    pub fn name(self, index: u64) -> String {
        let mut rest = index;
        let mut name = String::new();
        for list in self.syllables() {
            let n = list.len() as u64;
            name.push_str(list[usize::try_from(rest % n).expect("an index into a short list")]);
            rest /= n;
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_built_name_is_there_once() {
        for names in [Names::Rare, Names::Town, Names::River] {
            let all: BTreeSet<_> = (0..names.count()).map(|index| names.name(index)).collect();
            assert_eq!(all.len() as u64, names.count(), "{names:?}");
        }
        assert!(Names::Rare.count() > 50_000);
    }

    #[test]
    fn pronouns_follow_gender() {
        assert_eq!(Gender::Female.pronoun("his"), Some("her"));
        assert_eq!(Gender::Female.opposite().pronoun("him"), Some("him"));
        assert_eq!(Gender::Male.pronoun("name"), None);
    }
}
