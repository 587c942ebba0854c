//! Trains byte-level BPE on a text. The library finds the merges; words are counted here, as the text streams by, so
//! that only distinct words are in memory.

use std::collections::HashMap;

use serde_json::json;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

use super::byte_alphabet::{byte_alphabet, spell};
use super::words::first_word;

/// The end-of-text token, as it appears in text.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// The number of times that a pair must occur to be merged.
const MIN_FREQUENCY: u64 = 2;

/// The longest word that is counted, in bytes; a longer one, such as an endless run of letters, is split. Merges are
/// found within words, so only a pair at each split is lost.
const MAX_WORD_BYTES: usize = 1 << 12;

/// The number of bytes after a word that decide where it ends: a space of the next word, an end-of-text token and half
/// a contraction are shorter.
const LOOKAHEAD: usize = 32;

/// A tokenizer of this model with the other components of GPT-2's, and no space prepended to the text.
fn with_parts(model: BPE) -> Tokenizer {
    let mut library = Tokenizer::new(model);
    library
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
        .with_decoder(Some(ByteLevel::default())) // it ignores its settings
        .add_special_tokens([AddedToken::from(END_OF_TEXT, true)])
        .expect("a tokenizer without normalizer takes any token");
    library
}

/// Whether a tokenizer, except for its vocabulary, is as made here.
pub(super) fn is_trained_here(library: &Tokenizer) -> bool {
    let ModelWrapper::BPE(model) = library.get_model() else {
        return false;
    };
    let parts = |it: &Tokenizer| {
        let (added, decoder) = (it.get_added_vocabulary(), it.get_decoder());
        json!([added, it.get_normalizer(), it.get_pre_tokenizer(), it.get_post_processor(), decoder])
    };
    let has_settings = model.dropout.is_some() || model.unk_token.is_some() || model.ignore_merges;
    !has_settings && parts(library) == parts(&with_parts(BPE::default()))
}

/// Counts the words of streamed text, then finds the merges that shorten the most of them.
#[derive(Debug, Default)]
pub struct WordCounter {
    words: HashMap<Box<str>, u64>,
    /// The unfinished end of the text so far.
    rest: String,
}

impl WordCounter {
    /// Counts the next piece of the text, which may end anywhere.
    pub fn add(&mut self, piece: &str) {
        self.rest.push_str(piece);
        let text = std::mem::take(&mut self.rest);
        let mut open = text.as_str();
        while let Some((section, after)) = open.split_once(END_OF_TEXT) {
            self.count(section, 0);
            open = after;
        }
        self.rest = self.count(open, LOOKAHEAD).to_owned();
    }

    /// Counts the words that end at least `lookahead` bytes before the end of a text, and returns the rest, which
    /// is at most a word and the lookahead long.
    fn count<'a>(&mut self, text: &'a str, lookahead: usize) -> &'a str {
        let mut rest = text;
        while !rest.is_empty() {
            // An endless word would otherwise be scanned to its end at each split.
            let seen = &rest[..rest.floor_char_boundary(MAX_WORD_BYTES + LOOKAHEAD)];
            let length = first_word(seen).min(rest.floor_char_boundary(MAX_WORD_BYTES));
            if rest.len() - length < lookahead {
                break;
            }
            let (word, after) = rest.split_at(length);
            match self.words.get_mut(word) {
                Some(count) => *count += 1,
                None => {
                    self.words.insert(word.into(), 1);
                }
            }
            rest = after;
        }
        rest
    }

    /// A tokenizer of at most `vocab_size` tokens: end-of-text, the bytes, and one for each merge.
    pub(super) fn train(mut self, vocab_size: usize) -> Tokenizer {
        assert!(vocab_size > 256, "every byte has a token");
        let rest = std::mem::take(&mut self.rest);
        self.count(&rest, 0);
        let mut trainer = BpeTrainer::builder()
            .vocab_size(vocab_size)
            .min_frequency(MIN_FREQUENCY)
            .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
            .show_progress(false)
            .build();
        trainer.initial_alphabet = byte_alphabet().map(|(_, character)| character).collect();
        // The trainer sums pair counts in 32-bit numbers.
        let scale = self.most_frequent_pair().div_ceil(i32::MAX as u64).max(1);
        let counts = self.words.iter().map(|(word, count)| {
            let spelled = spell(word);
            (spelled.as_str().into(), count.div_ceil(scale))
        });
        let mut model = BPE::default();
        trainer.do_train(&counts.collect(), &mut model).expect("training only adds numbers");
        with_parts(model)
    }

    /// The number of occurrences of the most frequent pair of bytes in the words.
    fn most_frequent_pair(&self) -> u64 {
        let mut pairs = vec![0; 1 << 16];
        for (word, count) in &self.words {
            for pair in word.as_bytes().windows(2) {
                pairs[usize::from(u16::from_le_bytes([pair[0], pair[1]]))] += count;
            }
        }
        pairs.into_iter().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted<'a>(pieces: impl IntoIterator<Item = &'a str>) -> WordCounter {
        let mut counter = WordCounter::default();
        for piece in pieces {
            counter.add(piece);
            assert!(counter.rest.len() <= MAX_WORD_BYTES + LOOKAHEAD);
        }
        let rest = std::mem::take(&mut counter.rest);
        counter.count(&rest, 0);
        counter
    }

    #[test]
    fn endless_words_are_counted_in_pieces() {
        // Careless splits would divide the multi-byte characters.
        for run in ["a", "1", "-", "\u{4e00}", "\n", "\u{3000}", "x-"] {
            let text = run.repeat(10 * MAX_WORD_BYTES / run.len() + 1);
            let whole = counted([text.as_str()]);
            assert!(whole.words.keys().all(|word| word.len() <= MAX_WORD_BYTES));
            let n_bytes: u64 = whole.words.iter().map(|(word, n)| word.len() as u64 * n).sum();
            assert_eq!(n_bytes, text.len() as u64);
            let third = text.floor_char_boundary(text.len() / 3);
            let pieces = [&text[..third], &text[third..]];
            assert_eq!(counted(pieces).words, whole.words, "{run:?}");
        }
    }

    #[test]
    fn words_up_to_limit_stay_whole() {
        for n in MAX_WORD_BYTES - 2..=MAX_WORD_BYTES {
            let word = "a".repeat(n);
            let counts = counted([word.as_str(), " ", &word[1..], "<|endoftext|>", &word]).words;
            assert_eq!(counts[word.as_str()], 2);
            assert_eq!(counts[format!(" {}", &word[1..]).as_str()], 1);
            assert_eq!(counts.len(), 2);
        }
    }

    proptest! {
        #[test]
        fn words_do_not_depend_on_pieces_of_text(
            text in "(([a-c1 \n'slve.\u{e9}\u{a0}\u{3000}]|<\\|endoftext\\|>|<\\|endof){0,60})",
            at in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
        ) {
            let mut expected: HashMap<Box<str>, u64> = HashMap::new();
            for mut rest in text.split(END_OF_TEXT) {
                while !rest.is_empty() {
                    let (word, after) = rest.split_at(first_word(rest));
                    *expected.entry(word.into()).or_default() += 1;
                    rest = after;
                }
            }
            let mut ends: Vec<usize> = at
                .iter()
                .map(|at| text.floor_char_boundary(at.index(text.len() + 1)))
                .chain([0, text.len()])
                .collect();
            ends.sort_unstable();
            let pieces = ends.windows(2).map(|ends| &text[ends[0]..ends[1]]);
            prop_assert_eq!(counted(pieces).words, expected);
        }
    }
}
