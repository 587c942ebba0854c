//! A text whose right answers are known: which noun a pronoun means, and where a name was said before.
//!
//! The format is that of the bundled corpus, described in `data/README.md`: a line of JSON for each story, with
//! places in the text that lies beside it. Made into [`Case`]s, the places are tokens of what a model reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::InspectError;
use crate::tokenizer::Tokenizer;

/// A text with its annotations.
#[derive(Clone, Debug)]
pub struct Annotations {
    text: String,
    /// Where each character starts in the text, and where the text ends, bytes.
    starts: Vec<usize>,
    /// The first character of the text's validation split.
    validation_start: usize,
    stories: Vec<Story>,
}

/// Places are in characters from the start of the text.
#[derive(Clone, Debug, Deserialize)]
struct Story {
    start: usize,
    end: usize,
    /// Offset and length of a pronoun, then of the last mention of whom it means.
    #[serde(default)]
    pronouns: Vec<[usize; 4]>,
    /// As `pronouns`, then offset and length of what `it` could have meant instead.
    #[serde(default)]
    ambiguous: Vec<[usize; 6]>,
    /// Offset and length of a name that comes again, then of where it came first.
    #[serde(default)]
    names: Vec<[usize; 4]>,
}

#[derive(Deserialize)]
struct Header {
    validation_start: usize,
}

/// A question with two answers, one of which is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// From `she`, `her`, `he` or `him` to the last mention of whom it means, or to the last mention of somebody
    /// of the other gender.
    Pronoun,
    /// From an `it` that two nouns fit, to the one that is meant or to the other. What decides comes later:
    /// a causal model cannot know.
    It,
    /// From the end of the sentence of such an `it`, where it is decided.
    ItDecided,
    /// From each token of a name that comes again, to what followed that token when the name came last; or to
    /// the same place in the last mention of another name.
    Name,
}

impl Question {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pronoun, Self::It, Self::ItDecided, Self::Name];
}

/// A part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Stories that end before the validation split.
    Train,
    /// Stories within it.
    Validation,
}

/// What a model reads, and at which of its tokens a question is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The tokens up to the one that looks last.
    pub ids: Vec<u32>,
    /// Who looks, and what there is to look at.
    pub looks: Vec<Look>,
}

/// A token that looks, the tokens of the right answer, and those of the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The token that looks.
    pub query: usize,
    /// Where the right answer stands.
    pub right: Range<usize>,
    /// Where the other one stands.
    pub other: Range<usize>,
}

/// Places in characters: offset and length.
type Place = [usize; 2];

impl Annotations {
    /// Reads `path`, and the text beside it, which has the same name but for its ending, `.txt`.
    ///
    /// # Errors
    /// If one of them cannot be read, a line is not what it should be, or a place is outside its story.
    pub fn read(path: &Path) -> Result<Self, InspectError> {
        let read = |path: &Path| {
            fs::read_to_string(path)
                .map_err(|source| InspectError::ReadAnnotations { path: path.to_owned(), source })
        };
        let lines = read(path)?;
        let text = read(&path.with_extension("txt"))?;
        Self::parse(&lines, text).map_err(|(line, problem)| InspectError::Annotations {
            path: path.to_owned(),
            line,
            problem,
        })
    }

    fn parse(lines: &str, text: String) -> Result<Self, (usize, String)> {
        let mut lines = (1..).zip(lines.lines());
        let (_, header) = lines.next().ok_or_else(|| (1, "there is no line".to_owned()))?;
        let header: Header =
            serde_json::from_str(header).map_err(|error| (1, error.to_string()))?;
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let starts = [starts, vec![text.len()]].concat();
        let mut stories = Vec::new();
        for (number, line) in lines {
            let story: Story =
                serde_json::from_str(line).map_err(|error| (number, error.to_string()))?;
            if story.start > story.end {
                let problem = format!("the story ends at {}, before it begins", story.end);
                return Err((number, problem));
            }
            if story.end >= starts.len() {
                let n = starts.len() - 1;
                return Err((
                    number,
                    format!("the story ends at {}, and the text at {n}", story.end),
                ));
            }
            if let Some([offset, length]) = story.outside() {
                return Err((number, format!("[{offset}, {length}] is no place in its story")));
            }
            stories.push(story);
        }
        Ok(Self { text, starts, validation_start: header.validation_start, stories })
    }

