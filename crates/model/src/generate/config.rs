//! `[generate]`: the settings of generation.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::section::{BrokenRules, Problems};
use crate::tokenizer::Tokenizer;

crate::sections! {
    /// `[generate]`: the defaults of `tinderbox generate`, whose arguments take precedence.
    pub struct GenerateConfig {
        /// The maximum number of tokens generated after the prompt. At least 1.
        pub max_new_tokens: usize = 500,
        /// The number of samples. At least 1.
        pub num_samples: usize = 1,
        /// Divides the logits: below 1 is safer, above 1 more random, 0 always takes the most likely token.
        pub temperature: f64 = 0.8,
        /// Samples only from this many of the most likely tokens; 0: off.
        pub top_k: usize = 0,
        /// Samples only from the most likely tokens that together have this probability; 1: off, 0: only
        /// the most likely one. In [0, 1].
        pub top_p: f64 = 1.0,
        /// Samples only tokens with at least this fraction of the most likely token's probability; 0: off. In [0, 1].
        pub min_p: f64 = 0.0,
        /// Makes tokens that already occur in the sequence less likely; 1: off. Above 0.
        pub repetition_penalty: f64 = 1.0,
        /// Subtracted once from the logit of each token generated before; 0: off. In [-2, 2].
        pub presence_penalty: f64 = 0.0,
        /// Subtracted from the logit of a token for each time it was generated before; 0: off. In [-2, 2].
        pub frequency_penalty: f64 = 0.0,
        /// Strings before which generation stops, such as `["\n\n"]`; none may be empty.
        pub stop: Vec<String> = Vec::new(),
        /// Ids of tokens that end generation, besides the tokenizer's end-of-text token.
        pub stop_token_ids: Vec<u32> = Vec::new(),
        /// The number of tokens to generate before a token may end the sequence.
        pub min_new_tokens: usize = 0,
        /// The maximum number of tokens proposed at once from the sequence's own repetitions and checked in one pass, on a
        /// CPU. The output stays the same. 0: off.
        pub speculate: usize = 0,
        /// The seed of sampling: the same seed generates the same completion. Below 2^63.
        pub seed: u64 = 1337,
    }
}

impl GenerateConfig {
    /// The tokens that end a sequence, in ascending order: the tokenizer's end-of-text token and `stop_token_ids`.
    pub fn ends(&self, tokenizer: &Tokenizer) -> Arc<[u32]> {
        let ends = tokenizer.end_of_text().into_iter().chain(self.stop_token_ids.iter().copied());
        ends.collect::<BTreeSet<u32>>().into_iter().collect()
    }

    /// Checks the rules again, after arguments have replaced keys.
    ///
    /// # Errors
    /// If any rule is broken; all broken rules are in one error.
    pub fn check(&self) -> Result<(), BrokenRules> {
        let mut problems = Problems::default();
        self.check_into(&mut problems);
        if problems.0.is_empty() { Ok(()) } else { Err(BrokenRules(problems.0)) }
    }

    /// Checks the rules of this section.
    pub fn check_into(&self, problems: &mut Problems) {
        let Self {
            max_new_tokens,
            num_samples,
            temperature,
            top_k: _, // beyond the vocabulary it keeps all tokens
            top_p,
            min_p,
            repetition_penalty: penalty,
            presence_penalty,
            frequency_penalty,
            stop,
            stop_token_ids: _, // an id beyond the vocabulary is never sampled
            min_new_tokens: _,
            speculate: _, // proposals end with the context
            seed,
        } = self;
        problems.at_least_one("generate.max_new_tokens", *max_new_tokens);
        problems.at_least_one("generate.num_samples", *num_samples);
        problems.not_negative("generate.temperature", *temperature);
        let rule = "be at least 0 and at most 1 (1 turns it off)";
        problems.must((0.0..=1.0).contains(top_p), "generate.top_p", top_p, rule);
        let rule = "be at least 0 and at most 1 (0 turns it off)";
        problems.must((0.0..=1.0).contains(min_p), "generate.min_p", min_p, rule);
        let rule = "be a finite number above 0 (1 turns it off)";
        problems.must(penalty.is_finite() && *penalty > 0.0, "generate.repetition_penalty", penalty, rule);
        for (key, penalty) in [("presence_penalty", presence_penalty), ("frequency_penalty", frequency_penalty)] {
            let rule = "be at least -2 and at most 2 (0 turns it off)";
            problems.must((-2.0..=2.0).contains(penalty), &format!("generate.{key}"), penalty, rule);
        }
        let rule = "not contain an empty string, which would stop generation at once";
        problems.must(!stop.iter().any(String::is_empty), "generate.stop", format!("{stop:?}"), rule);
        problems.seed("generate.seed", *seed);
    }
}
