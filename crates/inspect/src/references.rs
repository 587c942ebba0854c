//! Measures whether a head attends to the right answer, in a text whose right answers are annotated: the noun that a
//! pronoun refers to, and the earlier mention of a name. `data/README.md` describes the annotations.

use std::fs;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::InspectError;
use super::capture::each_map;
use tinderbox_model::Gpt;
use tinderbox_model::tokenizer::Tokenizer;

/// The most cases of a question asked per split of the text, spread evenly over all of them.
const MOST_CASES: usize = 200;

/// A question with two answers, one of which is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// From `she`, `her`, `he` or `him` to the last mention of its referent, or to that of the other gender.
    Pronoun,
    /// From an `it` that fits two nouns to its referent or to the other: a causal model cannot know yet.
    It,
    /// The same from the end of the sentence with that `it`, where it is decided.
    ItDecided,
    /// From each token of a repeated name to what followed it the last time, or in another name.
    Name,
}

/// The answers of one head to a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HeadAnswer {
    /// Mean attention on the right answer.
    pub right: f64,
    /// Mean attention on the other answer.
    pub other: f64,
    /// The share of cases in which the right answer gets more; a tie counts one half.
    pub accuracy: f64,
}

/// The answers of all heads of a model to a question.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelAnswers {
    /// The layer and head that answer best in the training split, so that their validation figures are not luck.
    pub best: [usize; 2],
    /// The answers in stories of the validation split, `[L][H]`.
    pub heads: Vec<Vec<HeadAnswer>>,
}

/// A question and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Asked {
    /// The question.
    pub question: Question,
    /// The number of cases in the validation split that fit the context.
    pub found: usize,
    /// The number of these cases that were asked.
    pub cases: usize,
    /// The number of cases in the training split by which the best head was chosen.
    pub chosen_by: usize,
    /// The share of cases in which the nearer answer is the right one.
    pub nearer: f64,
    /// The share of cases in which the answer with more tokens is right; a tie counts one half.
    pub longer: f64,
    /// The model before training.
    pub untrained: ModelAnswers,
    /// The trained model.
    pub trained: ModelAnswers,
}

/// All questions of an annotated text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct References {
    /// The number of stories in the validation split.
    pub stories: usize,
    /// The model's context length.
    pub context_length: usize,
    /// The questions that have a case in both splits.
    pub questions: Vec<Asked>,
}

impl References {
    /// Asks all annotated questions of `model`, and of the model before training, which was drawn from `seed`. The last
    /// `val_fraction` of the text is asked, and the rest chooses the heads.
    ///
    /// # Errors
    /// If there is nothing to ask, the tokenizer cannot encode the text, or in the same cases as
    /// [`super::capture()`].
    pub fn measure(
        model: &Gpt,
        tokenizer: &Tokenizer,
        annotations: &Annotations,
        val_fraction: f64,
        seed: u64,
    ) -> Result<Self, InspectError> {
        let untrained = Gpt::new(model.config(), tokenizer.vocab_size(), seed, &model.device());
        let context_length = model.config().context_length;
        let [train, val] = annotations.split(val_fraction);
        let mut questions = Vec::new();
        for question in [Question::Pronoun, Question::It, Question::ItDecided, Question::Name] {
            let cases = |stories| annotations.cases(question, stories, tokenizer, context_length);
            let (all, choosing) = (cases(&val)?, cases(&train)?);
            let (asked, choosing) = (spread(&all), spread(&choosing));
            if asked.is_empty() || choosing.is_empty() {
                continue;
            }
            let ask = |model| -> Result<_, InspectError> {
                Ok(ModelAnswers { best: best(&answers(model, &choosing)?), heads: answers(model, &asked)? })
            };
            let share = |wins: fn(&Look) -> f64| {
                asked.iter().map(|case| wins(&case.looks[0])).sum::<f64>() / asked.len() as f64
            };
            questions.push(Asked {
                question,
                found: all.len(),
                cases: asked.len(),
                chosen_by: choosing.len(),
                nearer: share(|look| f64::from(look.right.start > look.other.start)),
                longer: share(|look| win(look.right.len() as f64, look.other.len() as f64)),
                untrained: ask(&untrained)?,
                trained: ask(model)?,
            });
        }
        if questions.is_empty() {
            return Err(InspectError::NothingToAsk { context_length });
        }
        Ok(Self { stories: val.len(), context_length, questions })
    }
}

