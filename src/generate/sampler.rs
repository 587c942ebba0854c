//! Choosing a token from its logits, on the host.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::ranking::Ranking;
use crate::config::GenerateConfig;

/// Draws tokens as `[generate]` says, from a seed.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: GenerateConfig,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// The sampler of sample `sample_idx`: each has draws of its own, whatever the others do.
    #[must_use]
    pub fn new(config: &GenerateConfig, sample_idx: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        rng.set_stream(sample_idx);
        Self { config: config.clone(), rng }
    }

    /// The next token, from the logits of all tokens and those that the text already has. None if the
    /// logits are not numbers.
    #[must_use]
    pub fn choose(&mut self, logits: &[f32], text: &[u32]) -> Option<u32> {
        let mut ranking = kept(logits, text, &self.config)?;
        let at = self.uniform();
        let mut sum = 0.0;
        // The sum may be left short of 1 by rounding: then the last one is meant.
        let n_passed = ranking.count_while(|probability| {
            sum += probability;
            sum <= at
        });
        ranking.get(n_passed.min(ranking.len() - 1))
    }

    /// A number in `[0, 1)` with 53 random bits.
    #[allow(clippy::cast_precision_loss, reason = "53 bits are what an f64 holds")]
    fn uniform(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The tokens that may come next with their probabilities, which sum to 1, the likeliest first.
///
/// In this order: the repetition penalty and top-k on the logits, the temperature, then top-p and min-p on
/// the probabilities. At temperature 0 only the likeliest token is left. Equal logits are ordered by
/// token, so that the result does not depend on how they were sorted. None if a logit is NaN or infinite.
///
/// Source of top-p: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1; of
/// the penalty: Keskar et al. 2019, "CTRL", section 4.1; of min-p: Nguyen et al. 2024, "Turning Up the Heat".
#[must_use]
pub fn candidates(
    logits: &[f32],
    text: &[u32],
    config: &GenerateConfig,
) -> Option<Vec<(u32, f64)>> {
    kept(logits, text, config).map(Ranking::into_sorted)
}

/// As [`candidates`], in order only as far as was needed to choose them.
fn kept(logits: &[f32], text: &[u32], config: &GenerateConfig) -> Option<Ranking> {
    if logits.is_empty() || logits.iter().any(|logit| !logit.is_finite()) {
        return None;
    }
    let mut scored: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|l| f64::from(*l))).collect();
    if (config.repetition_penalty - 1.0).abs() > f64::EPSILON {
        penalise(&mut scored, text, config.repetition_penalty);
    }
    let mut ranking = Ranking::new(scored);
    if config.temperature <= 0.0 {
        return Some(Ranking::new(vec![(ranking.get(0)?, 1.0)]));
    }
    if config.top_k > 0 {
        ranking.truncate(config.top_k);
    }
    let max = ranking.first();
    ranking.map(|score| ((score - max) / config.temperature).exp());
    ranking.normalise();
    if config.top_p < 1.0 {
        let mut mass = 0.0;
        // The token that crosses the threshold is kept: the mass kept is at least top_p.
        let n_kept = ranking.count_while(|probability| {
            let needed = mass < config.top_p;
            mass += probability;
            needed
        });
        ranking.truncate(n_kept.max(1));
        ranking.normalise();
    }
    if config.min_p > 0.0 {
        let least = ranking.first() * config.min_p;
        let n_kept = ranking.count_while(|probability| probability >= least);
        ranking.truncate(n_kept.max(1)); // the first one always stays
        ranking.normalise();
    }
    Some(ranking)
}

