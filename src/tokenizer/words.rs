//! Byte-level BPE, word by word: the ids of each word are worked out once by the library and then looked up.
//!
//! The library's own way aligns every byte of a text with its normalized form, which costs many times more than
//! the merging; so texts are cut into words here, exactly as the library would. GPT-2's pattern, within whose
//! words it merges, is
//!
//! ```text
//! 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//! ```
//!
//! Source: Radford et al. 2019, GPT-2's `encoder.py`. A loop over characters is many times faster than the regular
//! expression and never gives up on a long run of spaces; the library's tables say what a letter or a number is.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::{LazyLock, Mutex, PoisonError};

use tokenizers::Model;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::{ModelWrapper, SplitDelimiterBehavior};
use tokenizers::utils::SysRegex;

use super::TokenizerError;
use super::library::{AddedTokens, Section, encode_piece};

/// Encodes texts as a byte-level tokenizer of the library does.
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
    Gpt2,
    /// Each match is a word, and so is the text between two matches.
    Regex(SysRegex),
}

impl Words {
    /// `None` if the library does more with a text than this.
    pub(super) fn of(library: &tokenizers::Tokenizer, added: Option<AddedTokens>) -> Option<Self> {
        let is_bpe = matches!(library.get_model(), ModelWrapper::BPE(_));
        if !is_bpe || library.get_normalizer().is_some() {
            return None;
        }
        let pattern = Pattern::of(library.get_pre_tokenizer()?)?;
        Some(Self { pattern, added: added?, caches: Mutex::default() })
    }

    /// The ids of a text; `model` is the library's.
    pub(super) fn encode(&self, text: &str, model: &ModelWrapper) -> Result<Vec<u32>, TokenizerError> {
        let caches = || self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cache = caches().pop().unwrap_or_default();
        let mut ids = Vec::with_capacity(text.len() / 3);
        for section in self.added.sections(text) {
            match section {
                Section::Token(id) => ids.push(id),
                Section::Text(text) => {
                    self.pattern.for_each_word(text, |word| cache.encode(word, model, &mut ids))?;
                }
            }
        }
        caches().push(cache);
        Ok(ids)
    }
}