/// At most [`MOST_CASES`], spread evenly.
fn spread(cases: &[Case]) -> Vec<&Case> {
    let n = cases.len().min(MOST_CASES);
    (0..n).map(|i| &cases[i * cases.len() / n]).collect()
}

/// The answers of each head to the cases, `[L][H]`.
fn answers(model: &Gpt, cases: &[&Case]) -> Result<Vec<Vec<HeadAnswer>>, InspectError> {
    let config = model.config();
    let mut heads = vec![vec![HeadAnswer::default(); config.n_heads]; config.n_layers];
    for case in cases {
        let n = case.ids.len();
        each_map(model, &case.ids, |layer, head, weights| {
            let (mut right, mut other) = (0.0, 0.0);
            for look in &case.looks {
                let row = &weights[look.query * n..(look.query + 1) * n];
                let mass = |at: &Range<usize>| -> f64 { row[at.clone()].iter().copied().map(f64::from).sum() };
                right += mass(&look.right) / case.looks.len() as f64;
                other += mass(&look.other) / case.looks.len() as f64;
            }
            let sum = &mut heads[layer][head];
            sum.right += right;
            sum.other += other;
            sum.accuracy += win(right, other);
        })?;
    }
    for HeadAnswer { right, other, accuracy } in heads.iter_mut().flatten() {
        for sum in [right, other, accuracy] {
            *sum /= cases.len() as f64;
        }
    }
    Ok(heads)
}

/// The head that is right most often; ties go to the one with the larger difference, then to the first.
fn best(heads: &[Vec<HeadAnswer>]) -> [usize; 2] {
    let worth = |[layer, head]: [usize; 2]| {
        let answer = heads[layer][head];
        (answer.accuracy, answer.right - answer.other)
    };
    let all = (0..heads.len()).flat_map(|l| (0..heads[l].len()).map(move |h| [l, h]));
    all.reduce(|best, head| if worth(head) > worth(best) { head } else { best }).unwrap_or([0, 0])
}

/// 1 for more, one half for a tie.
fn win(right: f64, other: f64) -> f64 {
    f64::midpoint(f64::from(right > other), f64::from(right >= other))
}

/// A text with annotations.
#[derive(Clone, Debug)]
pub struct Annotations {
    text: String,
    /// The byte at which each character starts, and the length of the text.
    starts: Vec<usize>,
    /// The first character of the annotated text's validation split.
    validation_start: usize,
    stories: Vec<Story>,
}

#[derive(Deserialize)]
struct Header {
    validation_start: usize,
}

/// A line of the annotations. Places are in characters from the start of the text.
#[derive(Clone, Debug, Deserialize)]
struct Story {
    start: usize,
    end: usize,
    /// Offset and length of a pronoun, then of the last mention of its referent.
    #[serde(default)]
    pronouns: Vec<[usize; 4]>,
    /// The same as in `pronouns`, then offset and length of the other noun that `it` could refer to.
    #[serde(default)]
    ambiguous: Vec<[usize; 6]>,
    /// Offset and length of a repeated name, then of its first mention.
    #[serde(default)]
    names: Vec<[usize; 4]>,
}

/// A span of characters: offset and length.
type CharSpan = [usize; 2];

/// The tokens that a model reads, and those from which it must look back.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Case {
    /// The tokens up to the last one that looks back.
    ids: Vec<u32>,
    looks: Vec<Look>,
}

/// A token that looks back, the tokens of the right answer, and those of the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    query: usize,
    right: Range<usize>,
    other: Range<usize>,
}

