//! Draws every random choice of the corpus and remembers how likely each one was.
//!
//! It knows weights and positions in the text; it does not know what is being chosen. The record is
//! what the entropy floor is made of, so nothing else in this program may touch a random number.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// One choice that was made: where the text stood, and the chance of the option that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Offset in the text, in characters, at which the choice was made.
    pub at: usize,
    /// Weight of the option that was taken.
    pub weight: u64,
    /// Sum of the weights of all options that could have been taken.
    pub total: u64,
}

impl Choice {
    /// The information in this choice, in bits: `-log2(weight / total)`.
    #[allow(clippy::cast_precision_loss)] // Weights are far below 2^52.
    pub fn bits(self) -> f64 {
        (self.total as f64 / self.weight as f64).log2()
    }
}

/// A seeded source of weighted choices that keeps its own record.
pub struct Chooser {
    rng: ChaCha8Rng,
    choices: Vec<Choice>,
}

impl Chooser {
    /// Starts from a fixed seed; the same seed gives the same choices on every platform.
    pub fn new(seed: [u8; 32]) -> Self {
        Self { rng: ChaCha8Rng::from_seed(seed), choices: Vec::new() }
    }

    /// Takes one option with probability proportional to its weight, and returns its index.
    ///
    /// An option of weight 0 is never taken. Where only one option is left, nothing is drawn and
    /// nothing is recorded, because a choice without an alternative carries no information.
    ///
    /// # Panics
    /// If every weight is 0.
    pub fn weighted(&mut self, weights: &[u64], at: usize) -> usize {
        let total: u64 = weights.iter().sum();
        assert!(total > 0, "a choice needs at least one option with a weight");
        if let Some(only) = weights.iter().position(|&weight| weight == total) {
            return only;
        }
        let mut ticket = self.ticket(total);
        for (index, &weight) in weights.iter().enumerate() {
            if ticket < weight {
                self.choices.push(Choice { at, weight, total });
                return index;
            }
            ticket -= weight;
        }
        unreachable!("the ticket is below the sum of the weights")
    }

    /// Takes one of `n` equally likely options.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn uniform(&mut self, n: u64, at: usize) -> u64 {
        assert!(n > 0, "a choice needs at least one option");
        if n == 1 {
            return 0;
        }
        let taken = self.ticket(n);
        self.choices.push(Choice { at, weight: 1, total: n });
        taken
    }

    /// Every choice so far, in the order in which it was made.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// A number in `0..n`, by multiplying instead of by remainder: the bias is below `n / 2^64`.
    fn ticket(&mut self, n: u64) -> u64 {
        let wide = u128::from(self.rng.next_u64()) * u128::from(n);
        u64::try_from(wide >> 64).expect("the high half of a 128-bit product fits 64 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_weighs_what_its_chance_says() {
        assert!((Choice { at: 0, weight: 1, total: 8 }.bits() - 3.0).abs() < 1e-12);
        assert!((Choice { at: 0, weight: 3, total: 4 }.bits() - 0.415_037).abs() < 1e-6);
    }

    #[test]
    fn options_come_as_often_as_their_weights_say() {
        let mut chooser = Chooser::new([1; 32]);
        let mut counts = [0_u32; 3];
        for _ in 0..40_000 {
            counts[chooser.weighted(&[1, 0, 3], 0)] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((9_700..10_300).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn a_choice_without_an_alternative_is_free() {
        let mut chooser = Chooser::new([1; 32]);
        assert_eq!(chooser.weighted(&[0, 5, 0], 7), 1);
        assert_eq!(chooser.uniform(1, 7), 0);
        assert!(chooser.choices().is_empty());
        chooser.uniform(4, 7);
        assert_eq!(chooser.choices(), [Choice { at: 7, weight: 1, total: 4 }]);
    }
}
