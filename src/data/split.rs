//! One half of a corpus: the tokens of each of its texts, and how often windows come from each.

use super::Tokens;

/// The tokens of one or several texts. No window crosses from one into another. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Split {
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
struct Part {
    tokens: Tokens,
    share: f64,
    /// Draws of 64 bits below this, and not below the part before, fall on this one.
    until: u128,
}

impl Split {
    /// Texts, each with its weight: a window is drawn from one with the probability of its weight
    /// over the sum of all.
    ///
    /// # Panics
    /// If there are no texts, or a weight is not a finite number above 0.
    #[must_use]
    pub fn new(texts: Vec<(Tokens, f64)>) -> Self {
        let sum: f64 = texts.iter().map(|(_, weight)| weight).sum();
        assert!(
            !texts.is_empty() && texts.iter().all(|(_, weight)| *weight > 0.0) && sum.is_finite(),
            "weights are checked with the config"
        );
        let n = texts.len();
        let mut so_far = 0.0;
        let parts = texts.into_iter().enumerate().map(|(idx, (tokens, weight))| {
            so_far += weight;
            Part {
                tokens,
                share: weight / sum,
                until: if idx + 1 == n { 1 << 64 } else { threshold(so_far / sum) },
            }
        });
        Self { parts: parts.collect() }
    }

    /// Each text.
    #[must_use]
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &Tokens> {
        self.parts.iter().map(|part| &part.tokens)
    }

    /// The share of windows that are drawn from each text; together 1.
    #[must_use]
    pub fn shares(&self) -> impl ExactSizeIterator<Item = f64> {
        self.parts.iter().map(|part| part.share)
    }

    /// How many tokens there are in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts().map(Tokens::len).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts().all(Tokens::is_empty)
    }

    /// How many bytes of text the tokens stand for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.texts().map(Tokens::bytes).sum()
    }

    /// The only text, if there are not several.
    pub(super) fn only(&self) -> Option<&Tokens> {
        match &self.parts[..] {
            [part] => Some(&part.tokens),
            _ => None,
        }
    }

    /// The text on which a draw of 64 random bits falls.
    pub(super) fn drawn(&self, draw: u64) -> &Tokens {
        let part = self.parts.iter().find(|part| u128::from(draw) < part.until);
        &part.expect("the last one takes all that is left").tokens
    }
}

impl From<Tokens> for Split {
    fn from(tokens: Tokens) -> Self {
        Self::new(vec![(tokens, 1.0)])
    }
}

/// A share of all draws of 64 bits.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share is from 0 to 1"
)]
fn threshold(share: f64) -> u128 {
    const ALL: f64 = 18_446_744_073_709_551_616.0; // 2^64
    (share * ALL) as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_fall_as_the_weights_say() {
        let text = |n: u32| Tokens::from_ids(&(0..n).collect::<Vec<_>>(), u64::from(n) * 2);
        let split = Split::new(vec![(text(10), 3.0), (text(1000), 1.0), (text(3), 4.0)]);
        assert_eq!(split.shares().collect::<Vec<_>>(), [0.375, 0.125, 0.5]);
        assert_eq!((split.len(), split.bytes()), (1013, 2026));
        let drawn = |sixteenth: u64| split.drawn((sixteenth << 60) + 1).len();
        let lengths: Vec<usize> = (0..16).map(drawn).collect();
        let expected = [vec![10; 6], vec![1000; 2], vec![3; 8]].concat();
        assert_eq!(lengths, expected);
        assert_eq!(split.drawn(u64::MAX).len(), 3);
        assert!(split.only().is_none());
        assert_eq!(Split::from(text(5)).only().unwrap().len(), 5);
    }

    #[test]
    fn extreme_weights_leave_no_gap() {
        let text = |n: u32| Tokens::from_ids(&vec![0; n as usize], 1);
        for weights in [[1e-300, 1.0], [1.0, 1e-300], [1e150, 1e-150], [0.1, 0.2]] {
            let split = Split::new(vec![(text(1), weights[0]), (text(2), weights[1])]);
            for draw in [0, 1, u64::MAX / 2, u64::MAX] {
                split.drawn(draw);
            }
        }
    }
}
