//! Where a text may be cut, so that its parts have the ids of the whole.
//!
//! A text is first split at added tokens and normalized, then cut into words, and only within a word does
//! the model decide. So a place is safe if a word ends there whatever comes after, and if neither part is
//! treated otherwise for beginning or ending there. That is known of the word patterns below; of any other
//! it is not, and then there is no safe place.

use serde_json::{Value, json};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use super::gpt2_words::{Class, class_of};

/// Where a tokenizer's texts may be cut.
#[derive(Debug)]
pub(super) struct Cuts {
    /// Between which characters; none: nowhere.
    between: Option<Between>,
    /// Added tokens that a cut could go through, or touch with an effect.
    awkward: Vec<Awkward>,
}

/// The characters on both sides of a safe place.
///
/// Each begins with a space on its right: so nothing before it depends on whether the text ends there, as
/// GPT-2's `\s+(?!\S)` would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// Anything but a space, and any space. In GPT-2's pattern a word has spaces only at its start.
    WordAndSpace,
    /// A letter or number, and any space. In later patterns punctuation takes line breaks along.
    AlphanumericAndSpace,
    /// As the one above, where something changes the text before: characters that nothing changes.
    AsciiAlphanumericAndBlank,
}

#[derive(Debug)]
struct Awkward {
    content: Box<str>,
    /// Whether it asks for what stands beside it.
    looks_around: bool,
}

/// Patterns in which a letter or number and a space after it are never in one word, and which look ahead
/// only for `\s+(?!\S)`: those of GPT-4 and Llama 3, of Qwen2, and of GPT-4o, as their files have them.
const KNOWN_PATTERNS: [&str; 4] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
];

impl Cuts {
    pub(super) fn of(library: &Tokenizer, added: &[(u32, AddedToken)]) -> Self {
        let nowhere = Self { between: None, awkward: Vec::new() };
        let Some(words) = library.get_pre_tokenizer().and_then(of_pre_tokenizer) else {
            return nowhere;
        };
        let between = match (library.get_normalizer(), words) {
            (None, WordRule::Blank(_)) => Between::AsciiAlphanumericAndBlank,
            (None, WordRule::Gpt2) => Between::WordAndSpace,
            (None, WordRule::Known) => Between::AlphanumericAndSpace,
            (Some(normalizer), words) if is_local(normalizer, words) => {
                Between::AsciiAlphanumericAndBlank
            }
            (Some(_), _) => return nowhere,
        };
        let mut awkward = Vec::new();
        for (_, token) in added {
            let looks_around = token.lstrip || token.rstrip || token.single_word;
            if looks_around || token.content.contains(char::is_whitespace) {
                if token.normalized && library.get_normalizer().is_some() {
                    return nowhere; // what it is found as does not stand in the text
                }
                awkward.push(Awkward { content: token.content.as_str().into(), looks_around });
            }
        }
        Self { between: Some(between), awkward }
    }

    /// The last safe place in a text, behind its start and before its end.
    pub(super) fn last(&self, text: &str) -> Option<usize> {
        let between = self.between?;
        let mut after: Option<char> = None;
        text.char_indices().rev().find_map(|(start, character)| {
            let after = after.replace(character)?;
            let at = start + character.len_utf8();
            (between.allows(character, after) && self.is_clear(text.as_bytes(), at)).then_some(at)
        })
    }

    /// Whether no awkward token stands across the place, or could if the text goes on.
    fn is_clear(&self, text: &[u8], at: usize) -> bool {
        self.awkward.iter().all(|token| {
            let content = token.content.as_bytes();
            let touching = usize::from(token.looks_around);
            let first = (at + 1).saturating_sub(content.len() + touching);
            (first..at + touching).all(|start| {
                let n = content.len().min(text.len() - start);
                text[start..start + n] != content[..n]
            })
        })
    }
}

impl Between {
    fn allows(self, before: char, after: char) -> bool {
        match self {
            Self::WordAndSpace => {
                class_of(before) != Class::Space && class_of(after) == Class::Space
            }
            Self::AlphanumericAndSpace => {
                matches!(class_of(before), Class::Letter | Class::Number)
                    && class_of(after) == Class::Space
            }
            Self::AsciiAlphanumericAndBlank => before.is_ascii_alphanumeric() && after == ' ',
        }
    }
}

/// What is known of how a text is cut into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WordRule {
    /// By GPT-2's pattern.
    Gpt2,
    /// By one in which a letter or number and a space after it are never in one word.
    Known,
    /// Before every blank, which this character stands for.
    Blank(char),
}

fn of_pre_tokenizer(pre_tokenizer: &PreTokenizerWrapper) -> Option<WordRule> {
    match pre_tokenizer {
        // A blank is not put before a text that begins with one.
        PreTokenizerWrapper::ByteLevel(it) if it.use_regex && it.add_prefix_space => {
            Some(WordRule::Blank(' '))
        }
        PreTokenizerWrapper::ByteLevel(it) if it.use_regex => Some(WordRule::Gpt2),
        PreTokenizerWrapper::Metaspace(it) if it.get_split() => {
            Some(WordRule::Blank(it.get_replacement()))
        }
        PreTokenizerWrapper::BertPreTokenizer(_)
        | PreTokenizerWrapper::Whitespace(_)
        | PreTokenizerWrapper::WhitespaceSplit(_) => Some(WordRule::Known),
        PreTokenizerWrapper::Split(split) => match &split.pattern {
            SplitPattern::Regex(pattern)
                if KNOWN_PATTERNS.contains(&pattern.as_str())
                    && split.behavior == SplitDelimiterBehavior::Isolated
                    && !split.invert =>
            {
                Some(WordRule::Known)
            }
            _ => None,
        },
        PreTokenizerWrapper::Sequence(sequence) => {
            // Each part cuts the pieces of the one before it further. Digits and punctuation are cut
            // character by character, and leave spaces alone.
            let is_local = |part: &&PreTokenizerWrapper| {
                matches!(part, PreTokenizerWrapper::Digits(_) | PreTokenizerWrapper::Punctuation(_))
            };
            sequence.as_ref().iter().find(|part| !is_local(part)).and_then(of_pre_tokenizer)
        }
        _ => None,
    }
}

/// Whether a normalizer changes each word for itself, and leaves ASCII letters with a blank after them such.
fn is_local(normalizer: &NormalizerWrapper, words: WordRule) -> bool {
    match normalizer {
        NormalizerWrapper::NFC(_)
        | NormalizerWrapper::NFD(_)
        | NormalizerWrapper::NFKC(_)
        | NormalizerWrapper::NFKD(_)
        | NormalizerWrapper::Lowercase(_)
        | NormalizerWrapper::StripAccents(_)
        | NormalizerWrapper::Nmt(_)
        | NormalizerWrapper::BertNormalizer(_)
        | NormalizerWrapper::Precompiled(_) => true,
        NormalizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().all(|part| is_local(part, words))
        }
        // Blanks become what words begin with, one by one or many at once.
        NormalizerWrapper::Replace(replace) => {
            let Ok(Value::Object(replace)) = serde_json::to_value(replace) else {
                return false;
            };
            let of_blanks = replace["pattern"] == json!({ "String": " " })
                || replace["pattern"] == json!({ "Regex": " {2,}" });
            let by = |blank: char| replace["content"] == blank.to_string();
            of_blanks && matches!(words, WordRule::Blank(blank) if by(blank) || by(' '))
        }
        _ => false,
    }
}
