//! The loss of a character trigram model: what a model that only counts can reach on a text.
//!
//! Interpolated Witten-Bell smoothing (Witten and Bell 1991, method C), which has nothing to tune: with
//! `c(h)` the number of times that the context `h` came, and `t(h)` how many different characters came
//! after it, `p(x | h) = (c(h x) + t(h) p(x | h')) / (c(h) + t(h))`, where `h'` is `h` without its first
//! character. At the bottom every character of the whole text is equally likely.

use std::collections::{BTreeSet, HashMap};

/// Counts of what followed one context.
#[derive(Default)]
struct Followers {
    total: u32,
    distinct: u32,
}

/// Counts for contexts of 0, 1 and 2 characters.
struct Trigram {
    followers: [HashMap<[char; 2], Followers>; 3],
    counts: [HashMap<([char; 2], char), u32>; 3],
    alphabet: usize,
}

/// The last `order` of two characters of context; the rest is blanked out.
fn context(before: [char; 2], order: usize) -> [char; 2] {
    match order {
        0 => ['\0', '\0'],
        1 => ['\0', before[1]],
        _ => before,
    }
}

impl Trigram {
    fn train(text: &[char], alphabet: usize) -> Self {
        let mut model = Self { followers: Default::default(), counts: Default::default(), alphabet };
        for at in 0..text.len() {
            for order in 0..=2.min(at) {
                let before = [text[at.saturating_sub(2)], text[at.saturating_sub(1)]];
                let history = context(before, order);
                let count = model.counts[order].entry((history, text[at])).or_default();
                *count += 1;
                let followers = model.followers[order].entry(history).or_default();
                followers.total += 1;
                followers.distinct += u32::from(*count == 1);
            }
        }
        model
    }

    #[allow(clippy::cast_precision_loss)] // An alphabet is small.
    fn probability(&self, before: [char; 2], next: char) -> f64 {
        let mut p = 1.0 / self.alphabet as f64;
        for order in 0..=2 {
            let history = context(before, order);
            if let Some(followers) = self.followers[order].get(&history) {
                let count = f64::from(self.counts[order].get(&(history, next)).copied().unwrap_or(0));
                let (total, distinct) = (f64::from(followers.total), f64::from(followers.distinct));
                p = (count + distinct * p) / (total + distinct);
            }
        }
        p
    }
}

/// Trains on the first 90 % of the characters and returns the mean loss on the rest, in nats per character.
///
/// # Panics
/// On a text of fewer than 20 characters, of which 10 % is no validation split.
#[allow(clippy::cast_precision_loss)] // A text is far shorter than 2^52 characters.
pub fn validation_loss(text: &str) -> f64 {
    let chars: Vec<char> = text.chars().collect();
    assert!(chars.len() >= 20, "a text of {} characters is too short to split", chars.len());
    let cut = crate::corpus::validation_start(chars.len());
    let alphabet = chars.iter().collect::<BTreeSet<_>>().len();
    let model = Trigram::train(&chars[..cut], alphabet);
    let loss: f64 =
        (cut..chars.len()).map(|at| -model.probability([chars[at - 2], chars[at - 1]], chars[at]).ln()).sum();
    loss / (chars.len() - cut) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_of_all_characters_sum_to_one() {
        let text: Vec<char> = "the cat sat on the mat".chars().collect();
        let alphabet: BTreeSet<char> = text.iter().copied().collect();
        let model = Trigram::train(&text, alphabet.len());
        for before in [['t', 'h'], ['q', 'a'], ['q', 'q']] {
            let sum: f64 = alphabet.iter().map(|&next| model.probability(before, next)).sum();
            assert!((sum - 1.0).abs() < 1e-12, "after {before:?}: {sum}");
        }
    }

    #[test]
    fn a_small_case_by_hand() {
        // "aab": c(a) = 2, c(b) = 1, t = 2, so p(a) = (2 + 2 * 1/2) / (3 + 2) = 0.6.
        // After "a" came "a" and "b": p(a | a) = (1 + 2 * 0.6) / (2 + 2) = 0.55.
        // After "aa" came "b": p(a | aa) = (0 + 1 * 0.55) / (1 + 1) = 0.275.
        let model = Trigram::train(&['a', 'a', 'b'], 2);
        assert!((model.probability(['a', 'a'], 'a') - 0.275).abs() < 1e-12);
    }

    #[test]
    fn a_text_that_repeats_is_easy_and_a_random_one_is_not() {
        assert!(validation_loss(&"abcd".repeat(500)) < 0.01);
    }
}
