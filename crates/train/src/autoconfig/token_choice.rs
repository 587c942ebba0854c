//! Chooses the tokenizer from the text alone.

use super::profile::TextProfile;
use crate::config::TokenizerKind;
use tinderbox_model::format::grouped;

/// The largest alphabet whose characters become tokens.
const MAX_ALPHABET: usize = 256;

/// From this length in characters BPE is better: a run of minutes reads more of the text and does not yet memorize it
/// (docs/experiments.md, "Pieces instead of characters").
const LONG_TEXT: u64 = 1_000_000;

/// The number of occurrences below which a token is hardly learned.
const MIN_OCCURRENCES: u64 = 4;

/// The shortest text for BPE, in bytes: shorter ones have too few repeated pieces.
const MIN_BPE_BYTES: u64 = 64 << 10;

/// The number of bytes of text per token of a BPE vocabulary, within the limits of [`BPE_SIZES`].
const BYTES_PER_TOKEN: u64 = 500;

/// The limits of a BPE vocabulary: a smaller one is hardly better than bytes, and with a larger one a small model
/// spends most of its time on logits.
const BPE_SIZES: std::ops::RangeInclusive<u64> = 512..=4096;

/// A kind of tokenizer, with the reason for the choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenChoice {
    pub kind: TokenizerKind,
    pub size: usize,
    pub why: String,
}

impl TokenChoice {
    /// Chooses the tokenizer for a text, unless one is `requested`.
    pub fn choose(profile: &TextProfile, requested: Option<TokenizerKind>) -> Self {
        let Some(characters) = &profile.characters else {
            let why = "You asked for bytes: any file, 256 tokens.".to_owned();
            return Self { kind: TokenizerKind::Byte, size: 256, why };
        };
        let (n, n_distinct) = (characters.n, characters.n_distinct);
        let is_small = n_distinct <= MAX_ALPHABET;
        let is_sparse = n < MIN_OCCURRENCES * n_distinct as u64;
        let suits = match () {
            () if is_small && n >= LONG_TEXT => TokenizerKind::Bpe,
            () if is_small && !is_sparse => TokenizerKind::Char,
            () if profile.bytes >= MIN_BPE_BYTES => TokenizerKind::Bpe,
            () => TokenizerKind::Byte,
        };
        let kind = requested.unwrap_or(suits);
        let size = match kind {
            TokenizerKind::Char => n_distinct,
            TokenizerKind::Byte => 256,
            _ => 1 << (profile.bytes / BYTES_PER_TOKEN).clamp(*BPE_SIZES.start(), *BPE_SIZES.end()).ilog2(),
        };
        let seen = format!("{} different characters", grouped(n_distinct as u64));
        let [n, bytes, least] = [n, profile.bytes, MIN_BPE_BYTES].map(grouped);
        let why = match kind {
            TokenizerKind::Char => format!("One token for each of the {seen}: few enough that each is seen often."),
            TokenizerKind::Byte if is_small => {
                format!("Bytes: {n} characters are too few to see each of {seen} often.")
            }
            TokenizerKind::Byte => format!(
                "Bytes: {seen} are too many for a token each, and {bytes} bytes of text too few to find frequent \
                 pieces in (from {least} on)."
            ),
            _ if is_small => {
                "Pieces of several characters: a step reads and a window holds more of the text.".to_owned()
            }
            _ => format!(
                "Frequent pieces, from single bytes up to words: {seen} are too many for a token each, since most are \
                 rare."
            ),
        };
        let asked = if requested.is_some() { "You asked for it. " } else { "" };
        Self { kind, size, why: format!("{asked}{why}") }
    }
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::profile;
    use super::*;

    /// A text of `n` characters out of `n_distinct` after U+4E00, or after U+0020 if these are few.
    fn text(n: u32, n_distinct: u32) -> String {
        let first = if n_distinct < 90 { 0x20 } else { 0x4e00 };
        let characters = (0..n).map(|i| char::from_u32(first + i * 31 % n_distinct));
        characters.map(Option::unwrap).collect()
    }

    fn chosen(n: u32, n_distinct: u32) -> (TokenizerKind, usize) {
        let token_choice = TokenChoice::choose(&profile(&text(n, n_distinct)), None);
        (token_choice.kind, token_choice.size)
    }

    #[test]
    fn text_decides_tokenizer_kind() {
        assert_eq!(chosen(500, 40), (TokenizerKind::Char, 40));
        assert_eq!(chosen(900_000, 65), (TokenizerKind::Char, 65));
        assert_eq!(chosen(1_000_000, 65), (TokenizerKind::Bpe, 1024));
        assert_eq!(chosen(4_000_000, 65), (TokenizerKind::Bpe, 4096));
        assert_eq!(chosen(200_000, 3000), (TokenizerKind::Bpe, 1024)); // 600,000 bytes
        assert_eq!(chosen(5_000, 1000), (TokenizerKind::Byte, 256));
        assert_eq!(chosen(300, 89), (TokenizerKind::Byte, 256)); // each is seen three times
    }

    #[test]
    fn requested_tokenizer_kind_is_chosen() {
        let profile = profile(&text(1_000_000, 65));
        for (kind, size) in [(TokenizerKind::Byte, 256), (TokenizerKind::Char, 65), (TokenizerKind::Bpe, 1024)] {
            let token_choice = TokenChoice::choose(&profile, Some(kind));
            assert_eq!((token_choice.kind, token_choice.size), (kind, size));
            assert!(token_choice.why.starts_with("You asked for it. "));
        }
    }
}