    /// The cases of a question in a part of the text, for a model that was trained without the last
    /// `val_fraction` of it: all those whose answers are within the context of the token that looks.
    ///
    /// A model reads a story from its beginning, or as much before the token that looks as its context holds.
    ///
    /// # Errors
    /// If the tokenizer does not know the text, or its tokens are not bytes of it.
    pub fn cases(
        &self,
        question: Question,
        part: Part,
        val_fraction: f64,
        tokenizer: &Tokenizer,
        context_length: usize,
    ) -> Result<Vec<Case>, InspectError> {
        let boundary = self.boundary(val_fraction);
        let is_meant = |story: &&Story| match part {
            Part::Train => story.end <= boundary,
            Part::Validation => story.start >= boundary,
        };
        let mut cases = Vec::new();
        for story in self.stories.iter().filter(is_meant) {
            let raised = self.raise(question, story);
            if raised.is_empty() {
                continue;
            }
            let reading = self.read_story(story, tokenizer)?;
            let of_story = raised.iter();
            cases.extend(of_story.filter_map(|raised| reading.case(raised, context_length)));
        }
        Ok(cases)
    }

    /// How many stories there are in a part of the text.
    #[must_use]
    pub fn n_stories(&self, part: Part, val_fraction: f64) -> usize {
        let boundary = self.boundary(val_fraction);
        let is_meant = |story: &&Story| match part {
            Part::Train => story.end <= boundary,
            Part::Validation => story.start >= boundary,
        };
        self.stories.iter().filter(is_meant).count()
    }