/// Makes every token that the text already has less likely, once, however often it stands there.
fn penalise(scored: &mut [(u32, f64)], text: &[u32], penalty: f64) {
    let mut seen = vec![false; scored.len()];
    for token in text {
        let Some(first) = seen.get_mut(*token as usize).filter(|seen| !**seen) else {
            continue;
        };
        *first = true;
        let logit = &mut scored[*token as usize].1;
        let penalised = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        *logit = penalised.clamp(f64::MIN, f64::MAX); // differences stay numbers, whatever the penalty
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> GenerateConfig {
        GenerateConfig {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            ..GenerateConfig::default()
        }
    }

    fn tokens(candidates: &[(u32, f64)]) -> Vec<u32> {
        candidates.iter().map(|(token, _)| *token).collect()
    }

    #[test]
    fn temperature_zero_takes_the_likeliest() {
        let greedy = GenerateConfig { temperature: 0.0, ..config() };
        let mut sampler = Sampler::new(&greedy, 0);
        assert_eq!(sampler.choose(&[0.0, 3.0, 3.0, -1.0], &[]), Some(1));
    }

    #[test]
    fn the_largest_and_smallest_penalties_leave_probabilities() {
        for (repetition_penalty, logits) in
            [(1e-308, [3.0, -1.0, 0.5]), (1e308, [-3.0, -1.0, -0.5])]
        {
            let config = GenerateConfig { repetition_penalty, ..config() };
            let found = candidates(&logits, &[0, 1, 2], &config).expect("numbers");
            let total: f64 = found.iter().map(|(_, probability)| probability).sum();
            assert!((total - 1.0).abs() < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let mut sampler = Sampler::new(&config(), 0);
        let logits = [0.7_f32.ln(), 0.2_f32.ln(), 0.1_f32.ln()];
        let mut counts = [0_u32; 3];
        for _ in 0..20_000 {
            counts[sampler.choose(&logits, &[]).expect("numbers") as usize] += 1;
        }
        for (count, expected) in counts.into_iter().zip([14_000.0, 4_000.0, 2_000.0]) {
            assert!((f64::from(count) - expected).abs() < 300.0, "{counts:?}");
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_and_samples_differ() {
        let logits = [0.0; 50];
        let draw = |sample_idx| {
            let mut sampler = Sampler::new(&config(), sample_idx);
            (0..20).map(|_| sampler.choose(&logits, &[])).collect::<Vec<_>>()
        };
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
    }

    #[test]
    fn each_filter_keeps_what_it_should() {
        let logits: Vec<f32> = [0.5_f32, 0.25, 0.15, 0.1].iter().map(|p| p.ln()).collect();
        let kept =
            |config: GenerateConfig| tokens(&candidates(&logits, &[], &config).expect("numbers"));
        assert_eq!(kept(GenerateConfig { top_k: 2, ..config() }), [0, 1]);
        assert_eq!(kept(GenerateConfig { top_p: 0.7, ..config() }), [0, 1]);
        assert_eq!(kept(GenerateConfig { top_p: 0.76, ..config() }), [0, 1, 2]);
        assert_eq!(kept(GenerateConfig { min_p: 0.25, ..config() }), [0, 1, 2]);
        assert_eq!(kept(GenerateConfig { top_p: 1e-9, ..config() }), [0]);
    }

    #[test]
    fn the_penalty_hits_used_tokens_once_on_either_side_of_zero() {
        let penalised = GenerateConfig { repetition_penalty: 2.0, ..config() };
        let probability = |text: &[u32], token: u32| {
            let all = candidates(&[2.0, -2.0, 0.5], text, &penalised).expect("numbers");
            all.into_iter().find(|(t, _)| *t == token).expect("kept").1
        };
        assert!(probability(&[0], 0) < probability(&[], 0));
        assert!(probability(&[1], 1) < probability(&[], 1));
        assert!((probability(&[0, 0, 0], 0) - probability(&[0], 0)).abs() < 1e-12);
    }

    #[test]
    fn logits_that_are_not_numbers_give_nothing() {
        assert_eq!(candidates(&[0.0, f32::NAN], &[], &config()), None);
        assert_eq!(candidates(&[0.0, f32::INFINITY], &[], &config()), None);
    }

    /// What [`Sampler::choose`] is to do: go through all candidates, the likeliest first.
    fn walk(candidates: &[(u32, f64)], mut at: f64) -> u32 {
        for (token, probability) in candidates {
            at -= probability;
            if at < 0.0 {
                return *token;
            }
        }
        candidates.last().expect("at least one").0
    }

    proptest! {
        #[test]
        fn choices_are_draws_from_the_candidates(
            logits in prop::collection::vec(-9.0_f32..9.0, 1..600),
            top_k in 0..40_usize,
            top_p in 0.5_f64..1.3,
            min_p in -0.01_f64..0.02,
            seed in any::<u64>(),
        ) {
            let (top_p, min_p) = (top_p.min(1.0), min_p.max(0.0));
            let config = GenerateConfig { top_k, top_p, min_p, seed, ..config() };
            let candidates = candidates(&logits, &[], &config).expect("numbers");
            prop_assert!(candidates.is_sorted_by(|a, b| a.1 > b.1 || (a.1 >= b.1 && a.0 < b.0)));
            let mut sampler = Sampler::new(&config, 3);
            let mut draws = sampler.clone();
            for _ in 0..5 {
                let want = walk(&candidates, draws.uniform());
                prop_assert_eq!(sampler.choose(&logits, &[]), Some(want));
            }
        }

        #[test]
        fn kept_probabilities_sum_to_one_and_top_p_keeps_its_mass(
            logits in prop::collection::vec(-20.0_f32..20.0, 1..60),
            top_p in 0.01_f64..1.0,
            temperature in 0.1_f64..3.0,
        ) {
            let all = GenerateConfig { temperature, ..config() };
            let full = candidates(&logits, &[], &all).expect("numbers");
            let kept = candidates(&logits, &[], &GenerateConfig { top_p, ..all }).expect("numbers");
            prop_assert!((kept.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert_eq!(tokens(&kept), tokens(&full[..kept.len()]));
            let mass = |n: usize| full[..n].iter().map(|(_, p)| p).sum::<f64>();
            prop_assert!(mass(kept.len()) >= top_p - 1e-9);
            prop_assert!(mass(kept.len() - 1) < top_p, "one token less would have been enough");
        }
    }
}
