//! Byte-level BPE, word by word: the library computes the ids of each word once, then they are looked up.
//!
//! The library aligns every byte of a text with its normalized form, which costs many times more than the merging, so
//! texts are split into words here, exactly as the library does. GPT-2's pattern, whose words it merges within, is
//!
//! ```text
//! 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//! ```
//!
//! Source: Radford et al. 2019, GPT-2's `encoder.py`. A loop over characters is many times faster than the regular
//! expression and never gives up on a long run of spaces; the library's tables say what a letter or a number is.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex, PoisonError};

use ahash::AHashMap;
use aho_corasick::{AhoCorasick, MatchKind};
use fancy_regex::Regex;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::{ModelWrapper, SplitDelimiterBehavior};
use tokenizers::utils::SysRegex;
use tokenizers::{AddedToken, Model};

use super::TokenizerError;
use super::byte_alphabet::spell;

/// Encodes text as a byte-level tokenizer of the library does.
#[derive(Debug)]
pub(super) struct WordEncoder {
    pattern: Pattern,
    added: AddedTokens,
    /// One cache per encoding thread; a call takes one and returns it.
    caches: Mutex<Vec<Cache>>,
}

#[derive(Debug)]
enum Pattern {
    Gpt2,
    /// Each match is a word, and so is the text between matches. The library's own type ends silently where the search
    /// gives up.
    Regex(Regex),
}

impl WordEncoder {
    /// `None` if the library processes text any further than this.
    pub(super) fn from_library(library: &tokenizers::Tokenizer, added: &[(u32, AddedToken)]) -> Option<Self> {
        let is_bpe = matches!(library.get_model(), ModelWrapper::BPE(_));
        if !is_bpe || library.get_normalizer().is_some() {
            return None;
        }
        let pattern = Pattern::from_pre_tokenizer(library.get_pre_tokenizer()?)?;
        Some(Self { pattern, added: AddedTokens::plain(added)?, caches: Mutex::default() })
    }

    /// The ids of a text; `model` is the library's.
    pub(super) fn encode(&self, text: &str, model: &ModelWrapper) -> Result<Vec<u32>, TokenizerError> {
        let caches = || self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cache = caches().pop().unwrap_or_default();
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut rest = text;
        while !rest.is_empty() {
            let (before, added, after) = self.added.split(rest);
            self.pattern.for_each_word(before, |word| {
                if let Some(known) = cache.get(word) {
                    ids.extend_from_slice(known);
                    return Ok(());
                }
                let n_before = ids.len();
                encode_piece(&spell(word), model, &mut ids).map_err(|error| match error {
                    TokenizerError::UnknownCharacters { .. } => unknown_characters(word, model),
                    other => other,
                })?;
                if word.len() <= MAX_CACHED_BYTES && cache.len() < MAX_CACHED_WORDS {
                    cache.insert(word.into(), ids[n_before..].into());
                }
                Ok(())
            })?;
            ids.extend(added);
            rest = after;
        }
        caches().push(cache);
        Ok(ids)
    }
}

/// Added tokens that match anywhere in a text, such as `<|endoftext|>`.
#[derive(Debug)]
struct AddedTokens {
    search: AhoCorasick,
    /// The id of each pattern.
    ids: Vec<u32>,
}

impl AddedTokens {
    /// `None` if a match also depends on the text around it.
    fn plain(tokens: &[(u32, AddedToken)]) -> Option<Self> {
        let is_plain = |token: &AddedToken| !looks_around(token) && !token.content.is_empty();
        // The library searches for unnormalized tokens first, separately.
        let is_one_search = tokens.windows(2).all(|pair| pair[0].1.normalized == pair[1].1.normalized);
        if !is_one_search || !tokens.iter().all(|(_, token)| is_plain(token)) {
            return None;
        }
        let contents = tokens.iter().map(|(_, token)| &token.content);
        let search = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents).ok()?;
        Some(Self { search, ids: tokens.iter().map(|(id, _)| *id).collect() })
    }

    /// The text before the leftmost, longest token match, the token, and the text after it.
    fn split<'a>(&self, text: &'a str) -> (&'a str, Option<u32>, &'a str) {
        match self.search.find(text) {
            Some(found) => (&text[..found.start()], Some(self.ids[found.pattern().as_usize()]), &text[found.end()..]),
            None => (text, None, ""),
        }
    }
}