    /// The first character that neither the text's own split nor a model's with this share trains on.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "texts are below 2^52 characters, and a share is from 0 to 1"
    )]
    fn boundary(&self, val_fraction: f64) -> usize {
        let n = (self.starts.len() - 1) as f64;
        self.validation_start.max(((1.0 - val_fraction) * n).floor() as usize)
    }

    /// The questions of a story, in characters.
    fn raise(&self, question: Question, story: &Story) -> Vec<Raised> {
        match question {
            Question::Pronoun => self.pronouns(story),
            Question::It => story
                .ambiguous
                .iter()
                .map(|&[at, n, right, n_right, other, n_other]| Raised {
                    from: [at, n],
                    right: [right, n_right],
                    other: [other, n_other],
                    step_by_step: false,
                })
                .collect(),
            Question::ItDecided => {
                let decided = |it: Raised| {
                    Some(Raised { from: [self.sentence_end(it.from, story)?, 1], ..it })
                };
                let its = self.raise(Question::It, story).into_iter();
                its.filter_map(decided).collect()
            }
            Question::Name => self.names(story),
        }
    }

    fn pronouns(&self, story: &Story) -> Vec<Raised> {
        // Who is surely somebody else: only nouns that a pronoun of the other gender means, and none of this.
        let mut genders: BTreeMap<&str, BTreeSet<Gender>> = BTreeMap::new();
        for &[at, n, noun, n_noun] in &story.pronouns {
            if let Some(gender) = Gender::of(self.slice([at, n])) {
                let noun = self.slice([noun, n_noun]);
                genders.entry(noun).or_default().insert(gender);
            }
        }
        let mut mentions: Vec<Place> = story
            .pronouns
            .iter()
            .chain(&story.names)
            .flat_map(|&[at, n, to, n_to]| [[at, n], [to, n_to]])
            .collect();
        mentions.sort_unstable();
        let raised = |&[at, n, noun, n_noun]: &[usize; 4]| {
            let other_gender = Gender::of(self.slice([at, n]))?.other();
            let is_other = |&&[start, length]: &&Place| {
                let known = genders.get(self.slice([start, length]));
                start + length <= at && known.is_some_and(|known| known.iter().eq([&other_gender]))
            };
            let other = mentions.iter().rev().find(is_other)?;
            Some(Raised {
                from: [at, n],
                right: [noun, n_noun],
                other: *other,
                step_by_step: false,
            })
        };
        story.pronouns.iter().filter_map(raised).collect()
    }

    fn names(&self, story: &Story) -> Vec<Raised> {
        // A name is known by where it came first.
        let firsts = story.names.iter().map(|&[.., first, n]| (first, n, first));
        let again = story.names.iter().map(|&[at, n, first, _]| (at, n, first));
        let mut mentions: Vec<(usize, usize, usize)> = firsts.chain(again).collect();
        mentions.sort_unstable();
        mentions.dedup();
        let raised = |&[at, n, first, _]: &[usize; 4]| {
            let before = || mentions.iter().rev().filter(|(start, length, _)| start + length <= at);
            let right = before().find(|(.., name)| *name == first)?;
            let other = before().find(|&&(start, length, name)| {
                name != first && self.slice([start, length]) != self.slice([at, n])
            })?;
            Some(Raised {
                from: [at, n],
                right: [right.0, right.1],
                other: [other.0, other.1],
                step_by_step: true,
            })
        };
        story.names.iter().filter_map(raised).collect()
    }

    /// Where the sentence ends that a place is in.
    fn sentence_end(&self, [at, n]: Place, story: &Story) -> Option<usize> {
        let rest = self.slice([at + n, story.end - at - n]);
        let end = rest.chars().position(|c| matches!(c, '.' | '!' | '?'))?;
        Some(at + n + end)
    }

    fn slice(&self, [at, n]: Place) -> &str {
        &self.text[self.starts[at]..self.starts[at + n]]
    }

    fn read_story(&self, story: &Story, tokenizer: &Tokenizer) -> Result<Reading, InspectError> {
        let text = self.slice([story.start, story.end - story.start]);
        let ids = tokenizer.encode(text).map_err(InspectError::Prompt)?;
        let mut ends = Vec::with_capacity(ids.len());
        let mut end = 0;
        for &id in &ids {
            end += tokenizer.token_bytes(id).map_or(0, <[u8]>::len);
            ends.push(end);
        }
        if end != text.len() {
            return Err(InspectError::TokensWithoutPlaces);
        }
        let base = self.starts[story.start];
        let starts = &self.starts[story.start..=story.end];
        Ok(Reading {
            ids,
            ends,
            first: story.start,
            starts: starts.iter().map(|start| start - base).collect(),
        })
    }
}

impl Story {
    /// A place that is not in the story.
    fn outside(&self) -> Option<Place> {
        let pairs = self.pronouns.iter().chain(&self.names);
        let places = pairs.flat_map(|&[a, b, c, d]| [[a, b], [c, d]]);
        let more = self.ambiguous.iter().flat_map(|&[a, b, c, d, e, f]| [[a, b], [c, d], [e, f]]);
        places.chain(more).find(|&[at, n]| {
            let end = at.checked_add(n);
            at < self.start || n == 0 || end.is_none_or(|end| end > self.end)
        })
    }
}

