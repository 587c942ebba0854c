//! Chooses the model size and run length from the text, the available time, and the speed of a step.

use super::profile::TextProfile;
use super::token_choice::TokenChoice;
use super::{AutoconfigError, Request, prompt};
use crate::config::{
    Config, DataConfig, MlpKind, ModelConfig, NormKind, OptimizerKind, PositionKind, PrecisionChoice, ScheduleKind,
    TokenizerKind,
};
use tinderbox_model::measure::Times;

/// The sizes to choose from, each about two to four times the previous: `n_layers, d_model, n_heads`.
const SIZES: [(usize, usize, usize); 9] = [
    (2, 32, 1),
    (2, 64, 2),
    (3, 96, 3),
    (4, 128, 4), // the quick start's
    (5, 192, 6),
    (6, 256, 8),
    (6, 384, 6), // nanoGPT's on a GPU
    (8, 512, 8),
    (12, 768, 12), // GPT-2 small
];

/// The first size measured on a CPU: the quick start's.
const FIRST_ON_CPU: usize = 3;

/// The first size measured on a GPU: large enough to keep it busy.
const FIRST_ON_GPU: usize = 6;

/// The most parameters in the blocks per token of the training split; a larger model memorizes the text.
const PARAMETERS_PER_TOKEN: f64 = 12.0;

/// The fewest tokens read per parameter in the blocks; with fewer, a smaller model learns more in the same time.
const TOKENS_READ_PER_PARAMETER: f64 = 12.0;

/// The most passes through the text; the validation loss starts to rise earlier.
const MAX_EPOCHS: f64 = 40.0;

/// The fewest steps of a run on a short text: with fewer, warm-up would not end.
const MIN_STEPS_OF_SHORT_TEXTS: f64 = 300.0;

const MIN_STEPS: usize = 10;

/// Runs longer than this many steps get larger batches instead.
const STEPS_BEFORE_LARGER_BATCHES: f64 = 6000.0;

/// The fewest and the most tokens of a batch. The minimum is the quick start's.
const BATCH_TOKENS: (f64, f64) = (1536.0, 65_536.0);

/// The share of the time spent on steps; evaluations, samples and checkpoints take the rest.
const SHARE_OF_STEPS: f64 = 0.9;

const EVALUATIONS: usize = 8;

pub(super) const LONGEST_CONTEXT: usize = 512;

/// The most passes of a run for which dropout is too slow: just too few for it.
const EPOCHS_BEFORE_DROPOUT: f64 = 7.9;

/// The most sizes to measure, unless they read too few tokens.
const MAX_SIZES: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Speed {
    /// The measured step times.
    pub step: Times,
    pub n_parameters: usize,
}

/// A config and the numbers that it is based on.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub config: Config,
    pub speed: Speed,
    /// Estimated tokens of the two splits.
    pub train_tokens: f64,
    pub val_tokens: f64,
    /// Passes through the training split.
    pub epochs: f64,
    /// Whether the text rather than the time limits the steps.
    pub text_ends_first: bool,
    /// Whether the text rather than the time limits the model size.
    pub text_limits_model: bool,
    /// Whether the time is enough for [`TOKENS_READ_PER_PARAMETER`], or no model is smaller.
    reads_enough: bool,
}

/// Everything known before the first measurement.
pub(super) struct Known<'a> {
    pub request: &'a Request,
    /// The settings for reading the text.
    pub data: &'a DataConfig,
    pub profile: &'a TextProfile,
    pub token_choice: &'a TokenChoice,
    /// Estimated tokens of the whole text.
    pub n_tokens: u64,
    pub is_gpu: bool,
}