impl Annotations {
    /// Reads `path`, and the text beside it, with the same name and the extension `.txt`.
    ///
    /// # Errors
    /// If one of them cannot be read, a line cannot be parsed, or a place is outside its story.
    pub fn read(path: &Path) -> Result<Self, InspectError> {
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|source| InspectError::ReadAnnotations { path: path.to_owned(), source })
        };
        let lines = read(path)?;
        let text = read(&path.with_extension("txt"))?;
        let error = |(line, problem)| InspectError::Annotations { path: path.to_owned(), line, problem };
        Self::parse(&lines, text).map_err(error)
    }

    fn parse(lines: &str, text: String) -> Result<Self, (usize, String)> {
        let mut starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        starts.push(text.len());
        let mut lines = (1..).zip(lines.lines());
        let (_, header) = lines.next().ok_or_else(|| (1, "there is no line".to_owned()))?;
        let Header { validation_start } = serde_json::from_str(header).map_err(|error| (1, error.to_string()))?;
        let story = |(number, line)| {
            let story: Story = serde_json::from_str(line).map_err(|error| (number, error.to_string()))?;
            story.check(starts.len() - 1).map_err(|problem| (number, problem))?;
            Ok(story)
        };
        let stories = lines.map(story).collect::<Result<_, _>>()?;
        Ok(Self { text, starts, validation_start, stories })
    }

    /// The stories of the training and the validation split, where validation excludes what either the text's own split
    /// or that of a model with this `val_fraction` trains on. A story across the boundary is in neither.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "texts are below 2^52 characters, and a share is from 0 to 1"
    )]
    fn split(&self, val_fraction: f64) -> [Vec<&Story>; 2] {
        let of_model = ((1.0 - val_fraction) * ((self.starts.len() - 1) as f64)).floor() as usize;
        let boundary = self.validation_start.max(of_model);
        let train = self.stories.iter().filter(|story| story.end <= boundary);
        let val = self.stories.iter().filter(|story| story.start >= boundary);
        [train.collect(), val.collect()]
    }

    /// The cases of a question whose answers are within the context of the token that looks back. The model reads a
    /// story from its beginning, or as much before that token as fits its context.
    fn cases(
        &self,
        question: Question,
        stories: &[&Story],
        tokenizer: &Tokenizer,
        context_length: usize,
    ) -> Result<Vec<Case>, InspectError> {
        let mut cases = Vec::new();
        for story in stories {
            let asked = self.questions(question, story);
            if asked.is_empty() {
                continue;
            }
            let text = self.slice([story.start, story.end - story.start]);
            let ids = tokenizer.encode(text).map_err(InspectError::Prompt)?;
            let mut end = 0;
            let end_of = |&id: &u32| {
                end += tokenizer.token_bytes(id).map_or(0, <[u8]>::len);
                end
            };
            let ends: Vec<usize> = ids.iter().map(end_of).collect(); // of each token, in bytes of the story
            if ends.last() != Some(&text.len()) {
                return Err(InspectError::TokensWithoutPlaces);
            }
            let tokens = |[at, n]: CharSpan| {
                let [start, end] = [at, at + n].map(|at| self.starts[at] - self.starts[story.start]);
                let first = ends.partition_point(|token_end| *token_end <= start);
                first..ends.partition_point(|token_end| *token_end < end) + 1
            };
            let case = |spans: [CharSpan; 3]| Case::new(&ids, question, spans.map(tokens), context_length);
            cases.extend(asked.into_iter().filter_map(case));
        }
        Ok(cases)
    }

    /// The questions of a story: the place that asks, the right answer, the other one.
    fn questions(&self, question: Question, story: &Story) -> Vec<[CharSpan; 3]> {
        let its = story.ambiguous.iter().map(|&[a, b, c, d, e, f]| [[a, b], [c, d], [e, f]]);
        // The end of the sentence with this `it`.
        let decided = |[[at, n], right, other]: [CharSpan; 3]| {
            let rest = self.slice([at + n, story.end - at - n]);
            let end = rest.chars().position(|c| matches!(c, '.' | '!' | '?'))?;
            Some([[at + n + end, 1], right, other])
        };
        match question {
            Question::Pronoun => self.pronouns(story),
            Question::It => its.collect(),
            Question::ItDecided => its.filter_map(decided).collect(),
            Question::Name => self.names(story),
        }
    }

    fn pronouns(&self, story: &Story) -> Vec<[CharSpan; 3]> {
        // The genders of the pronouns that refer to a noun: a noun with both is never of the other gender.
        let genders = |noun: &str| -> Vec<&str> {
            let meant = story.pronouns.iter().filter(|&&[.., at, n]| self.slice([at, n]) == noun);
            meant.filter_map(|&[at, n, ..]| gender(self.slice([at, n]))).collect()
        };
        let pairs = story.pronouns.iter().chain(&story.names);
        let mut mentions: Vec<CharSpan> = pairs.flat_map(|&[a, b, c, d]| [[a, b], [c, d]]).collect();
        mentions.sort_unstable();
        let raised = |&[at, n, noun, n_noun]: &[usize; 4]| {
            let gender = gender(self.slice([at, n]))?;
            let is_other = |&&[start, length]: &&CharSpan| {
                let known = genders(self.slice([start, length]));
                start + length <= at && !known.is_empty() && !known.contains(&gender)
            };
            let other = mentions.iter().rev().find(is_other)?;
            Some([[at, n], [noun, n_noun], *other])
        };
        story.pronouns.iter().filter_map(raised).collect()
    }

    fn names(&self, story: &Story) -> Vec<[CharSpan; 3]> {
        // Every mention, with the first mention of the same name.
        let firsts = story.names.iter().map(|&[.., first, n]| ([first, n], first));
        let again = story.names.iter().map(|&[at, n, first, _]| ([at, n], first));
        let mut mentions: Vec<(CharSpan, usize)> = firsts.chain(again).collect();
        mentions.sort_unstable();
        let raised = |&[at, n, first, _]: &[usize; 4]| {
            let before = || mentions.iter().rev().filter(|([start, length], _)| start + length <= at);
            let (right, _) = before().find(|(_, name)| *name == first)?;
            let (other, _) =
                before().find(|(span, name)| *name != first && self.slice(*span) != self.slice([at, n]))?;
            Some([[at, n], *right, *other])
        };
        story.names.iter().filter_map(raised).collect()
    }

    fn slice(&self, [at, n]: CharSpan) -> &str {
        &self.text[self.starts[at]..self.starts[at + n]]
    }
}