impl Pattern {
    fn from_pre_tokenizer(pre_tokenizer: &PreTokenizerWrapper) -> Option<Self> {
        use PreTokenizerWrapper::{ByteLevel, Sequence, Split};
        match pre_tokenizer {
            ByteLevel(bytes) => (!bytes.add_prefix_space && bytes.use_regex).then_some(Self::Gpt2),
            Sequence(sequence) => {
                let [Split(split), ByteLevel(bytes)] = sequence.as_ref() else { return None };
                let SplitPattern::Regex(pattern) = &split.pattern else { return None };
                let is_plain = split.behavior == SplitDelimiterBehavior::Isolated
                    && !(split.invert || bytes.add_prefix_space || bytes.use_regex);
                is_plain.then(|| Regex::new(pattern).ok().map(Self::Regex))?
            }
            _ => None,
        }
    }

    fn for_each_word(
        &self,
        text: &str,
        mut each: impl FnMut(&str) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
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
                let mut each = |word: &str| if word.is_empty() { Ok(()) } else { each(word) };
                for found in regex.find_iter(text) {
                    let found =
                        found.map_err(|error| TokenizerError::NoToken { text: None, reason: error.to_string() })?;
                    each(&text[done..found.start()])?;
                    each(found.as_str())?;
                    done = found.end();
                }
                each(&text[done..])?;
            }
        }
        Ok(())
    }
}

/// Words seen before, with their ids.
type Cache = AHashMap<Box<str>, Box<[u32]>>;

/// The most words in a cache: frequent words come early, and a hundred thousand take ten megabytes.
const MAX_CACHED_WORDS: usize = 100_000;

/// The most bytes of a cached word; longer words rarely repeat.
const MAX_CACHED_BYTES: usize = 64;

/// The characters of a word with a byte that has no token: few vocabularies lack one.
fn unknown_characters(word: &str, model: &ModelWrapper) -> TokenizerError {
    let is_unknown = |byte: char| model.token_to_id(byte.encode_utf8(&mut [0; 4])).is_none();
    let spelled = |c: char| spell(c.encode_utf8(&mut [0; 4]));
    let unknown = word.chars().filter(|&c| spelled(c).chars().any(is_unknown));
    let characters = unknown.collect::<BTreeSet<_>>().into_iter().collect();
    TokenizerError::UnknownCharacters { characters }
}

/// The character classes of GPT-2's pattern: `\p{L}`, `\p{N}`, `\s` and all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Letter,
    Number,
    Space,
    Other,
}

/// The length in bytes of the first word of a non-empty text, by GPT-2's pattern.
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

/// A run of spaces leaves its last one to the next word, unless it is the only one.
fn spaces(text: &str) -> usize {
    let Some(end) = text.find(|c| class_of(c) != Class::Space) else {
        return text.len();
    };
    let last = text[..end].chars().next_back().map_or(0, char::len_utf8);
    if last == end { end } else { end - last }
}

pub(super) fn class_of(character: char) -> Class {
    static ALL: LazyLock<Vec<Class>> = LazyLock::new(classes);
    match character {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        ' ' | '\t'..='\r' => Class::Space,
        '\0'..='\x7f' => Class::Other,
        _ => ALL[character as usize],
    }
}

/// The class of every character, by code point.
fn classes() -> Vec<Class> {
    let mut classes = vec![Class::Other; char::MAX as usize + 1];
    // The library's tables decide; those of the standard library, which may be newer, only narrow the search.
    let candidates = [
        (Class::Letter, r"\p{L}+", char::is_alphabetic as fn(char) -> bool),
        (Class::Number, r"\p{N}+", char::is_numeric),
        (Class::Space, r"\s+", char::is_whitespace),
    ];
    for (class, pattern, may_be) in candidates {
        let text: String = ('\0'..=char::MAX).filter(|&c| may_be(c)).collect();
        let regex = SysRegex::new(pattern).expect("the pattern is valid");
        for (start, end) in regex.find_iter(&text) {
            text[start..end].chars().for_each(|character| classes[character as usize] = class);
        }
    }
    classes
}

