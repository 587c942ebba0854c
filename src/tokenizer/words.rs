//! Byte-level BPE, word by word: each word's ids are worked out once and then looked up.
//!
//! The library does the merging. What it does around it, an alignment of every byte of the text with its
//! normalized form and a string for every token, costs many times more than that, and nobody here needs
//! it; so the text is cut into words here, exactly as the library would.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use tokenizers::Model;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::{ModelWrapper, SplitDelimiterBehavior};
use tokenizers::utils::SysRegex;

use super::added::{AddedTokens, Section};
use super::library::encode_piece;
use super::{TokenizerError, bytes, gpt2_words};

/// A byte-level tokenizer's way from text to words.
#[derive(Debug)]
pub(super) struct Words {
    pattern: Pattern,
    added: AddedTokens,
    /// One for each thread that encodes at the same time; a call takes one and gives it back.
    caches: Mutex<Vec<Cache>>,
}

/// How a text is cut into words.
#[derive(Debug)]
enum Pattern {
    /// GPT-2's.
    Gpt2,
    /// Each match is a word, and so is what lies between two matches.
    Regex(SysRegex),
}

impl Words {
    /// None if the library does more with a text than this.
    pub(super) fn of(library: &tokenizers::Tokenizer, added: Option<AddedTokens>) -> Option<Self> {
        let is_bpe = matches!(library.get_model(), ModelWrapper::BPE(_));
        if !is_bpe || library.get_normalizer().is_some() {
            return None;
        }
        Some(Self {
            pattern: Pattern::of(library.get_pre_tokenizer()?)?,
            added: added?,
            caches: Mutex::default(),
        })
    }

    /// The ids of a text; `model` is the library's.
    pub(super) fn encode(
        &self,
        text: &str,
        model: &ModelWrapper,
    ) -> Result<Vec<u32>, TokenizerError> {
        let caches = || self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cache = caches().pop().unwrap_or_default();
        let mut ids = Vec::with_capacity(text.len() / 3);
        for section in self.added.sections(text) {
            match section {
                Section::Token(id) => ids.push(id),
                Section::Text(text) => {
                    self.pattern.for_each_word(text, |word| cache.encode(word, model, &mut ids))?
                }
            }
        }
        caches().push(cache);
        Ok(ids)
    }
}

impl Pattern {
    fn of(pre_tokenizer: &PreTokenizerWrapper) -> Option<Self> {
        let is_byte_level = |byte_level: &ByteLevel, use_regex| {
            !byte_level.add_prefix_space && byte_level.use_regex == use_regex
        };
        match pre_tokenizer {
            PreTokenizerWrapper::ByteLevel(byte_level) if is_byte_level(byte_level, true) => {
                Some(Self::Gpt2)
            }
            PreTokenizerWrapper::Sequence(sequence) => match sequence.as_ref() {
                [PreTokenizerWrapper::Split(split), PreTokenizerWrapper::ByteLevel(byte_level)]
                    if is_byte_level(byte_level, false) =>
                {
                    match &split.pattern {
                        SplitPattern::Regex(pattern)
                            if split.behavior == SplitDelimiterBehavior::Isolated
                                && !split.invert =>
                        {
                            Some(Self::Regex(SysRegex::new(pattern).ok()?))
                        }
                        _ => None,
                    }
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn for_each_word<E>(
        &self,
        text: &str,
        mut each: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Gpt2 => {
                let mut rest = text;
                while !rest.is_empty() {
                    let (word, after) = rest.split_at(gpt2_words::first_word(rest));
                    each(word)?;
                    rest = after;
                }
            }
            Self::Regex(regex) => {
                let mut done = 0;
                for (start, end) in regex.find_iter(text) {
                    if done < start {
                        each(&text[done..start])?;
                    }
                    if start < end {
                        each(&text[start..end])?;
                    }
                    done = end;
                }
                if done < text.len() {
                    each(&text[done..])?;
                }
            }
        }
        Ok(())
    }
}

/// Words that were met before, with their ids.
#[derive(Debug, Default)]
struct Cache {
    words: HashMap<Box<str>, Range<usize>, BuildHasherDefault<WordHasher>>,
    /// The ids of all words, one after another.
    ids: Vec<u32>,
}

impl Cache {
    /// The most words that are kept: the frequent ones come early, and a hundred thousand are ten megabytes.
    const MOST_WORDS: usize = 100_000;

    /// The longest word that is kept, in bytes: longer ones hardly come twice.
    const LONGEST_WORD: usize = 64;

    fn encode(
        &mut self,
        word: &str,
        model: &ModelWrapper,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if let Some(range) = self.words.get(word) {
            ids.extend_from_slice(&self.ids[range.clone()]);
            return Ok(());
        }
        let before = ids.len();
        encode_piece(&bytes::spelled(word), model, ids).map_err(|error| match error {
            TokenizerError::UnknownCharacters { .. } => unknown_characters(word, model),
            other => other,
        })?;
        if word.len() <= Self::LONGEST_WORD && self.words.len() < Self::MOST_WORDS {
            let start = self.ids.len();
            self.ids.extend_from_slice(&ids[before..]);
            self.words.insert(word.into(), start..self.ids.len());
        }
        Ok(())
    }
}

/// The characters of a word that have a byte without a token: few vocabularies lack one.
fn unknown_characters(word: &str, model: &ModelWrapper) -> TokenizerError {
    let is_unknown = |byte: char| model.token_to_id(byte.encode_utf8(&mut [0; 4])).is_none();
    let spelled = |c: char| bytes::spelled(c.encode_utf8(&mut [0; 4]));
    let unknown = word.chars().filter(|&c| spelled(c).chars().any(is_unknown));
    TokenizerError::UnknownCharacters {
        characters: unknown.collect::<BTreeSet<_>>().into_iter().collect(),
    }
}

/// Hashes short words fast. Nobody gains from making them collide: a slow run would be their own.
#[derive(Debug, Default)]
struct WordHasher(u64);

impl WordHasher {
    fn add(&mut self, number: u64) {
        // An odd number without a pattern: the golden ratio's digits.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0.rotate_left(26) ^ number).wrapping_mul(SPREAD);
    }
}

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (eights, rest) = bytes.as_chunks::<8>();
        for eight in eights {
            self.add(u64::from_le_bytes(*eight));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last) ^ (bytes.len() as u64).rotate_right(8));
    }

    fn write_u8(&mut self, _: u8) {} // a string's end, which its length tells already

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
