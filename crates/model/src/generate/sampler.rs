//! Sampling on the host: chooses the next token from the logits.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::guide::{Guide, Mask};
use crate::config::GenerateConfig;
use crate::tokenizer::Tokenizer;

/// Chooses the next token of a sequence.
pub trait ChooseToken: Debug + Send {
    /// The next token, given the logits of the whole vocabulary and the tokens so far. `None` if a logit is not finite.
    fn choose(&mut self, logits: &[f32], tokens: &[u32]) -> Option<u32>;

    /// Whether the sequence ends with the tokens chosen so far.
    fn is_complete(&self) -> bool {
        false
    }
}

/// Samples tokens with the settings of `[generate]`, from a seed.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: GenerateConfig,
    rng: ChaCha8Rng,
    /// Tokens that are never sampled, in ascending order.
    barred: Arc<[u32]>,
    /// The tokens that end the sequence, in ascending order: barred below `min_new_tokens`.
    ends: Arc<[u32]>,
    /// The number of tokens of the prompt.
    n_prompt: usize,
    /// Added to the logits of tokens.
    bias: Arc<[(u32, f32)]>,
    /// Allows the next tokens; `None` if all are.
    guide: Option<Guide>,
}

impl Sampler {
    /// The sampler of sample `sample_idx`. Its draws do not depend on the other samples.
    pub fn new(config: &GenerateConfig, sample_idx: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        rng.set_stream(sample_idx);
        Self {
            config: config.clone(),
            rng,
            barred: Arc::default(),
            ends: Arc::default(),
            n_prompt: 0,
            bias: Arc::default(),
            guide: None,
        }
    }

    /// The sampler of a sequence with a prompt of `n_prompt` tokens.
    pub fn of_sequence(tokenizer: &Tokenizer, config: &GenerateConfig, n_prompt: usize, sample_idx: u64) -> Self {
        let ends = config.ends(tokenizer);
        Self { ends, n_prompt, ..Self::new(config, sample_idx).without(tokenizer.gaps()) }
    }

    /// Bars these tokens, given in ascending order, from being sampled.
    #[must_use]
    pub fn without(self, barred: Arc<[u32]>) -> Self {
        Self { barred, ..self }
    }

    /// Adds a bias to the logits of these tokens.
    #[must_use]
    pub fn with_bias(self, bias: Arc<[(u32, f32)]>) -> Self {
        Self { bias, ..self }
    }

    /// Samples only tokens that the guide allows.
    #[must_use]
    pub fn with_guide(self, guide: Option<Guide>) -> Self {
        Self { guide, ..self }
    }