/// Adds the ids of a piece of text that the model alone splits further.
pub(super) fn encode_piece(piece: &str, model: &ModelWrapper, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
    let tokens = model
        .tokenize(piece)
        .map_err(|error| TokenizerError::NoToken { text: Some(piece.to_owned()), reason: error.to_string() })?;
    // BPE drops characters without a token silently: its tokens then cover less than the piece.
    let n_bytes = tokens.last().map_or(0, |token| token.offsets.1);
    if matches!(model, ModelWrapper::BPE(_)) && n_bytes < piece.len() {
        let is_unknown = |c: &char| model.token_to_id(c.encode_utf8(&mut [0; 4])).is_none();
        let unknown: BTreeSet<char> = piece.chars().filter(is_unknown).collect();
        let characters = unknown.into_iter().collect();
        return Err(TokenizerError::UnknownCharacters { characters });
    }
    ids.extend(tokens.iter().map(|token| token.id));
    Ok(())
}

/// Whether a token match depends on the text around it.
pub(super) fn looks_around(token: &AddedToken) -> bool {
    token.single_word || token.lstrip || token.rstrip
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

    #[test]
    fn characters_have_classes_of_library() {
        let all: String = ('\0'..=char::MAX).collect();
        for (class, pattern) in [(Class::Letter, r"\p{L}"), (Class::Number, r"\p{N}"), (Class::Space, r"\s")] {
            let regex = SysRegex::new(pattern).unwrap();
            let expected: String = regex.find_iter(&all).map(|(start, end)| &all[start..end]).collect();
            assert!(all.chars().filter(|c| class_of(*c) == class).eq(expected.chars()), "{class:?}");
        }
    }

    proptest! {
        #[test]
        fn loop_finds_same_words_as_pattern(
            text in "(?s:.{0,30})|[a-c1 \n\t'slveremtd.!\u{e9}\u{a0}\u{2003}\u{301}\u{663}]{0,40}"
        ) {
            let words = |pattern: Pattern| {
                let mut words = Vec::new();
                let pushed = pattern.for_each_word(&text, |word| {
                    words.push(word.to_owned());
                    Ok(())
                });
                pushed.map(|()| words).unwrap()
            };
            prop_assert_eq!(words(Pattern::Gpt2), words(Pattern::Regex(Regex::new(PATTERN).unwrap())));
        }
    }

    #[test]
    fn split_finds_leftmost_longest_added_token() {
        let added = |contents: &[&str]| {
            let tokens = contents.iter().map(|content| AddedToken::from(*content, true));
            AddedTokens::plain(&(0..).zip(tokens).collect::<Vec<_>>()).unwrap()
        };
        let tokens = added(&["<a", "<a>", "b<"]);
        assert_eq!(tokens.split("x<a>y<ab<<a"), ("x", Some(1), "y<ab<<a"));
        assert_eq!(tokens.split("y<ab<<a"), ("y", Some(0), "b<<a"));
        assert_eq!(tokens.split("b<<a"), ("", Some(2), "<a"));
        assert_eq!(tokens.split("<a"), ("", Some(0), ""));
        assert_eq!(added(&[]).split("<a>"), ("<a>", None, ""));
    }

    #[test]
    fn plain_refuses_added_tokens_that_look_around() {
        let token = || AddedToken::from("<a>", true);
        for (tokens, is_plain) in [
            (vec![token()], true),
            (vec![token().lstrip(true)], false),
            (vec![token().rstrip(true)], false),
            (vec![token().single_word(true)], false),
            (vec![token(), AddedToken::from("b", false)], false), // two searches
        ] {
            let tokens: Vec<(u32, AddedToken)> = (0..).zip(tokens).collect();
            assert_eq!(AddedTokens::plain(&tokens).is_some(), is_plain, "{tokens:?}");
        }
    }
}
