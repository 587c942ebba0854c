//! Speculation: guesses the next tokens from the sequence itself, without a second model. The batch compares the guesses
//! with the tokens that the sequence chooses.
//!
//! Source: Saxena 2023, "Prompt Lookup Decoding".

use std::ops::AddAssign;

/// The longest n-gram that is looked up.
const LONGEST: usize = 3;

/// The shortest n-gram that is looked up: one token alone predicts too little.
const SHORTEST: usize = 2;

/// Counts of proposed tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speculated {
    /// All proposed tokens.
    pub n_proposed: usize,
    /// The proposed tokens that the sequence chose.
    pub n_right: usize,
}

impl AddAssign for Speculated {
    fn add_assign(&mut self, other: Self) {
        self.n_proposed += other.n_proposed;
        self.n_right += other.n_right;
    }
}

/// Up to `n` tokens that followed the last earlier occurrence of the longest n-gram at the end of `tokens` that occurred
/// before. Empty if none did.
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
    fn tokens_after_last_occurrence_of_longest_ngram_are_proposed() {
        for (tokens, n, expected) in [
            (&[1, 2, 3, 1, 2, 4, 5, 1, 2][..], 9, &[4, 5, 1, 2][..]),
            (&[1, 2, 3, 1, 2, 4, 5, 1, 2], 1, &[4]),
            (&[1, 2, 3, 1, 2], 0, &[]),
            (&[7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 1, &[3]), // three tokens, though two occurred later
            (&[1, 2, 3, 1], 9, &[]),                       // one token is too short
            (&[1, 1, 1], 9, &[1]),                         // the occurrence overlaps the end
            (&[1, 2, 1, 2, 1], 9, &[2, 1]),
            (&[], 9, &[]),
            (&[1], 9, &[]),
            (&[1, 1], 9, &[]),
            (&[1, 2, 3], 9, &[]),
        ] {
            assert_eq!(proposal(tokens, n), expected, "{tokens:?}");
        }
    }
}