impl Known<'_> {
    /// Chooses by the speed that `measure` returns for a config.
    pub fn choose(
        &self,
        mut measure: impl FnMut(&Config) -> Result<Speed, AutoconfigError>,
    ) -> Result<Choice, AutoconfigError> {
        let mut most = self.largest_for_text();
        let first = if self.is_gpu { FIRST_ON_GPU } else { FIRST_ON_CPU };
        let mut size_idx = first.min(most);
        let mut tokens_per_s = None;
        let mut found: Option<(usize, Choice)> = None;
        let mut n_tried = 0;
        loop {
            let config = self.config(size_idx, tokens_per_s);
            let speed = measure(&config)?;
            let choice = self.with_dropout(size_idx, &config, speed, &mut measure)?;
            let measured = tokens_of_batch(&config) / speed.step.fastest_ms * 1e3;
            n_tried += 1;
            let is_last = choice.reads_enough && n_tried >= MAX_SIZES;
            match choice.reads_enough {
                true => found = Some((size_idx, choice)),
                false => most = size_idx - 1, // the smallest model always does
            }
            let best = self.largest_for_time(most, size_idx, measured);
            if let Some((size_idx, choice)) = found.take_if(|(found, _)| best <= *found || is_last) {
                return Ok(Choice { text_limits_model: size_idx == self.largest_for_text(), ..choice });
            }
            tokens_per_s = Some(measured * in_blocks_of(size_idx) / in_blocks_of(best));
            size_idx = best;
        }
    }

    /// The choice for a size, given the `speed` of its steps without dropout. Dropout takes time, too, so they are measured
    /// again; if they are too slow for as many passes as dropout is for, the run has fewer passes and no dropout.
    fn with_dropout(
        &self,
        size_idx: usize,
        config: &Config,
        speed: Speed,
        measure: &mut impl FnMut(&Config) -> Result<Speed, AutoconfigError>,
    ) -> Result<Choice, AutoconfigError> {
        let plain = self.complete(size_idx, config.clone(), speed, MAX_EPOCHS);
        let mut dropped = config.clone();
        dropped.model.dropout = plain.dropout();
        if dropped.model.dropout == 0.0 || !plain.reads_enough {
            return Ok(plain);
        }
        let slower = measure(&dropped)?;
        let mut with = self.complete(size_idx, dropped, slower, MAX_EPOCHS);
        with.config.model.dropout = with.dropout();
        if with.config.model.dropout == 0.0 {
            return Ok(self.complete(size_idx, config.clone(), speed, EPOCHS_BEFORE_DROPOUT));
        }
        Ok(with)
    }

    /// The largest model for which the text is long enough.
    fn largest_for_text(&self) -> usize {
        let enough = self.train_tokens() * PARAMETERS_PER_TOKEN;
        (0..SIZES.len()).rev().find(|size_idx| in_blocks_of(*size_idx) <= enough).unwrap_or(0)
    }

    /// The largest model, up to `most`, that reads enough tokens in the time, given the `tokens_per_s` of the measured
    /// one.
    fn largest_for_time(&self, most: usize, measured_idx: usize, tokens_per_s: f64) -> usize {
        let work_per_s = tokens_per_s * in_blocks_of(measured_idx);
        let fits = |&size_idx: &usize| {
            let tokens = work_per_s / in_blocks_of(size_idx) * self.seconds_of_steps();
            tokens >= TOKENS_READ_PER_PARAMETER * in_blocks_of(size_idx)
        };
        (0..=most).rev().find(fits).unwrap_or(0)
    }

    /// The config of a model of this size, without the run length.
    fn config(&self, size_idx: usize, tokens_per_s: Option<f64>) -> Config {
        let (n_layers, d_model, n_heads) = SIZES[size_idx];
        let mut config = Config::default();
        config.data.clone_from(self.data);
        config.data.val_fraction = self.val_fraction();
        config.tokenizer.kind = self.token_choice.kind;
        config.tokenizer.end_of_text = true;
        if self.token_choice.kind == TokenizerKind::Bpe {
            config.tokenizer.vocab_size = Some(self.token_choice.size);
        }
        let model = &mut config.model;
        model.context_length = self.context_length(d_model);
        (model.n_layers, model.d_model) = (n_layers, d_model);
        (model.n_heads, model.n_kv_heads) = (n_heads, n_heads);
        model.position = PositionKind::Rope;
        model.norm = NormKind::RmsNorm;
        model.mlp = MlpKind::Swiglu;
        model.d_ff = ModelConfig::default_d_ff(model.mlp, d_model);
        model.qk_norm = true;
        *model = model.clone().with_derived();
        // Before the first measurement, a guess that affects only its batch size.
        let guessed = (if self.is_gpu { 1e12 } else { 1.5e10 }) / in_blocks_of(size_idx);
        let tokens_per_s = tokens_per_s.unwrap_or(guessed);
        config.train.batch_size = self.batch_size(config.model.context_length, tokens_per_s);
        config.train.with_replacement = false;
        config.train.device.clone_from(&self.request.device);
        config.train.matmul_precision = PrecisionChoice::Auto;
        let max_prompt = config.model.context_length / 2;
        config.train.sample_prompt = prompt::from_text(self.profile.sample_text(), max_prompt);
        config.optimizer.kind = OptimizerKind::RECOMMENDED;
        config.optimizer.learning_rate = learning_rate(d_model);
        config.schedule.kind = ScheduleKind::Linear;
        config.schedule.min_learning_rate = 0.0;
        config
    }

    /// Sets the run length and its intervals, given the speed and the most passes through the text.
    fn complete(&self, size_idx: usize, mut config: Config, speed: Speed, max_epochs: f64) -> Choice {
        let (train_tokens, batch) = (self.train_tokens(), tokens_of_batch(&config));
        let by_time = self.seconds_of_steps() * 1e3 / speed.step.median_ms;
        let least = if max_epochs < MAX_EPOCHS { 0.0 } else { MIN_STEPS_OF_SHORT_TEXTS };
        let by_text = (max_epochs * train_tokens / batch).max(least);
        // The last evaluation is the end of the run.
        let eval_interval = rounded(by_time.min(by_text) / EVALUATIONS as f64);
        let max_steps = (EVALUATIONS * eval_interval).max(MIN_STEPS);
        let train = &mut config.train;
        train.max_steps = max_steps;
        train.log_interval = rounded(max_steps as f64 / 200.0).clamp(1, 100);
        train.eval_interval = eval_interval;
        train.checkpoint_interval = train.eval_interval;
        train.eval_batches = (max_steps / 160).clamp(2, 20);
        train.sample_tokens = whole(self.request.minutes * 20.0).clamp(20, 200);
        config.schedule.warmup_steps = (max_steps / 10).clamp(1, 100);
        // A text that ends the run after MAX_EPOCHS could have been read for longer.
        let in_time =
            if max_epochs < MAX_EPOCHS { max_steps } else { EVALUATIONS * rounded(by_time / EVALUATIONS as f64) };
        let enough = TOKENS_READ_PER_PARAMETER * in_blocks_of(size_idx);
        Choice {
            config,
            speed,
            train_tokens,
            val_tokens: self.n_tokens as f64 - train_tokens,
            epochs: max_steps as f64 * batch / train_tokens,
            text_ends_first: by_text < by_time,
            text_limits_model: false,
            reads_enough: size_idx == 0 || in_time as f64 * batch >= enough,
        }
    }

    fn seconds_of_steps(&self) -> f64 {
        self.request.minutes * 60.0 * SHARE_OF_STEPS
    }

    fn train_tokens(&self) -> f64 {
        (self.n_tokens as f64 * (1.0 - self.val_fraction())).floor()
    }

    /// The share for validation: a tenth; a fifth of a short text; about 200,000 tokens of a long one, since all of
    /// them are read at the end.
    fn val_fraction(&self) -> f64 {
        let n = self.n_tokens as f64;
        match n {
            ..20_000.0 => 0.2,
            ..2_000_000.0 => 0.1,
            _ => {
                let shares = [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05];
                let is_enough = |share: &f64| n * share >= 200_000.0;
                shares.into_iter().find(is_enough).unwrap_or(0.1)
            }
        }
    }

    /// The context length: as long as a model of this width can use, with at least eight windows of training text.
    fn context_length(&self, d_model: usize) -> usize {
        let characters_take_bytes = self.token_choice.kind == TokenizerKind::Byte
            && (self.profile.characters.as_ref()).is_some_and(|characters| self.profile.bytes >= 2 * characters.n);
        let mut length = match d_model {
            ..256 if characters_take_bytes => 256,
            ..256 => 128,
            256..768 => 256,
            _ => LONGEST_CONTEXT,
        };
        while length > 8 && 8.0 * length as f64 > self.train_tokens() {
            length /= 2;
        }
        length
    }

    fn batch_size(&self, context_length: usize, tokens_per_s: f64) -> usize {
        let tokens_read = tokens_per_s * self.seconds_of_steps();
        let (least, most) = BATCH_TOKENS;
        let of_time = (tokens_read / STEPS_BEFORE_LARGER_BATCHES).clamp(least, most);
        let of_text = self.train_tokens() / 4.0;
        let rows = whole(of_time.min(of_text) / context_length as f64);
        match rows {
            0..4 => rows.max(1),
            _ => rows / 4 * 4,
        }
    }
}

