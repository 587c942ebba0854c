//! The whole corpus: stories until there are enough, their notes, and the figures that describe them.
//!
//! It knows how long the corpus is and how it is split; it does not know how a story is told.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::grammar::Grammar;
use crate::notes::Notes;
use crate::teller::Teller;

/// The seed of the corpus in the repository.
const SEED: [u8; 32] = *b"Tinderbox toy corpus, version 1.";

/// Stories are told until the text is this long, in characters.
const ENOUGH: usize = 1_050_000;

/// The corpus and all that is said about it.
pub struct Corpus {
    /// The stories, each followed by a blank line but the last, which ends with one newline.
    pub text: String,
    /// Notes of each story, in order.
    pub notes: Vec<Notes>,
    /// The figures, as the first line of `stories.jsonl` has them.
    pub summary: Value,
}

impl Corpus {
    /// Tells the corpus of the repository, the same on every platform.
    pub fn tell() -> Self {
        Self::tell_until(ENOUGH)
    }

    /// Tells stories until the text has at least that many characters.
    pub fn tell_until(enough: usize) -> Self {
        let mut teller = Teller::new(Grammar::bundled(), SEED);
        let mut notes = Vec::new();
        while teller.len() < enough {
            notes.push(teller.tell());
        }
        let (mut text, chooser) = teller.finish();
        text.truncate(text.trim_end().len() + 1);
        let cut = validation_start(text.len());
        let (mut all, mut validation) = (0.0, 0.0);
        for choice in chooser.choices() {
            all += choice.bits();
            if choice.at >= cut {
                validation += choice.bits();
            }
        }
        let summary = summary(&text, &notes, chooser.choices().len(), [all, validation]);
        Self { text, notes, summary }
    }

    /// The content of `stories.jsonl`: the figures, then one line per story.
    pub fn jsonl(&self) -> String {
        let mut lines = format!("{}\n", self.summary);
        for notes in &self.notes {
            writeln!(lines, "{}", notes.to_line()).expect("a String can be written to");
        }
        lines
    }
}

/// Where the last 10 % of `n` characters begin: `floor(0.9 n)`.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn validation_start(n: usize) -> usize {
    (0.9 * n as f64) as usize // The same formula as the trainer's, so that the splits agree.
}

/// The sentences of a text: each ends with `.`, `!` or `?`, and with what closes after it.
pub fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let bytes = text.as_bytes();
    let mut start = 0;
    for at in 0..bytes.len() {
        let ends = at + 1 == bytes.len() || bytes[at + 1].is_ascii_whitespace();
        let stop = bytes[start..=at].iter().rev().find(|&&byte| byte != b'"' && byte != b')');
        let stops = matches!(stop, Some(b'.' | b'!' | b'?'));
        // `"Yes!" said Mia` and `one, two ... three` go on after the stop.
        let goes_on = bytes.get(at + 2).is_some_and(|byte| byte.is_ascii_lowercase() || *byte == b'.');
        if ends && ((stops && !goes_on) || bytes[at] == b'\n') {
            let sentence = text[start..=at].trim();
            if !sentence.is_empty() {
                found.push(sentence);
            }
            start = at + 1;
        }
    }
    found
}

fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[allow(clippy::cast_precision_loss)] // A text is far shorter than 2^52 characters.
fn summary(text: &str, notes: &[Notes], choices: usize, [all, validation]: [f64; 2]) -> Value {
    let sentences = sentences(text);
    let distinct = sentences.iter().collect::<BTreeSet<_>>().len();
    let n = text.len();
    let [bits, bits_validation] = [all / n as f64, validation / (n - validation_start(n)) as f64];
    let sum = |count: fn(&Notes) -> usize| notes.iter().map(count).sum::<usize>();
    // In the order of the alphabet, which is what `serde_json` gives with and without `preserve_order`.
    json!({
        "counts": {
            "ambiguous_pronouns": sum(|story| story.pronouns.iter().filter(|link| link.instead.is_some()).count()),
            "answers": sum(|story| story.answers.len()),
            "banks": sum(|story| story.banks.len()),
            "characters": n,
            "choices": choices,
            "distinct_characters": text.chars().collect::<BTreeSet<_>>().len(),
            "distinct_sentences": distinct,
            "pronouns": sum(|story| story.pronouns.iter().filter(|link| link.instead.is_none()).count()),
            "repeated_names": sum(|story| story.names.len()),
            "sentences": sentences.len(),
            "stories": notes.len(),
        },
        "distinct_sentence_share": round(distinct as f64 / sentences.len() as f64),
        "floor": {
            "bits_per_char": round(bits),
            "nats_per_char": round(bits * std::f64::consts::LN_2),
            "validation_bits_per_char": round(bits_validation),
            "validation_nats_per_char": round(bits_validation * std::f64::consts::LN_2),
        },
        "validation_start": validation_start(n),
        "version": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::Sense;

    const PRONOUNS: [&str; 18] = [
        "he", "she", "him", "her", "his", "himself", "herself", "it", "its", "they", "them", "their", "He", "She",
        "His", "Her", "They", "It",
    ];

    fn sample() -> Corpus {
        Corpus::tell()
    }

    #[test]
    fn the_same_seed_tells_the_same_corpus() {
        let [a, b] = [Corpus::tell_until(50_000), Corpus::tell_until(50_000)];
        assert_eq!(a.text, b.text);
        assert_eq!(a.jsonl(), b.jsonl());
    }

    #[test]
    fn notes_point_at_what_they_claim() {
        let Corpus { text, notes, .. } = sample();
        let is_word = |start: usize, len: usize| {
            let bytes = text.as_bytes();
            !bytes[start - 1].is_ascii_alphanumeric() && !bytes[start + len].is_ascii_alphanumeric()
        };
        for story in &notes {
            for link in &story.pronouns {
                let Some(there) = [Some(link.there), link.instead].into_iter().flatten().max_by_key(|s| s.start) else {
                    unreachable!("a pronoun has a noun")
                };
                assert!(PRONOUNS.contains(&link.here.of(&text)), "{:?}", link.here.of(&text));
                assert!(is_word(link.here.start, link.here.len));
                assert!(there.start < link.here.start, "{}", &text[story.start..story.end]);
                for noun in [Some(link.there), link.instead].into_iter().flatten() {
                    assert!(story.start <= noun.start && noun.start < story.end);
                    assert!(noun.of(&text).starts_with(|sign: char| sign.is_ascii_alphabetic()));
                    assert!(noun.start == 0 || !text.as_bytes()[noun.start - 1].is_ascii_alphanumeric());
                }
                assert_ne!(Some(link.there), link.instead);
            }
            for link in &story.names {
                assert_eq!(link.here.of(&text), link.there.of(&text));
                assert!(link.there.start < link.here.start);
                assert!(is_word(link.here.start, link.here.len));
            }
            for link in &story.answers {
                assert!(link.there.start < link.here.start);
                assert!(is_word(link.here.start, link.here.len), "{}", link.here.of(&text));
            }
            for &(at, _) in &story.banks {
                assert!(text[at..].starts_with("bank"));
            }
        }
    }

    #[test]
    fn every_bank_has_a_note() {
        let Corpus { text, notes, .. } = sample();
        let noted: BTreeSet<usize> = notes.iter().flat_map(|story| story.banks.iter().map(|bank| bank.0)).collect();
        let found = text.match_indices("bank").map(|(at, _)| at);
        // "The bank", where both senses are meant, and "banker" have none.
        let open = found.filter(|at| !noted.contains(at) && !text[*at..].starts_with("banker")).count();
        assert!(open * 5 < noted.len(), "{open} of {}", noted.len());
        let river = notes.iter().flat_map(|story| &story.banks).filter(|bank| bank.1 == Sense::River).count();
        assert!(river * 4 > noted.len() && river * 4 < 3 * noted.len(), "{river} of {}", noted.len());
    }

    #[test]
    fn quotes_and_brackets_close_in_each_paragraph() {
        let Corpus { text, .. } = sample();
        for paragraph in text.lines() {
            assert_eq!(paragraph.matches('"').count() % 2, 0, "{paragraph}");
            let mut depth = 0_i32;
            for sign in paragraph.chars() {
                depth += i32::from(sign == '(') - i32::from(sign == ')');
                assert!((0..=1).contains(&depth), "{paragraph}");
            }
            assert_eq!(depth, 0, "{paragraph}");
        }
    }

    #[test]
    fn articles_spaces_and_capitals_are_right() {
        let Corpus { text, .. } = sample();
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        for pair in words.windows(2) {
            let article = pair[0].trim_start_matches(['"', '(']).to_ascii_lowercase();
            let vowel = pair[1].starts_with(|sign: char| "aeiouAEIOU".contains(sign));
            let silent_h = pair[1].starts_with("hour");
            let sounds_like_y = ["use", "uni", "eu", "one-"].iter().any(|start| pair[1].starts_with(start));
            assert!(article != "an" || !sounds_like_y, "{pair:?}");
            if pair[1].starts_with(|sign: char| sign.is_ascii_alphabetic()) {
                assert!(article != "a" || !vowel, "{pair:?}");
                assert!(article != "an" || vowel || silent_h, "{pair:?}");
            }
        }
        for wrong in
            ["  ", " .", " ,", " ?", " !", " ;", "..,", ",,", ",.", "!.", "?.", "\n ", " \n", "{", "}", "[", "]", "|"]
        {
            let found = text.find(wrong).filter(|at| !text[*at..].starts_with(" ..."));
            assert!(found.is_none(), "{wrong:?} in: {}", &text[found.unwrap().saturating_sub(60)..][..80]);
        }
        for pair in text.as_bytes().windows(2) {
            let stop = b".!?,;:".contains(&pair[0]) && pair[1].is_ascii_alphanumeric();
            assert!(!stop, "no space after a stop: {:?}", String::from_utf8_lossy(pair));
        }
        for sentence in sentences(&text) {
            let first = sentence.trim_start_matches(['"', '(']).chars().next().expect("a sentence is not empty");
            assert!(!first.is_ascii_lowercase(), "{sentence}");
        }
    }

    #[test]
    fn the_alphabet_is_small_and_all_of_it_comes_before_the_validation_split() {
        let Corpus { text, .. } = Corpus::tell();
        let alphabet: BTreeSet<char> = text.chars().collect();
        let early: BTreeSet<char> = text[..validation_start(text.len())].chars().collect();
        assert_eq!(alphabet, early);
        assert!((65..=75).contains(&alphabet.len()), "{alphabet:?}");
        assert!(text.is_ascii() && text.ends_with('\n') && !text.ends_with("\n\n"));
        assert!((1_000_000..1_100_000).contains(&text.len()));
    }

    #[test]
    fn there_is_enough_of_everything() {
        let Corpus { summary, .. } = sample();
        let counts = &summary["counts"];
        for (name, least) in [
            ("ambiguous_pronouns", 400),
            ("answers", 2_000),
            ("banks", 1_000),
            ("distinct_sentences", 15_000),
            ("pronouns", 3_500),
            ("repeated_names", 10_000),
        ] {
            assert!(counts[name].as_u64().is_some_and(|count| count >= least), "{name}: {counts}");
        }
    }

    #[test]
    fn sentences_end_where_a_reader_says() {
        let text = "\"Yes!\" said Mia. (It was.) One, two ... three.\nEnd\n";
        assert_eq!(sentences(text), ["\"Yes!\" said Mia.", "(It was.)", "One, two ... three.", "End"]);
    }
}