impl Pattern {
    fn of(pre_tokenizer: &PreTokenizerWrapper) -> Option<Self> {
        let is_plain =
            |byte_level: &ByteLevel, use_regex| !byte_level.add_prefix_space && byte_level.use_regex == use_regex;
        match pre_tokenizer {
            PreTokenizerWrapper::ByteLevel(byte_level) => is_plain(byte_level, true).then_some(Self::Gpt2),
            PreTokenizerWrapper::Sequence(sequence) => match sequence.as_ref() {
                [PreTokenizerWrapper::Split(split), PreTokenizerWrapper::ByteLevel(byte_level)]
                    if is_plain(byte_level, false)
                        && split.behavior == SplitDelimiterBehavior::Isolated
                        && !split.invert =>
                {
                    match &split.pattern {
                        SplitPattern::Regex(pattern) => Some(Self::Regex(SysRegex::new(pattern).ok()?)),
                        SplitPattern::String(_) => None,
                    }
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn for_each_word<E>(&self, text: &str, mut each: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        match self {
            Self::Gpt2 => {
                let mut rest = text;
                while !rest.is_empty() {
                    let (word, after) = rest.split_at(first_word(rest));
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
    /// The frequent words come early, and a hundred thousand are ten megabytes.
    const MAX_WORDS: usize = 100_000;

    /// Longer words, in bytes, hardly come twice.
    const MAX_WORD_BYTES: usize = 64;

    fn encode(&mut self, word: &str, model: &ModelWrapper, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if let Some(range) = self.words.get(word) {
            ids.extend_from_slice(&self.ids[range.clone()]);
            return Ok(());
        }
        let before = ids.len();
        encode_piece(&spell(word), model, ids).map_err(|error| match error {
            TokenizerError::UnknownCharacters { .. } => unknown_characters(word, model),
            other => other,
        })?;
        if word.len() <= Self::MAX_WORD_BYTES && self.words.len() < Self::MAX_WORDS {
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
    let spelled = |c: char| spell(c.encode_utf8(&mut [0; 4]));
    let unknown = word.chars().filter(|&c| spelled(c).chars().any(is_unknown));
    let characters = unknown.collect::<BTreeSet<_>>().into_iter().collect();
    TokenizerError::UnknownCharacters { characters }
}

/// Hashes short words fast, without protection against chosen words.
#[derive(Debug, Default)]
struct WordHasher(u64);

impl WordHasher {
    fn add(&mut self, number: u64) {
        const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0.rotate_left(26) ^ number).wrapping_mul(GOLDEN_RATIO);
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

    fn write_u8(&mut self, _: u8) {} // the end of a string, which its length tells already

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

/// The classes of characters in GPT-2's pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    Other,
}

/// The length in bytes of the first word of a text that is not empty, by GPT-2's pattern.
pub(super) fn first_word(text: &str) -> usize {
    let mut rest = text.chars();
    let first = rest.next().expect("the text is not empty");
    if first == '\'' {
        let contractions = ["s", "t", "re", "ve", "m", "ll", "d"];
        if let Some(ending) = contractions.iter().find(|ending| text[1..].starts_with(**ending)) {
            return 1 + ending.len();
        }
    }
    let class = match class_of(first) {
        Class::Space => match rest.clone().next().map(class_of) {
            Some(class) if first == ' ' && class != Class::Space => class,
            _ => return spaces(text),
        },
        class => class,
    };
    let run = rest.as_str();
    let end = run.find(|c| class_of(c) != class).unwrap_or(run.len());
    text.len() - run.len() + end
}

/// A run of spaces leaves its last one to the word after it, unless it is the only one.
fn spaces(text: &str) -> usize {
    let Some(end) = text.find(|c| class_of(c) != Class::Space) else {
        return text.len();
    };
    let last = text[..end].chars().next_back().map_or(0, char::len_utf8);
    if last == end { end } else { end - last }
}

pub(super) fn class_of(character: char) -> Class {
    static BEYOND_ASCII: LazyLock<Vec<Class>> = LazyLock::new(classes);
    match character {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        ' ' | '\t'..='\r' => Class::Space,
        '\0'..='\x7f' => Class::Other,
        // Private planes and unassigned characters lie beyond the table.
        _ => BEYOND_ASCII.get(character as usize).copied().unwrap_or(Class::Other),
    }
}

/// The class of every character, by code point, up to the last that is not [`Class::Other`].
fn classes() -> Vec<Class> {
    let mut classes = Vec::new();
    // The library's tables decide; the standard library's, which may be newer, only narrow the search.
    let candidates = [
        (Class::Letter, r"\p{L}+", char::is_alphabetic as fn(char) -> bool),
        (Class::Number, r"\p{N}+", char::is_numeric),
        (Class::Space, r"\s+", char::is_whitespace),
    ];
    for (class, pattern, may_be) in candidates {
        let text: String = ('\0'..=char::MAX).filter(|&c| may_be(c)).collect();
        let regex = SysRegex::new(pattern).expect("a valid pattern");
        for (start, end) in regex.find_iter(&text) {
            for character in text[start..end].chars() {
                let index = character as usize;
                if classes.len() <= index {
                    classes.resize(index + 1, Class::Other);
                }
                classes[index] = class;
            }
        }
    }
    classes
}

/// Each byte with the printable character that stands for it in a byte-level vocabulary: itself where it is
/// printable, and otherwise the next free one from U+0100 on.
///
/// Source: Radford et al. 2019, `bytes_to_unicode` in GPT-2's `encoder.py`.
pub(super) fn byte_alphabet() -> impl Iterator<Item = (u8, char)> {
    let mut free = '\u{100}'..;
    (0..=u8::MAX).map(move |byte| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (byte, char::from(byte)),
        _ => (byte, free.next().expect("there are more characters than bytes")),
    })
}

/// A text, with the character of each of its bytes.
pub(super) fn spell(text: &str) -> String {
    static CHARACTERS: LazyLock<Vec<char>> =
        LazyLock::new(|| byte_alphabet().map(|(_, character)| character).collect());
    text.bytes().map(|byte| CHARACTERS[usize::from(byte)]).collect()
}

/// The bytes that a token's characters stand for. A token with any other character, such as a special one
/// with a space in it, stands for itself.
pub(super) fn unspell(token: &str) -> Vec<u8> {
    static BYTES: LazyLock<Vec<Option<u8>>> = LazyLock::new(|| {
        let mut bytes = vec![None; 0x200];
        byte_alphabet().for_each(|(byte, character)| bytes[character as usize] = Some(byte));
        bytes
    });
    let byte = |character: char| BYTES.get(character as usize).copied().flatten();
    let bytes: Option<Vec<u8>> = token.chars().map(byte).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

    fn words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let pushed: Result<(), ()> = Pattern::Gpt2.for_each_word(text, |word| {
            words.push(word.to_owned());
            Ok(())
        });
        pushed.unwrap();
        words
    }

    #[test]
    fn words_are_those_of_the_pattern() {
        assert_eq!(
            words("I'll  say 'we've 3.14\u{e9}\t\n x!'s "),
            ["I", "'ll", " ", " say", " '", "we", "'ve", " 3", ".", "14", "\u{e9}", "\t\n", " x", "!'", "s", " "]
        );
    }

    #[test]
    fn every_character_has_the_librarys_class() {
        let all: String = ('\0'..=char::MAX).collect();
        let mut found = vec![Class::Other; char::MAX as usize + 1];
        for (class, pattern) in [(Class::Letter, r"\p{L}"), (Class::Number, r"\p{N}"), (Class::Space, r"\s")] {
            let regex = SysRegex::new(pattern).unwrap();
            for (start, _) in regex.find_iter(&all) {
                let character = all[start..].chars().next().unwrap();
                found[character as usize] = class;
            }
        }
        for character in all.chars() {
            assert_eq!(class_of(character), found[character as usize], "{character:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_has_the_words_of_the_pattern(
            text in "(?s:.{0,30})|[a-c1 \n\t'slveremtd.!\u{e9}\u{a0}\u{2003}\u{301}\u{663}]{0,40}"
        ) {
            let regex = SysRegex::new(PATTERN).unwrap();
            let expected = regex.find_iter(&text).map(|(start, end)| &text[start..end]);
            prop_assert_eq!(words(&text), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn bytes_are_spelled_as_the_library_spells_them() {
        let ours: BTreeSet<char> = byte_alphabet().map(|(_, character)| character).collect();
        assert_eq!(ours.len(), 256);
        assert!(ours.iter().all(|c| ByteLevel::alphabet().contains(c)));
        let text = "a b\n\u{e9}\u{1f525}\0";
        assert_eq!(spell("a b\n"), "a\u{120}b\u{10a}");
        assert_eq!(unspell(&spell(text)), text.as_bytes());
        assert_eq!(unspell("<a b>"), b"<a b>");
    }
}