fn in_blocks_of(size_idx: usize) -> f64 {
    let (n_layers, d_model, _) = SIZES[size_idx];
    parameters_in_blocks(n_layers, d_model)
}

/// The number of parameters in a model's blocks, which determines its speed and capacity. Both limits above are on these,
/// and so are the numbers in the comments of a config; only dropout depends on all parameters.
pub(super) fn parameters_in_blocks(n_layers: usize, d_model: usize) -> f64 {
    (12 * n_layers * d_model * d_model) as f64
}

fn tokens_of_batch(config: &Config) -> f64 {
    (config.train.batch_size * config.model.context_length) as f64
}

/// The learning rate: the quick start's, found by experiment, up to its width, and proportional to 1 / width beyond it.
fn learning_rate(d_model: usize) -> f64 {
    let exact = 3e-3 * (128.0 / d_model as f64).min(1.0);
    (exact * 1e4).round() / 1e4
}

impl Choice {
    /// The dropout by the rule: 0 if the text is read few times or the model is too small to memorize it.
    fn dropout(&self) -> f64 {
        match (self.epochs, self.speed.n_parameters as f64 / self.train_tokens) {
            (..8.0, _) | (_, ..0.5) => 0.0,
            (..30.0, _) => 0.1,
            _ => 0.2,
        }
    }
}