/// A question in characters.
#[derive(Clone, Copy, Debug)]
struct Raised {
    from: Place,
    right: Place,
    other: Place,
    /// Whether each token of `from` looks at the one that followed in the answers, or only its last at all of them.
    step_by_step: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gender {
    She,
    He,
}

impl Gender {
    fn of(pronoun: &str) -> Option<Self> {
        match pronoun.to_ascii_lowercase().as_str() {
            "she" | "her" | "hers" => Some(Self::She),
            "he" | "him" | "his" => Some(Self::He),
            _ => None,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::She => Self::He,
            Self::He => Self::She,
        }
    }
}

/// A story in tokens.
struct Reading {
    ids: Vec<u32>,
    /// Where each token ends, bytes from the story's start.
    ends: Vec<usize>,
    /// The story's first character.
    first: usize,
    /// Where each character starts, bytes from the story's start, and the story's end.
    starts: Vec<usize>,
}

impl Reading {
    /// The tokens that have a part in a place.
    fn tokens(&self, [at, n]: Place) -> Range<usize> {
        let start = self.starts[at - self.first];
        let end = self.starts[at + n - self.first];
        let first = self.ends.partition_point(|token_end| *token_end <= start);
        let last = self.ends.partition_point(|token_end| *token_end < end);
        first..last + 1
    }

