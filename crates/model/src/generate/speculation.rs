//! Speculation: guesses the next tokens from the text itself, without a second model. It does not know whether they are
//! right: the batch compares them with the tokens that the sequence chooses.
//!
//! Source: Saxena 2023, "Prompt Lookup Decoding".

use std::ops::AddAssign;

/// The longest n-gram that is looked up.
const LONGEST: usize = 3;

/// The shortest n-gram that is looked up: one token alone says too little about the next.
const SHORTEST: usize = 2;

/// The numbers of proposed tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speculated {
    /// All of them.
    pub n_proposed: usize,
    /// Those with which the text went on.
    pub n_right: usize,
}

impl AddAssign for Speculated {
    fn add_assign(&mut self, other: Self) {
        self.n_proposed += other.n_proposed;
        self.n_right += other.n_right;
    }
}

/// Up to `n` tokens that followed the last earlier occurrence of the n-gram at the end of `tokens`, the longest one that
/// occurred before. Empty if none did.
pub(super) fn proposal(tokens: &[u32], n: usize) -> &[u32] {
    let Some((_, before)) = tokens.split_last() else { return &[] };
    let following = |len: usize| {
        let ngram = &tokens[tokens.len().checked_sub(len)?..];
        let start = before.windows(len).rposition(|window| window == ngram)?;
        Some(&tokens[start + len..])
    };
    let following = (SHORTEST..=LONGEST).rev().find_map(following).unwrap_or_default();
    &following[..n.min(following.len())]
}

#[cfg(test)]
mod tests {
    use super::proposal;

    #[test]
    fn the_tokens_after_the_last_occurrence_are_proposed() {
        assert_eq!(proposal(&[1, 2, 3, 1, 2, 4, 5, 1, 2], 9), [4, 5, 1, 2]);
        assert_eq!(proposal(&[1, 2, 3, 1, 2, 4, 5, 1, 2], 1), [4]);
        assert_eq!(proposal(&[1, 2, 3, 1, 2], 0), [0; 0]);
    }

    #[test]
    fn the_longest_ngram_counts_and_one_token_does_not() {
        assert_eq!(proposal(&[7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 1), [3], "three tokens, though two occurred later");
        assert_eq!(proposal(&[1, 2, 3, 1], 9), [0; 0]);
        for tokens in [&[][..], &[1], &[1, 1], &[1, 2, 3]] {
            assert_eq!(proposal(tokens, 9), [0; 0], "{tokens:?}");
        }
    }

    #[test]
    fn an_occurrence_may_overlap_the_end() {
        assert_eq!(proposal(&[1, 1, 1], 9), [1]);
        assert_eq!(proposal(&[1, 2, 1, 2, 1], 9), [2, 1]);
    }
}