impl Story {
    /// Checks that its places are within the story, and the story is within a text of `n_chars`.
    fn check(&self, n_chars: usize) -> Result<(), String> {
        let Self { start, end, .. } = *self;
        if start > end {
            return Err(format!("the story ends at {end}, before it begins"));
        }
        if end > n_chars {
            return Err(format!("the story ends at {end}, and the text at {n_chars}"));
        }
        let links = self.pronouns.iter().chain(&self.names).map(|link| &link[..]);
        let mut places = links.chain(self.ambiguous.iter().map(|link| &link[..])).flat_map(|link| link.as_chunks().0);
        let is_outside =
            |&&[at, n]: &&CharSpan| at < start || n == 0 || at.checked_add(n).is_none_or(|place_end| place_end > end);
        match places.find(is_outside) {
            Some(place) => Err(format!("{place:?} is no place in its story")),
            None => Ok(()),
        }
    }
}

/// The base form, `she` or `he`, of a pronoun.
fn gender(pronoun: &str) -> Option<&'static str> {
    match pronoun.to_ascii_lowercase().as_str() {
        "she" | "her" | "hers" => Some("she"),
        "he" | "him" | "his" => Some("he"),
        _ => None,
    }
}

impl Case {
    /// A case with places as tokens; `None` if an answer is outside the context, or there is nothing to ask.
    fn new(ids: &[u32], question: Question, spans: [Range<usize>; 3], context_length: usize) -> Option<Self> {
        let [from, right, other] = spans;
        let mut looks = vec![Look { query: from.end - 1, right: right.clone(), other: other.clone() }];
        if question == Question::Name {
            let next = |span: &Range<usize>, step| span.start + step..span.start + step + 1;
            let steps = 1..from.len().min(right.len()).min(other.len());
            let look =
                |step| Look { query: from.start + step - 1, right: next(&right, step), other: next(&other, step) };
            looks = steps.map(look).collect();
        }
        let end = looks.last()?.query + 1;
        let window = end.saturating_sub(context_length)..end;
        let is_apart = right.end <= other.start || other.end <= right.start;
        let is_seen = right.start.min(other.start) >= window.start;
        let is_before = looks.iter().all(|look| look.right.end.max(look.other.end) <= look.query);
        if !(is_apart && is_seen && is_before) {
            return None;
        }
        for Look { query, right, other } in &mut looks {
            let starts_and_ends = [&mut right.start, &mut right.end, &mut other.start, &mut other.end];
            starts_and_ends.into_iter().chain([query]).for_each(|at| *at -= window.start);
        }
        Some(Self { ids: ids[window].to_vec(), looks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::by_hand;
    use tinderbox_model::config::{ModelConfig, PositionKind};

    const STORY: &str = "Ann met Bob. She hit him. Ann ran to Bob because it was.";

    fn place(text: &str, nth: usize) -> CharSpan {
        let (at, found) = STORY.match_indices(text).nth(nth).expect(text);
        [at, found.len()]
    }

    fn annotations() -> Annotations {
        let pair = |a: CharSpan, b: CharSpan| [a[0], a[1], b[0], b[1]];
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
        cases_of(&annotations(), question, context_length)
    }

    fn cases_of(annotations: &Annotations, question: Question, context_length: usize) -> Vec<Case> {
        let [_, val] = annotations.split(1.0);
        annotations.cases(question, &val, &Tokenizer::byte(), context_length).expect("cases")
    }

    /// The texts of the tokens of a look.
    fn words(case: &Case, look: &Look) -> [String; 3] {
        let text: String = case.ids.iter().map(|&id| char::from(id as u8)).collect();
        [look.query..look.query + 1, look.right.clone(), look.other.clone()].map(|at| text[at].to_owned())
    }

    /// The texts of the tokens of every look of every case.
    fn asked(question: Question) -> Vec<Vec<[String; 3]>> {
        let of_case = |case: &Case| case.looks.iter().map(|look| words(case, look)).collect();
        cases(question, 99).iter().map(of_case).collect()
    }

    #[test]
    fn every_question_looks_at_its_answers() {
        let pronouns = cases(Question::Pronoun, 99);
        assert_eq!(pronouns[0].ids.len(), "Ann met Bob. She".len());
        assert_eq!(asked(Question::Pronoun), [[["e", "Ann", "Bob"]], [["m", "Bob", "Ann"]]]);
        assert_eq!(asked(Question::It), [[["t", "Bob", "Ann"]]]);
        assert_eq!(asked(Question::ItDecided), [[[".", "Bob", "Ann"]]]);
        assert_eq!(asked(Question::Name), [[["A", "n", "o"], ["n", "n", "b"]], [["B", "o", "n"], ["o", "b", "n"]]]);
        assert_eq!(cases(Question::Name, 99)[1].looks[0].other.start, place("Ann", 1)[0] + 1);
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
        let n_stories = |val_fraction| annotations.split(val_fraction).map(|stories| stories.len());
        assert_eq!(n_stories(1.0), [0, 1]);
        assert_eq!(n_stories(0.5), [0, 0]);
        assert_eq!(n_stories(1e-9), [0, 0], "it ends later");
    }

    #[test]
    fn broken_annotations_name_their_line() {
        let header = "{\"validation_start\":0}\n";
        for (lines, line, problem) in [
            ("", 1, "there is no line"),
            ("{}", 1, "missing field"),
            (&format!("{header}{{"), 2, "EOF"),
            (&format!("{header}{{\"start\":0,\"end\":9}}"), 2, "the story ends at 9, and the text at 5"),
            (&format!("{header}{{\"start\":1,\"end\":5,\"names\":[[2,1,0,1]]}}"), 2, "[0, 1] is no place in its story"),
        ] {
            let found = Annotations::parse(lines, "short".to_owned()).unwrap_err();
            assert!(found.0 == line && found.1.starts_with(problem), "{found:?}");
        }
    }

    #[test]
    fn characters_of_several_bytes_are_counted_once() {
        let lines = "{\"validation_start\":0}\n{\"start\":2,\"end\":14,\"ambiguous\":[[12,2,3,1,8,1]]}";
        let text = "éé éa é b é it".to_owned();
        let annotations = Annotations::parse(lines, text).expect("annotations");
        let look = &cases_of(&annotations, Question::It, 99)[0].looks[0];
        assert_eq!((&look.right, &look.other), (&(1..3), &(8..9)), "é, two bytes, after a blank");
    }

    fn case(ids: &[u32], query: usize, right: usize, other: usize) -> Case {
        Case { ids: ids.to_vec(), looks: vec![Look { query, right: right..right + 1, other: other..other + 1 }] }
    }

    /// One head: tokens 0 and 1 attend to their like, others evenly.
    fn looking_for_itself() -> Gpt {
        let position = PositionKind::Rope;
        let config = ModelConfig { context_length: 8, d_model: 4, n_layers: 1, position, ..ModelConfig::default() };
        by_hand(config, 4, |path, values| match path {
            "token_embedding.weight" => (0..4).for_each(|i| values[i * 4 + i] = 1.0),
            // The slowest RoPE pair, dimensions 1 and 3: hardly rotated.
            "blocks.0.attention.qkv.weight" => {
                for (token, weight) in [(0, 4.0), (1, -4.0)] {
                    values[token * 12 + 1] = weight;
                    values[token * 12 + 4 + 1] = weight;
                }
            }
            _ => {}
        })
    }

    #[test]
    fn a_head_is_right_as_often_as_it_looks_there() {
        let model = looking_for_itself();
        let alike = case(&[0, 1, 2, 2, 0], 4, 0, 1);
        let unlike = case(&[0, 1, 2, 2, 0], 4, 1, 0);
        let draw = case(&[2, 2, 2, 2, 3], 4, 0, 1);
        let of = |cases: &[&Case]| answers(&model, cases).expect("measured")[0][0];
        let right = of(&[&alike]);
        assert!((right.accuracy - 1.0).abs() < 1e-9 && right.right > 0.49 && right.other < 0.01);
        assert!(of(&[&unlike]).accuracy.abs() < 1e-9);
        assert!((of(&[&draw]).accuracy - 0.5).abs() < 1e-9);
        let mean = of(&[&alike, &alike, &unlike, &draw]);
        assert!((mean.accuracy - 2.5 / 4.0).abs() < 1e-9);
        assert!((mean.right - (2.0 * right.right + right.other + 0.2) / 4.0).abs() < 1e-6);
    }

    #[test]
    fn the_best_head_is_right_most_often_and_of_equals_the_clearest() {
        let answer = |accuracy, right| HeadAnswer { right, other: 0.1, accuracy };
        let heads = [vec![answer(0.5, 0.9), answer(0.8, 0.2)], vec![answer(0.8, 0.3), answer(0.8, 0.3)]];
        assert_eq!(best(&heads), [1, 0]);
    }

    #[test]
    fn cases_are_spread_evenly() {
        let cases: Vec<Case> = (0..1000).map(|i| case(&[i], 0, 0, 0)).collect();
        let firsts: Vec<u32> = spread(&cases).iter().map(|case| case.ids[0]).collect();
        assert_eq!(firsts.len(), MOST_CASES);
        assert_eq!(firsts[..3], [0, 5, 10]);
        assert_eq!(spread(&cases[..3]).len(), 3);
        assert!(spread(&[]).is_empty());
    }
}
