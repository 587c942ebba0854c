//! Finds the places where a text may be split so that the ids of its parts are those of the whole.
//!
//! Line breaks are not enough: a text may have none for megabytes, and GPT-2's pattern takes several of them at the end
//! of a text as one word. The model only merges within words, so a split is safe if a word ends there whatever follows,
//! and nothing else treats the ends of a text differently. The word patterns below allow this.

use serde_json::{Value, json};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use super::words::{Class, class_of, looks_around};

#[derive(Debug)]
pub(super) struct SafeSplits {
    between: Rule,
    /// Added tokens that a split could divide, or affect by touching.
    awkward: Vec<AddedToken>,
}

/// Whether a split between two characters is safe. The second is a space, so that nothing before it depends on whether
/// the text ends there, as with GPT-2's `\s+(?!\S)`.
type Rule = fn(char, char) -> bool;

/// In GPT-2's pattern only the start of a word is a space.
fn word_and_space(before: char, after: char) -> bool {
    class_of(before) != Class::Space && class_of(after) == Class::Space
}

/// In later patterns line breaks after punctuation belong to its word.
fn alphanumeric_and_space(before: char, after: char) -> bool {
    matches!(class_of(before), Class::Letter | Class::Number) && class_of(after) == Class::Space
}

/// Only characters that no local normalizer changes.
fn ascii_alphanumeric_and_blank(before: char, after: char) -> bool {
    before.is_ascii_alphanumeric() && after == ' '
}

/// The pattern of words of GPT-4 and Llama 3, as their files spell it.
pub const LLAMA_3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of words of Qwen2: Llama 3's with single digits.
pub const QWEN2_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Patterns in which a letter or number and the space after it are never in one word, and which look ahead only for
/// `\s+(?!\S)`: besides Llama 3's and Qwen2's those of GPT-4o and GPT-2, as their files spell them.
pub(super) const KNOWN_PATTERNS: [&str; 4] = [
    LLAMA_3_PATTERN,
    QWEN2_PATTERN,
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
];

impl SafeSplits {
    /// `None` if no split is known to be safe.
    pub(super) fn from_library(library: &Tokenizer, added: &[(u32, AddedToken)]) -> Option<Self> {
        let (between, blank) = word_rule(library.get_pre_tokenizer()?)?;
        let between = match library.get_normalizer() {
            None => between,
            Some(normalizer) if is_local(normalizer, blank) => ascii_alphanumeric_and_blank,
            Some(_) => return None,
        };
        let is_awkward = |token: &&AddedToken| looks_around(token) || token.content.contains(char::is_whitespace);
        let awkward: Vec<AddedToken> = added.iter().map(|(_, token)| token).filter(is_awkward).cloned().collect();
        if library.get_normalizer().is_some() && awkward.iter().any(|token| token.normalized) {
            return None; // the text holds an unnormalized form of the token
        }
        Some(Self { between, awkward })
    }

    /// The last safe split of a text, after its start and before its end.
    pub(super) fn last(&self, text: &str) -> Option<usize> {
        let mut after: Option<char> = None;
        text.char_indices().rev().find_map(|(start, character)| {
            let after = after.replace(character)?;
            let at = start + character.len_utf8();
            ((self.between)(character, after) && self.is_clear(text.as_bytes(), at)).then_some(at)
        })
    }

    /// Whether no awkward token straddles the split, or could once the text continues.
    fn is_clear(&self, text: &[u8], at: usize) -> bool {
        self.awkward.iter().all(|token| {
            let content = token.content.as_bytes();
            let touching = usize::from(looks_around(token));
            let first = (at + 1).saturating_sub(content.len() + touching);
            (first..at + touching).all(|start| {
                let n = content.len().min(text.len() - start);
                text[start..start + n] != content[..n]
            })
        })
    }
}

/// The rule for where words end in text that is not normalized, and the character for a space if words begin with one.
fn word_rule(pre_tokenizer: &PreTokenizerWrapper) -> Option<(Rule, Option<char>)> {
    use PreTokenizerWrapper as P;
    let rule = |rule: Rule, blank| Some((rule, blank));
    match pre_tokenizer {
        // No blank is put before a text that already begins with one.
        P::ByteLevel(it) if it.use_regex && it.add_prefix_space => rule(ascii_alphanumeric_and_blank, Some(' ')),
        P::ByteLevel(it) if it.use_regex => rule(word_and_space, None),
        P::Metaspace(it) if it.get_split() => rule(ascii_alphanumeric_and_blank, Some(it.get_replacement())),
        P::BertPreTokenizer(_) | P::Whitespace(_) | P::WhitespaceSplit(_) => rule(alphanumeric_and_space, None),
        P::Split(split) => match &split.pattern {
            SplitPattern::Regex(pattern)
                if KNOWN_PATTERNS.contains(&pattern.as_str())
                    && split.behavior == SplitDelimiterBehavior::Isolated
                    && !split.invert =>
            {
                rule(alphanumeric_and_space, None)
            }
            _ => None,
        },
        // Each part splits the pieces of the one before it further. Digits and punctuation are isolated character by
        // character, and leave spaces alone.
        P::Sequence(sequence) => {
            let leaves_spaces = |part: &&P| matches!(part, P::Digits(_) | P::Punctuation(_));
            sequence.as_ref().iter().find(|part| !leaves_spaces(part)).and_then(word_rule)
        }
        _ => None,
    }
}

/// Whether a normalizer changes each word independently, and keeps ASCII letters and the blanks after them.
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
        // Blanks become the character that words begin with, singly or several at once.
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