    /// A number in `[0, 1)` with 53 random bits.
    fn uniform(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl ChooseToken for Sampler {
    fn choose(&mut self, logits: &[f32], tokens: &[u32]) -> Option<u32> {
        let mut logits = Cow::Borrowed(logits);
        for (token, bias) in &*self.bias {
            if let Some(logit) = logits.to_mut().get_mut(*token as usize) {
                *logit += bias;
            }
        }
        let generated = tokens.get(self.n_prompt..).unwrap_or_default();
        let (presence, frequency) = (self.config.presence_penalty, self.config.frequency_penalty);
        if (presence, frequency) != (0.0, 0.0) {
            penalise_generated(logits.to_mut(), generated, presence, frequency);
        }
        let mut barred = Cow::Borrowed(&*self.barred);
        if generated.len() < self.config.min_new_tokens && !self.ends.is_empty() {
            barred.to_mut().extend(&*self.ends);
            barred.to_mut().sort_unstable();
        }
        let allowed = self.guide.as_mut().map(|guide| guide.allowed(&self.ends));
        let mut ranking = candidates(&logits, tokens, &self.config, &barred, allowed.as_ref())?;
        let at = self.uniform();
        let mut sum = 0.0;
        // Rounding may leave the sum of all probabilities below 1; then the last candidate is drawn.
        let n_passed = ranking.count_while(|probability| {
            sum += probability;
            sum <= at
        });
        let token = ranking.get(n_passed.min(ranking.len() - 1))?;
        if let Some(guide) = &mut self.guide {
            guide.advance(token);
        }
        Some(token)
    }

    fn is_complete(&self) -> bool {
        self.guide.as_ref().is_some_and(Guide::is_complete)
    }
}

/// Subtracts the presence and the frequency penalty from the logits of the tokens generated so far, as OpenAI's API
/// defines them.
fn penalise_generated(logits: &mut [f32], generated: &[u32], presence: f64, frequency: f64) {
    let mut counts = BTreeMap::<u32, u32>::new();
    for token in generated {
        *counts.entry(*token).or_default() += 1;
    }
    for (token, count) in counts {
        if let Some(logit) = logits.get_mut(token as usize) {
            #[allow(clippy::cast_possible_truncation, reason = "logits are f32")]
            let penalty = (presence + frequency * f64::from(count)) as f32;
            *logit -= penalty;
        }
    }
}

/// The candidates for the next token with their probabilities, most likely first, without barred tokens and tokens that
/// the guide does not allow. `None` if no candidate is left, or a logit is not finite.
///
/// The repetition penalty and top-k are applied to the logits, then temperature, top-p and min-p follow. Temperature 0
/// is greedy.
///
/// Top-p is from Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1; the repetition
/// penalty from Keskar et al. 2019, "CTRL", section 4.1; min-p from Nguyen et al. 2024, "Turning Up the Heat".
fn candidates(
    logits: &[f32],
    tokens: &[u32],
    config: &GenerateConfig,
    barred: &[u32],
    allowed: Option<&Mask>,
) -> Option<Ranking> {
    if logits.iter().any(|logit| !logit.is_finite()) {
        return None;
    }
    let is_penalised = (config.repetition_penalty - 1.0).abs() > f64::EPSILON;
    let n_kept = if config.temperature <= 0.0 { 1 } else { config.top_k };
    let floor = match is_penalised || n_kept == 0 || allowed.is_some() {
        true => f32::MIN,
        // One more than top-k and the barred tokens need, so that the cut is the same as among all tokens.
        false => floor_of_highest(logits, n_kept.saturating_add(barred.len() + 1)),
    };
    let high = (0..).zip(logits).filter(|(_, logit)| **logit >= floor);
    let mut scored: Vec<(u32, f64)> = high.map(|(token, logit)| (token, f64::from(*logit))).collect();
    if is_penalised {
        penalise(&mut scored, tokens, config.repetition_penalty);
    }
    if let Some(allowed) = allowed {
        scored.retain(|(token, _)| allowed.has(*token));
    }
    if !barred.is_empty() {
        scored.retain(|(token, _)| barred.binary_search(token).is_err());
    }
    if scored.is_empty() {
        return None;
    }
    let mut ranking = Ranking::new(scored);
    if config.temperature <= 0.0 {
        return Some(Ranking::new(vec![(ranking.get(0)?, 1.0)]));
    }
    if config.top_k > 0 {
        ranking.truncate(config.top_k);
    }
    let max = ranking.first();
    ranking.map(|score| libm::exp((score - max) / config.temperature));
    ranking.normalise();
    if config.top_p < 1.0 {
        let mut mass = 0.0;
        // The token that crosses the threshold is kept, so the mass kept is at least top_p.
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
        ranking.truncate(n_kept.max(1)); // at least one stays
        ranking.normalise();
    }
    Some(ranking)
}

/// The number of logits per stretch; [`floor_of_highest`] considers only the largest of each stretch.
const STRETCH: usize = 64;

/// A threshold that the `n` highest logits and few others reach. It is found in one pass, from the largest logit of each
/// stretch.
fn floor_of_highest(logits: &[f32], n: usize) -> f32 {
    let largest = |stretch: &[f32]| stretch.iter().fold(f32::MIN, |largest, x| if *x > largest { *x } else { largest });
    let mut largest: Vec<f32> = logits.chunks(STRETCH).map(largest).collect();
    if n > largest.len() {
        return f32::MIN;
    }
    *largest.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1
}

/// Applies the repetition penalty to each token that occurs in the sequence, once, however often it occurs.
fn penalise(scored: &mut [(u32, f64)], tokens: &[u32], penalty: f64) {
    let mut seen = vec![false; scored.len()];
    for token in tokens {
        if let Some(seen) = seen.get_mut(*token as usize).filter(|seen| !**seen) {
            *seen = true;
            let logit = &mut scored[*token as usize].1;
            let penalised = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            *logit = penalised.clamp(f64::MIN, f64::MAX); // so that differences stay finite for any penalty
        }
    }
}

/// The number of tokens sorted at first; it grows fourfold each time more are needed.
const SORTED_FIRST: usize = 64;

/// Tokens with their scores, highest first, sorted only as far as they are read: drawing from 50,257 tokens takes 1.0
/// ms instead of 1.8 ms. Equal scores are ordered by token.
#[derive(Clone, Debug)]
struct Ranking {
    scored: Vec<(u32, f64)>,
    /// The length of the sorted prefix.
    n_sorted: usize,
}

impl Ranking {
    fn new(scored: Vec<(u32, f64)>) -> Self {
        Self { scored, n_sorted: 0 }
    }

    fn len(&self) -> usize {
        self.scored.len()
    }

    /// The token at `rank`, where 0 is the highest score.
    fn get(&mut self, rank: usize) -> Option<u32> {
        self.sort(rank + 1);
        self.scored.get(rank).map(|(token, _)| *token)
    }

    fn first(&mut self) -> f64 {
        self.sort(1);
        self.scored[0].1
    }

    fn truncate(&mut self, n: usize) {
        if n < self.len() {
            self.sort(n);
            self.scored.truncate(n);
            self.n_sorted = self.n_sorted.min(n);
        }
    }

    /// Applies an increasing function to every score.
    fn map(&mut self, f: impl Fn(f64) -> f64) {
        self.scored.iter_mut().for_each(|(_, score)| *score = f(*score));
        self.n_sorted = 0; // different scores may have become equal, and are then ordered by token
    }

    fn normalise(&mut self) {
        let sum: f64 = self.scored.iter().map(|(_, score)| score).sum();
        self.map(|score| score / sum);
    }

    /// The number of leading scores, from the highest down, that pass the test before one fails.
    fn count_while(&mut self, mut test: impl FnMut(f64) -> bool) -> usize {
        let mut n = 0;
        while n < self.len() {
            if n == self.n_sorted {
                self.sort((4 * n).max(SORTED_FIRST));
            }
            if !test(self.scored[n].1) {
                break;
            }
            n += 1;
        }
        n
    }

    #[cfg(test)]
    fn into_sorted(mut self) -> Vec<(u32, f64)> {
        self.sort(self.len());
        self.scored
    }

    /// Sorts at least the `n` highest scores.
    fn sort(&mut self, n: usize) {
        let n = n.min(self.len());
        if n <= self.n_sorted {
            return;
        }
        let rest = &mut self.scored[self.n_sorted..];
        let wanted = n - self.n_sorted;
        if wanted < rest.len() {
            rest.select_nth_unstable_by(wanted, highest_first);
        }
        rest[..wanted].sort_unstable_by(highest_first);
        self.n_sorted = n;
    }
}

fn highest_first(a: &(u32, f64), b: &(u32, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    fn config() -> GenerateConfig {
        GenerateConfig { temperature: 1.0, ..GenerateConfig::default() }
    }

    fn sorted(logits: &[f32], text: &[u32], config: &GenerateConfig) -> Vec<(u32, f64)> {
        candidates(logits, text, config, &[], None).expect("the logits are finite").into_sorted()
    }

    fn tokens(candidates: &[(u32, f64)]) -> Vec<u32> {
        candidates.iter().map(|(token, _)| *token).collect()
    }

    fn mass(candidates: &[(u32, f64)]) -> f64 {
        candidates.iter().map(|(_, probability)| probability).sum()
    }

    #[test]
    fn top_k_equals_full_sort() {
        // Many logits are equal, also adjacent ones.
        let logits: Vec<f32> = (0..5000_u32).map(|i| (i / 7 * 7919 % 97) as f32 / 10.0 - 4.0).collect();
        let barred = [3, 4, 70, 71];
        let mut all: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|logit| f64::from(*logit))).collect();
        all.retain(|(token, _)| !barred.contains(token));
        all.sort_by(highest_first);
        for top_k in [1, 2, 5, 40, 70, 74, 77, 78, 79, 300, 4995, 4996, 5000, 9000] {
            let config = GenerateConfig { top_k, ..config() };
            let found = candidates(&logits, &[], &config, &barred, None).expect("the logits are finite").into_sorted();
            assert_eq!(tokens(&found), tokens(&all[..top_k.min(all.len())]), "{top_k}");
        }
    }

    #[test]
    fn extreme_penalties_leave_probabilities() {
        for (repetition_penalty, logits) in [(1e-308, [3.0, -1.0, 0.5]), (1e308, [-3.0, -1.0, -0.5])] {
            let found = sorted(&logits, &[0, 1, 2], &GenerateConfig { repetition_penalty, ..config() });
            assert!((mass(&found) - 1.0).abs() < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn draws_follow_probabilities() {
        let mut sampler = Sampler::new(&config(), 0);
        let logits = [0.7_f32.ln(), 0.2_f32.ln(), 0.1_f32.ln()];
        let mut counts = [0_u32; 3];
        for _ in 0..20_000 {
            counts[sampler.choose(&logits, &[]).expect("the logits are finite") as usize] += 1;
        }
        for (count, expected) in counts.into_iter().zip([14_000.0, 4_000.0, 2_000.0]) {
            assert!((f64::from(count) - expected).abs() < 300.0, "{counts:?}");
        }
    }

    #[test]
    fn filters_keep_expected_tokens() {
        let logits = [0.5_f32, 0.25, 0.15, 0.1].map(f32::ln);
        for (filter, kept) in [
            (GenerateConfig { top_k: 2, ..config() }, &[0, 1][..]),
            (GenerateConfig { top_p: 0.7, ..config() }, &[0, 1]),
            (GenerateConfig { top_p: 0.76, ..config() }, &[0, 1, 2]),
            (GenerateConfig { min_p: 0.25, ..config() }, &[0, 1, 2]),
            (GenerateConfig { top_p: 0.0, ..config() }, &[0]),
        ] {
            assert_eq!(tokens(&sorted(&logits, &[], &filter)), kept, "{filter:?}");
        }
        for logit in [f32::NAN, f32::INFINITY] {
            assert!(candidates(&[0.0, logit], &[], &config(), &[], None).is_none());
        }
    }

    #[test]
    fn barred_tokens_are_never_sampled() {
        let sampler = |temperature| Sampler::new(&GenerateConfig { temperature, ..config() }, 0).without([1, 3].into());
        assert_eq!(sampler(0.0).choose(&[0.0, 9.0, 1.0, 9.0], &[]), Some(2));
        let mut draws = sampler(1.0);
        let tokens: BTreeSet<_> = (0..100).map(|_| draws.choose(&[0.0; 5], &[])).collect();
        assert_eq!(tokens, [0, 2, 4].map(Some).into());
        assert_eq!(sampler(1.0).without([0].into()).choose(&[1.0], &[]), None);
    }

    #[test]
    fn presence_and_frequency_penalties_count_generated_tokens() {
        let likeliest = |presence_penalty, frequency_penalty, tokens: &[u32]| {
            let config = GenerateConfig { temperature: 0.0, presence_penalty, frequency_penalty, ..config() };
            let mut sampler = Sampler { n_prompt: 1, ..Sampler::new(&config, 0) };
            sampler.choose(&[2.0, 1.0, 0.0], tokens)
        };
        assert_eq!(likeliest(2.0, 2.0, &[0]), Some(0), "the prompt does not count");
        assert_eq!(likeliest(0.9, 0.0, &[9, 0, 0, 0]), Some(0));
        assert_eq!(likeliest(1.1, 0.0, &[9, 0]), Some(1));
        assert_eq!(likeliest(0.0, 0.6, &[9, 0]), Some(0));
        assert_eq!(likeliest(0.0, 0.6, &[9, 0, 0]), Some(1));
        assert_eq!(likeliest(-1.0, -0.3, &[9, 2, 2, 2, 2]), Some(2), "or rewarded");
    }

    #[test]
    fn sequences_do_not_end_before_min_new_tokens() {
        let tokenizer =
            Tokenizer::char_from_alphabet("abcd".chars()).expect("the alphabet is valid").with_end_of_text();
        let config = GenerateConfig { temperature: 0.0, min_new_tokens: 2, stop_token_ids: vec![1], ..config() };
        let mut sampler = Sampler::of_sequence(&tokenizer, &config, 1, 0);
        let logits = [0.0, 8.0, 1.0, 0.0, 9.0]; // the second and the fifth token end the sequence
        assert_eq!(sampler.choose(&logits, &[0]), Some(2));
        assert_eq!(sampler.choose(&logits, &[0, 2]), Some(2));
        assert_eq!(sampler.choose(&logits, &[0, 2, 2]), Some(4));
    }

    #[test]
    fn repetition_penalty_applies_once_on_either_side_of_zero() {
        let penalised = GenerateConfig { repetition_penalty: 2.0, ..config() };
        let probability = |text: &[u32], token: u32| {
            let all = sorted(&[2.0, -2.0, 0.5], text, &penalised);
            all.into_iter().find(|(t, _)| *t == token).expect("every token is kept").1
        };
        assert!(probability(&[0], 0) < probability(&[], 0));
        assert!(probability(&[1], 1) < probability(&[], 1));
        assert!((probability(&[0, 0, 0], 0) - probability(&[0], 0)).abs() < 1e-12);
    }

    /// The reference for [`Sampler::choose`]: subtracts the probabilities in order, most likely first.
    fn walk(candidates: &[(u32, f64)], mut at: f64) -> u32 {
        for (token, probability) in candidates {
            at -= probability;
            if at < 0.0 {
                return *token;
            }
        }
        candidates.last().expect("there is at least one candidate").0
    }

    proptest! {
        #[test]
        fn choices_are_draws_from_candidates(
            logits in prop::collection::vec(-9.0_f32..9.0, 1..600),
            top_k in 0..40_usize,
            top_p in 0.5_f64..1.3,
            min_p in -0.01_f64..0.02,
            seed in any::<u64>(),
        ) {
            let (top_p, min_p) = (top_p.min(1.0), min_p.max(0.0));
            let config = GenerateConfig { top_k, top_p, min_p, seed, ..config() };
            let candidates = sorted(&logits, &[], &config);
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
            let full = sorted(&logits, &[], &all);
            let kept = sorted(&logits, &[], &GenerateConfig { top_p, ..all });
            prop_assert!((mass(&kept) - 1.0).abs() < 1e-9);
            prop_assert_eq!(tokens(&kept), tokens(&full[..kept.len()]));
            prop_assert!(mass(&full[..kept.len()]) >= top_p - 1e-9);
            prop_assert!(mass(&full[..kept.len() - 1]) < top_p, "one token fewer would have been enough");
        }
    }
}
