//! Byte-level BPE, trained on a text.
//!
//! The library finds the merges; the words that it counts pairs in are counted here, as the text streams
//! by, so that only distinct words are ever in memory.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use super::{bytes, split};

/// The token that stands between texts.
pub(super) const END_OF_TEXT: &str = "<|endoftext|>";

/// How often a pair must stand in the text to become a token: what comes once teaches nothing.
const MIN_FREQUENCY: u64 = 2;

/// The parts that every tokenizer trained here has: GPT-2's, without a space put before the text.
pub(super) fn empty() -> Tokenizer {
    with_parts(BPE::default())
}

fn with_parts(model: BPE) -> Tokenizer {
    let mut library = Tokenizer::new(model);
    library
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
        .with_decoder(Some(ByteLevel::default())) // which has a use for none of its settings
        .add_special_tokens([AddedToken::from(END_OF_TEXT, true)])
        .expect("there is no normalizer that could fail");
    library
}

/// Counts words, and then finds the merges that make the most of them shorter.
#[derive(Debug, Default)]
pub(super) struct Counter {
    words: HashMap<Box<str>, u64>,
    /// The end of what was counted, which what comes next may go on.
    rest: String,
}

impl Counter {
    /// Counts a further piece of the text, which may end anywhere.
    pub(super) fn add(&mut self, piece: &str) {
        self.rest.push_str(piece);
        if let Some(end) = last_cut(&self.rest) {
            let rest = self.rest.split_off(end);
            let ready = std::mem::replace(&mut self.rest, rest);
            self.count(&ready);
        }
    }

    fn count(&mut self, text: &str) {
        for section in text.split(END_OF_TEXT) {
            let mut rest = section;
            while !rest.is_empty() {
                let (word, after) = rest.split_at(split::first_word(rest));
                match self.words.get_mut(word) {
                    Some(count) => *count += 1,
                    None => {
                        self.words.insert(word.into(), 1);
                    }
                }
                rest = after;
            }
        }
    }

    /// A tokenizer of at most `vocab_size` tokens: the end of a text, the bytes, and one for each merge.
    ///
    /// # Panics
    /// If there is no room for every byte and the end of a text.
    pub(super) fn train(mut self, vocab_size: usize) -> Tokenizer {
        assert!(vocab_size > 256, "every byte has a token");
        let rest = std::mem::take(&mut self.rest);
        self.count(&rest);
        let mut trainer = BpeTrainer::builder()
            .vocab_size(vocab_size)
            .min_frequency(MIN_FREQUENCY)
            .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
            .show_progress(false)
            .build();
        trainer.initial_alphabet = bytes::alphabet().map(|(_, character)| character).collect();
        // The trainer adds counts of pairs as 32-bit numbers.
        let scale = self.most_frequent_pair().div_ceil(i32::MAX as u64).max(1);
        let counts = self.words.iter().map(|(word, count)| {
            let spelled = bytes::spelled(word);
            (spelled.as_str().into(), count.div_ceil(scale))
        });
        let mut model = BPE::default();
        trainer
            .do_train(&counts.collect(), &mut model)
            .expect("training adds numbers, and cannot fail");
        with_parts(model)
    }

    /// How often the most frequent pair of bytes stands in the words.
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

/// The last place where a word ends, whatever comes after it.
fn last_cut(text: &str) -> Option<usize> {
    let mut after: Option<char> = None;
    text.char_indices().rev().find_map(|(start, before)| {
        let after = after.replace(before)?;
        let is_space = |c| split::class_of(c) == split::Class::Space;
        (!is_space(before) && is_space(after)).then_some(start + before.len_utf8())
    })
}