    /// The case of a question; none if an answer is out of sight, or nothing is to be asked.
    fn case(&self, raised: &Raised, context_length: usize) -> Option<Case> {
        let [from, right, other] =
            [raised.from, raised.right, raised.other].map(|at| self.tokens(at));
        let mut looks = Vec::new();
        if raised.step_by_step {
            let n = from.len().min(right.len()).min(other.len());
            looks.extend((1..n).map(|step| Look {
                query: from.start + step - 1,
                right: right.start + step..right.start + step + 1,
                other: other.start + step..other.start + step + 1,
            }));
        } else {
            looks.push(Look { query: from.end - 1, right: right.clone(), other: other.clone() });
        }
        let end = looks.last()?.query + 1;
        let window_start = end.saturating_sub(context_length);
        let is_apart = right.end <= other.start || other.end <= right.start;
        let is_seen = right.start.min(other.start) >= window_start;
        let is_before = looks.iter().all(|look| look.right.end.max(look.other.end) <= look.query);
        for look in &mut looks {
            look.query -= window_start.min(look.query);
            for answer in [&mut look.right, &mut look.other] {
                *answer = answer.start.saturating_sub(window_start)
                    ..answer.end.saturating_sub(window_start);
            }
        }
        (is_apart && is_seen && is_before)
            .then(|| Case { ids: self.ids[window_start..end].to_vec(), looks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORY: &str = "Ann met Bob. She hit him. Ann ran to Bob because it was.";

    fn place(text: &str, nth: usize) -> Place {
        let (at, found) = STORY.match_indices(text).nth(nth).expect(text);
        [at, found.len()]
    }

    fn annotations() -> Annotations {
        let pair = |a: Place, b: Place| [a[0], a[1], b[0], b[1]];
        let [ann, bob] = [place("Ann", 0), place("Bob", 0)];
        let it = [place("it", 1), place("Bob", 1), place("Ann", 1)].concat();
        let story = serde_json::json!({
            "start": 0, "end": STORY.len(), "plot": "a test",
            "pronouns": [pair(place("She", 0), ann), pair(place("him", 0), bob)],
            "names": [pair(place("Ann", 1), ann), pair(place("Bob", 1), bob)],
            "ambiguous": [it],
        });
        let lines = format!("{{\"validation_start\":0,\"version\":1}}\n{story}\n");
        Annotations::parse(&lines, STORY.to_owned()).expect("annotations")
    }

    fn cases(question: Question, context_length: usize) -> Vec<Case> {
        let tokenizer = Tokenizer::byte();
        annotations()
            .cases(question, Part::Validation, 1.0, &tokenizer, context_length)
            .expect("cases")
    }

    /// What the tokens of a look say.
    fn words(case: &Case, look: &Look) -> [String; 3] {
        let text: String = case.ids.iter().map(|&id| char::from(id as u8)).collect();
        [look.query..look.query + 1, look.right.clone(), look.other.clone()]
            .map(|at| text[at].to_owned())
    }

    #[test]
    fn pronouns_look_at_whom_they_mean_or_at_the_other_gender() {
        let cases = cases(Question::Pronoun, 99);
        let all: Vec<_> = cases.iter().map(|case| words(case, &case.looks[0])).collect();
        assert_eq!(all, [["e", "Ann", "Bob"], ["m", "Bob", "Ann"]]);
        assert_eq!(cases[0].ids.len(), "Ann met Bob. She".len());
    }

    #[test]
    fn it_is_asked_at_once_and_where_it_is_decided() {
        let [at_once] = &cases(Question::It, 99)[..] else {
            panic!("one case");
        };
        assert_eq!(words(at_once, &at_once.looks[0]), ["t", "Bob", "Ann"]);
        let [later] = &cases(Question::ItDecided, 99)[..] else {
            panic!("one case");
        };
        assert_eq!(words(later, &later.looks[0]), [".", "Bob", "Ann"]);
    }

    #[test]
    fn a_name_looks_at_what_came_next_the_last_time() {
        let cases = cases(Question::Name, 99);
        let all: Vec<Vec<_>> = cases
            .iter()
            .map(|case| case.looks.iter().map(|look| words(case, look)).collect())
            .collect();
        assert_eq!(all, [[["A", "n", "o"], ["n", "n", "b"]], [["B", "o", "n"], ["o", "b", "n"]]]);
        assert_eq!(cases[1].looks[0].other.start, place("Ann", 1)[0] + 1);
    }

    #[test]
    fn what_is_out_of_sight_is_not_asked() {
        let n = "Ann met Bob. She".len();
        let whole = cases(Question::Pronoun, n);
        assert_eq!(whole.len(), 1, "`him` is further away");
        assert_eq!(whole[0].ids.len(), n);
        assert_eq!(cases(Question::Pronoun, n - 1).len(), 0);
        let cut = &cases(Question::ItDecided, "Ann ran to Bob because it was.".len())[0];
        assert_eq!(words(cut, &cut.looks[0]), [".", "Bob", "Ann"]);
        assert_eq!(cut.looks[0].other, 0..3);
    }

    #[test]
    fn parts_are_those_of_the_text_and_of_the_model() {
        let annotations = annotations();
        assert_eq!(annotations.n_stories(Part::Validation, 1.0), 1);
        assert_eq!(annotations.n_stories(Part::Validation, 0.5), 0);
        assert_eq!(annotations.n_stories(Part::Train, 0.5), 0);
        assert_eq!(annotations.n_stories(Part::Train, 1e-9), 0, "it ends later");
    }

    #[test]
    fn broken_annotations_name_their_line() {
        let parse = |lines: &str| Annotations::parse(lines, "short".to_owned()).unwrap_err();
        assert_eq!(parse(""), (1, "there is no line".to_owned()));
        assert_eq!(parse("{}").0, 1);
        assert_eq!(parse("{\"validation_start\":0}\n{").0, 2);
        assert_eq!(
            parse("{\"validation_start\":0}\n{\"start\":0,\"end\":9}"),
            (2, "the story ends at 9, and the text at 5".to_owned())
        );
        assert_eq!(
            parse("{\"validation_start\":0}\n{\"start\":1,\"end\":5,\"names\":[[2,1,0,1]]}"),
            (2, "[0, 1] is no place in its story".to_owned())
        );
    }

    #[test]
    fn characters_of_several_bytes_are_counted_once() {
        let lines =
            "{\"validation_start\":0}\n{\"start\":2,\"end\":14,\"ambiguous\":[[12,2,3,1,8,1]]}";
        let text = "éé éa é b é it".to_owned();
        let annotations = Annotations::parse(lines, text).expect("annotations");
        let tokenizer = Tokenizer::byte();
        let cases = annotations.cases(Question::It, Part::Validation, 1.0, &tokenizer, 99);
        let case = &cases.expect("cases")[0];
        assert_eq!(case.looks[0].right, 1..3, "é, two bytes, after a blank");
        assert_eq!(case.looks[0].other, 8..9);
    }
}
