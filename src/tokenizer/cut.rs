//! Where a text may be cut, so that its parts have the ids of the whole.
//!
//! Cutting only after line breaks is not enough: a text may have none for megabytes, and GPT-2's pattern treats
//! several of them at the end of a text as one word. A text is split at added tokens, normalized and cut into
//! words, and the model decides only within a word; so a place is safe if a word ends there whatever follows, and
//! if nothing else treats the beginning or the end of a text differently. That is known of the word patterns
//! below; with any other, no place is safe.

use serde_json::{Value, json};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use super::words::{Class, class_of};

/// Where a tokenizer's texts may be cut.
#[derive(Debug)]
pub(super) struct Cuts {
    /// `None`: nowhere.
    between: Option<Between>,
    /// Added tokens that a cut could go through, or touch with an effect.
    awkward: Vec<Awkward>,
}

/// The characters on both sides of a safe place.
///
/// The right one is a space: so nothing before it depends on whether the text ends there, as in GPT-2's
/// `\s+(?!\S)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// Anything but a space, and any space. In GPT-2's pattern a word has spaces only at its start.
    WordAndSpace,
    /// A letter or number, and any space. In later patterns punctuation takes line breaks along.
    AlphanumericAndSpace,
    /// Characters that no local normalizer changes.
    AsciiAlphanumericAndBlank,
}

#[derive(Debug)]
struct Awkward {
    content: Box<str>,
    /// Whether the text beside the token matters.
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
        let rule = library.get_pre_tokenizer().and_then(word_rule);
        let between = match (rule, library.get_normalizer()) {
            (Some((between, _)), None) => between,
            (Some((_, blank)), Some(normalizer)) if is_local(normalizer, blank) => Between::AsciiAlphanumericAndBlank,
            _ => return nowhere,
        };
        let mut awkward = Vec::new();
        for (_, token) in added {
            let looks_around = token.lstrip || token.rstrip || token.single_word;
            if looks_around || token.content.contains(char::is_whitespace) {
                if token.normalized && library.get_normalizer().is_some() {
                    return nowhere; // the text holds another form of the token
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
        let is_alphanumeric = |c| matches!(class_of(c), Class::Letter | Class::Number);
        let is_space = |c| class_of(c) == Class::Space;
        match self {
            Self::WordAndSpace => !is_space(before) && is_space(after),
            Self::AlphanumericAndSpace => is_alphanumeric(before) && is_space(after),
            Self::AsciiAlphanumericAndBlank => before.is_ascii_alphanumeric() && after == ' ',
        }
    }
}

/// Where words end in a text that is not normalized, and the character that stands for a blank if words
/// begin with it.
fn word_rule(pre_tokenizer: &PreTokenizerWrapper) -> Option<(Between, Option<char>)> {
    use PreTokenizerWrapper as P;
    let before_blanks = |blank| Some((Between::AsciiAlphanumericAndBlank, Some(blank)));
    match pre_tokenizer {
        // A blank is not put before a text that begins with one.
        P::ByteLevel(it) if it.use_regex && it.add_prefix_space => before_blanks(' '),
        P::ByteLevel(it) if it.use_regex => Some((Between::WordAndSpace, None)),
        P::Metaspace(it) if it.get_split() => before_blanks(it.get_replacement()),
        P::BertPreTokenizer(_) | P::Whitespace(_) | P::WhitespaceSplit(_) => {
            Some((Between::AlphanumericAndSpace, None))
        }
        P::Split(split) => match &split.pattern {
            SplitPattern::Regex(pattern)
                if KNOWN_PATTERNS.contains(&pattern.as_str())
                    && split.behavior == SplitDelimiterBehavior::Isolated
                    && !split.invert =>
            {
                Some((Between::AlphanumericAndSpace, None))
            }
            _ => None,
        },
        // Each part cuts the pieces of the one before it further. Digits and punctuation are cut
        // character by character, and leave spaces alone.
        P::Sequence(sequence) => {
            let leaves_spaces = |part: &&P| matches!(part, P::Digits(_) | P::Punctuation(_));
            sequence.as_ref().iter().find(|part| !leaves_spaces(part)).and_then(word_rule)
        }
        _ => None,
    }
}

/// Whether a normalizer changes each word on its own, and leaves ASCII letters and the blanks after them as such.
fn is_local(normalizer: &NormalizerWrapper, blank: Option<char>) -> bool {
    use NormalizerWrapper as N;
    match normalizer {
        N::NFC(_)
        | N::NFD(_)
        | N::NFKC(_)
        | N::NFKD(_)
        | N::Lowercase(_)
        | N::StripAccents(_)
        | N::Nmt(_)
        | N::BertNormalizer(_)
        | N::Precompiled(_) => true,
        N::Sequence(sequence) => sequence.as_ref().iter().all(|part| is_local(part, blank)),
        // Blanks become the character that words begin with, one by one or many at once.
        N::Replace(replace) => {
            let Ok(Value::Object(replace)) = serde_json::to_value(replace) else {
                return false;
            };
            let of_blanks =
                replace["pattern"] == json!({ "String": " " }) || replace["pattern"] == json!({ "Regex": " {2,}" });
            let by = |blank: char| replace["content"] == blank.to_string();
            of_blanks && blank.is_some_and(|blank| by(blank) || by(' '))
        }
        _ => false,
    }
}