/// Rounds down to two digits.
fn rounded(exact: f64) -> usize {
    let whole = whole(exact).max(1);
    let unit = 10_usize.pow(whole.ilog10().saturating_sub(1));
    whole / unit * unit
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are neither negative nor above 2^53"
)]
fn whole(number: f64) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::profile;
    use super::*;

    /// Chooses for a machine whose time per token is proportional to the parameters, and three times that with dropout.
    fn choose(n_tokens: u64, minutes: f64, weights_per_s: f64, is_gpu: bool) -> (Choice, usize) {
        choose_on(n_tokens, minutes, is_gpu, |_, has_dropout| weights_per_s / if has_dropout { 3.0 } else { 1.0 })
    }

    /// Chooses for a machine whose speed, in weights per second, is that of each measurement, with or without dropout.
    fn choose_on(n_tokens: u64, minutes: f64, is_gpu: bool, speed: impl Fn(usize, bool) -> f64) -> (Choice, usize) {
        let profile = profile(&"A line of text, and another.\n".repeat(20));
        let token_choice = TokenChoice::choose(&profile, None);
        let request = &Request { minutes, device: "auto".to_owned(), ..Request::default() };
        let data = &DataConfig { path: "my.txt".into(), ..DataConfig::default() };
        let known = Known { request, data, profile: &profile, token_choice: &token_choice, n_tokens, is_gpu };
        let mut n_measured = 0;
        let choice = known.choose(|config| {
            n_measured += 1;
            let model = &config.model;
            let n_parameters = 12 * model.n_layers * model.d_model * model.d_model;
            let tokens_per_s = speed(n_measured, model.dropout > 0.0) / n_parameters as f64;
            let step_ms = tokens_of_batch(config) / tokens_per_s * 1e3;
            Ok(Speed { step: Times::from_ms(&[step_ms]), n_parameters })
        });
        (choice.unwrap(), n_measured)
    }

    const TWO_CORES: f64 = 1.5e10;
    const LARGE_GPU: f64 = 5e12;

    #[test]
    fn time_limits_model_size() {
        let widths = |minutes| choose(5_000_000, minutes, TWO_CORES, false).0.config.model.d_model;
        assert_eq!([1.0, 10.0, 100.0, 2000.0].map(widths), [64, 128, 192, 256]);
        let (choice, _) = choose(5_000_000, 10.0, TWO_CORES, false);
        assert!(!choice.text_limits_model && !choice.text_ends_first);
        let time = choice.speed.step.median_ms * choice.config.train.max_steps as f64 / 1e3;
        assert!((500.0..=540.0).contains(&time), "{time} s of 600");
    }

    #[test]
    fn short_texts_limit_model_size() {
        let (choice, n_measured) = choose(1_115_394, 600.0, LARGE_GPU, true);
        assert_eq!(choice.config.model.d_model, 384, "nanoGPT's for this text on a GPU");
        assert!(choice.text_limits_model && choice.text_ends_first);
        assert!((30.0..=40.0).contains(&choice.epochs));
        assert!((choice.config.model.dropout - 0.2).abs() < 1e-9);
        assert_eq!(n_measured, 2, "and once more with dropout");
        let (choice, _) = choose(500, 10.0, TWO_CORES, false);
        let config = choice.config;
        assert_eq!((config.model.d_model, config.train.max_steps), (32, 296));
        assert!(8 * config.model.context_length <= 400);
        assert!((config.data.val_fraction - 0.2).abs() < 1e-9);
    }

    #[test]
    fn measured_time_includes_dropout() {
        let (choice, _) = choose(70_000, 10.0, 1e9, false);
        let (model, train) = (&choice.config.model, &choice.config.train);
        assert!(model.dropout > 0.0 && !choice.text_ends_first);
        let time = choice.speed.step.median_ms * train.max_steps as f64 / 1e3;
        assert!((480.0..=540.0).contains(&time), "{time} s of 600");
        let weights = 12 * model.n_layers * model.d_model * model.d_model;
        let step_ms = tokens_of_batch(&choice.config) * weights as f64 / 1e9 * 1e3;
        assert!((choice.speed.step.median_ms / step_ms - 3.0).abs() < 1e-9);
    }

    #[test]
    fn choice_measures_few_models() {
        for weights_per_s in [1e6, 1e8, 1e10, 1e12, 1e14] {
            for is_gpu in [false, true] {
                let (choice, n_measured) = choose(1 << 30, 10.0, weights_per_s, is_gpu);
                assert!(n_measured <= MAX_SIZES);
                let model = &choice.config.model;
                let weights = 12 * model.n_layers * model.d_model * model.d_model;
                assert_eq!(choice.speed.n_parameters, weights, "the speed is that of the model");
            }
        }
    }

    /// The rules that a written config says of itself, on steady machines and on busy ones.
    #[test]
    fn choices_keep_their_rules() {
        let check = |choice: &Choice, case: &str| {
            let blocks = parameters_in_blocks(choice.config.model.n_layers, choice.config.model.d_model);
            let is_smallest = choice.config.model.d_model == SIZES[0].1;
            let tokens_per_parameter = choice.epochs * choice.train_tokens / blocks;
            let dropout = choice.config.model.dropout;
            assert!((dropout - choice.dropout()).abs() < 1e-9, "{case}: dropout {dropout} at {} passes", choice.epochs);
            assert!(choice.epochs <= MAX_EPOCHS || choice.config.train.max_steps <= 300, "{case}: {}", choice.epochs);
            let is_read = tokens_per_parameter >= TOKENS_READ_PER_PARAMETER || choice.epochs > 0.8 * MAX_EPOCHS;
            assert!(is_smallest || is_read, "{case}: {tokens_per_parameter} tokens for each parameter");
        };
        for n_tokens in [500, 3000, 30_000, 100_000, 1_115_394, 5_000_000, 100_000_000] {
            for slower in [1.1, 2.0, 8.0] {
                let mut before = (0, 0.0);
                for exponent in 0..30 {
                    let minutes = 0.05 * 1.5_f64.powi(exponent);
                    let speed = |_, has_dropout| TWO_CORES / if has_dropout { slower } else { 1.0 };
                    let (choice, _) = choose_on(n_tokens, minutes, false, speed);
                    let case = format!("{n_tokens} tokens, {minutes} minutes, {slower} with dropout");
                    check(&choice, &case);
                    // A longer time never gives a smaller model, or one of that size that reads less.
                    let after = (choice.config.model.d_model, choice.epochs);
                    let is_larger = after.0 > before.0 || after.0 == before.0 && after.1 > 0.88 * before.1; // rounded
                    assert!(is_larger, "{case}: {after:?} after {before:?}");
                    before = after;
                }
                for load in 0..60 {
                    let speed = |n: usize, has_dropout| {
                        let busy = [1.0, 6.0, 2.0, 1.0, 9.0][(n * (load % 7 + 1) + load) % 5];
                        TWO_CORES / busy / if has_dropout { slower } else { 1.0 }
                    };
                    let (choice, n) = choose_on(n_tokens, 0.1 * (load + 1) as f64, false, speed);
                    check(&choice, &format!("{n_tokens} tokens, load {load}, {n} measurements"));
                }
            }
        }
    }

    #[test]
    fn val_fraction_follows_text_length() {
        let shares = [(500, 0.2), (100_000, 0.1), (1_115_394, 0.1), (5_000_000, 0.05), (1_000_000_000, 0.0002)];
        for (n_tokens, expected) in shares {
            let (choice, _) = choose(n_tokens, 10.0, TWO_CORES, false);
            assert!((choice.config.data.val_fraction - expected).abs() < 1e-12, "{n_tokens}");
            assert!(choice.val_tokens >= 2.0);
        }
    }

    #[test]
    fn steps_are_round_numbers() {
        for (exact, expected) in [(0.3, 1), (7.9, 7), (99.0, 99), (123.4, 120), (7999.0, 7900)] {
            assert_eq!(rounded(exact), expected);
        }
    }
}
