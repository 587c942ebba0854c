//! The section `[schedule]`. Learning rate and batch size are pure functions of the step, so a resumed run needs no
//! saved schedule state.

use serde::{Deserialize, Serialize};
use tinderbox_model::section::Problems;

use crate::config::Config;

tinderbox_model::sections! {
    /// `[schedule]`: how the learning rate changes during the run.
    pub struct ScheduleConfig {
        /// The curve after the warm-up: `constant`, `linear`, `cosine` or `wsd` (stays, then falls).
        pub kind: ScheduleKind = ScheduleKind::default(),
        /// Steps of the warm-up, while the learning rate rises from 0; may exceed the run.
        pub warmup_steps: usize = 100,
        /// The final learning rate of the curve. From 0 to `optimizer.learning_rate`; default a tenth of it.
        pub min_learning_rate: f64 = 1e-4,
        /// The last fraction of the run, where `wsd` falls; other kinds ignore it. In (0, 1].
        pub decay_fraction: f64 = 0.2,
        /// Tokens per row in the first step; rows grow to `model.context_length`. From 1 to `model.context_length`, the
        /// default: all rows have the same length.
        ///
        /// Source: Li et al. 2022, "The Stability-Efficiency Dilemma: Investigating Sequence Length Warmup for Training
        /// GPT Models", section 4.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub initial_context_length: Option<usize> = None,
        /// Rows per micro-batch in the first step; batches grow to `train.batch_size`. From 1 to `train.batch_size`,
        /// the default: all batches have the same size.
        ///
        /// Source: Smith et al. 2018, "Don't Decay the Learning Rate, Increase the Batch Size"; GPT-3's batches grew in
        /// the same way.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub initial_batch_size: Option<usize> = None,
        /// The first fraction of the run, where rows and batches grow. In (0, 1].
        pub ramp_fraction: f64 = 0.3,
    }
}

/// The learning-rate schedule after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Stays at the highest learning rate.
    Constant,
    /// Falls linearly to the minimum.
    Linear,
    /// Falls to the minimum on half a cosine.
    #[default]
    Cosine,
    /// Warm-up, stable, decay: stays constant, then falls linearly in the last `decay_fraction` of the run.
    Wsd,
}

impl ScheduleConfig {
    /// The same schedule with batches of full size from the first step on.
    #[must_use]
    pub fn without_ramp(&self) -> Self {
        Self { initial_context_length: None, initial_batch_size: None, ..self.clone() }
    }

    pub(crate) fn check_into(&self, problems: &mut Problems) {
        // The warm-up may be longer than the run.
        let Self {
            kind: _,
            warmup_steps: _,
            min_learning_rate,
            decay_fraction,
            initial_context_length: _, // checked with the lengths that they grow to
            initial_batch_size: _,
            ramp_fraction,
        } = self;
        problems.not_negative("schedule.min_learning_rate", *min_learning_rate);
        let is_share = *decay_fraction > 0.0 && *decay_fraction <= 1.0;
        problems.must(is_share, "schedule.decay_fraction", decay_fraction, "be above 0 and at most 1");
        let is_share = *ramp_fraction > 0.0 && *ramp_fraction <= 1.0;
        problems.must(is_share, "schedule.ramp_fraction", ramp_fraction, "be above 0 and at most 1");
    }
}

/// The learning rate of step `step`, counted from 0, in a run of `max_steps`.
///
/// The learning rate warms up linearly to `peak` over `warmup_steps`, and then decays by the schedule's kind to
/// `min_learning_rate`, which it reaches at `max_steps` and keeps afterwards (unless the kind is constant). The warm-up
/// may be longer than the run.
///
/// Source of the cosine: Loshchilov and Hutter 2017, "SGDR", eq. 5, one half period; of warm-up,
/// plateau and decay ("wsd"): Hu et al. 2024, "MiniCPM", section 4.
pub fn learning_rate(schedule: &ScheduleConfig, peak: f64, step: usize, max_steps: usize) -> f64 {
    let ScheduleConfig { kind, warmup_steps, min_learning_rate: min, decay_fraction, .. } = *schedule;
    if step < warmup_steps {
        return peak * (step + 1) as f64 / (warmup_steps + 1) as f64;
    }
    let (step, warmup, end) = (step as f64, warmup_steps as f64, max_steps as f64);
    let progress_from = |start: f64| ((step - start) / (end - start).max(1.0)).clamp(0.0, 1.0);
    match kind {
        ScheduleKind::Constant => peak,
        ScheduleKind::Linear => peak + (min - peak) * progress_from(warmup),
        ScheduleKind::Cosine => {
            let cosine = libm::cos(std::f64::consts::PI * progress_from(warmup));
            min + 0.5 * (1.0 + cosine) * (peak - min)
        }
        ScheduleKind::Wsd => {
            let decay_start = (end * (1.0 - decay_fraction)).max(warmup);
            peak + (min - peak) * progress_from(decay_start)
        }
    }
}

/// The number of rows in each batch of a run, and the number of tokens in each row.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchSchedule {
    /// Rows and tokens per row of a micro-batch, in the first step and after the warm-up of batch size and length.
    ends: [[usize; 2]; 2],
    /// The number of steps in the warm-up of batch size and length.
    n_growing: usize,
    grad_accumulation_steps: usize,
    /// The mean number of tokens in a row, if rows are records of any length.
    tokens_per_row: Option<f64>,
}

/// The most batch sizes whose tokens are summed one by one.
const MAX_SIZES: usize = 1 << 16;

/// The length of rows grows by this many tokens at a time, since lengths in between are no faster to compute.
const TOKENS: usize = 8;

impl BatchSchedule {
    /// The batches of a run.
    pub fn new(config: &Config) -> Self {
        let Config { train, schedule, model, .. } = config;
        let last = [train.batch_size, model.context_length];
        let first = [schedule.initial_batch_size, schedule.initial_context_length];
        let first = [first[0].unwrap_or(last[0]), first[1].unwrap_or(last[1])];
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a number of steps")]
        let share = (schedule.ramp_fraction * train.max_steps as f64).ceil() as usize;
        let n_growing = if first == last { 0 } else { share };
        Self {
            ends: [first, last],
            n_growing,
            grad_accumulation_steps: train.grad_accumulation_steps,
            tokens_per_row: None,
        }
    }

    /// The same batches with rows of records, which have this many tokens on average.
    #[must_use]
    pub fn of_records(self, tokens_per_row: Option<f64>) -> Self {
        Self { tokens_per_row, ..self }
    }

    /// The rows of each micro-batch in step `step`, counted from 0, and the tokens per row. Both grow linearly.
    ///
    /// Source: Li et al. 2022, "The Stability-Efficiency Dilemma: Investigating Sequence Length Warmup for Training GPT
    /// Models", section 4.
    pub fn at(&self, step: usize) -> [usize; 2] {
        let [[first_rows, first_tokens], last @ [last_rows, last_tokens]] = self.ends;
        if step >= self.n_growing {
            return last;
        }
        let grown = |first: usize, last: usize| first + multiplied((last - first, step), self.n_growing);
        let tokens = grown(first_tokens, last_tokens) / TOKENS * TOKENS;
        [grown(first_rows, last_rows), tokens.max(first_tokens)]
    }

    /// Whether the batches grow.
    pub fn grows(&self) -> bool {
        self.n_growing > 0
    }

    /// The number of training tokens in step `step`.
    pub fn tokens_at(&self, step: usize) -> u64 {
        if self.tokens_per_row.is_some() {
            return self.tokens_before(step + 1) - self.tokens_before(step);
        }
        self.at(step)
            .into_iter()
            .fold(self.grad_accumulation_steps as u64, |product, n| product.saturating_mul(n as u64))
    }

    /// The number of training tokens in all steps before `step`; rounded if the batches grow to more than
    /// `MAX_SIZES` sizes, which no machine has the memory for.
    pub fn tokens_before(&self, step: usize) -> u64 {
        if let Some(tokens_per_row) = self.tokens_per_row {
            let rows = step.saturating_mul(self.grad_accumulation_steps * self.ends[1][0]);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of tokens")]
            return (rows as f64 * tokens_per_row).round() as u64;
        }
        let [[first_rows, first_tokens], [last_rows, last_tokens]] = self.ends;
        let n_sizes = (last_rows - first_rows).saturating_add((last_tokens - first_tokens) / TOKENS);
        let n_growing = step.min(self.n_growing);
        let mut tokens: u64 = 0;
        let mut first = 0;
        if n_sizes.min(n_growing) > MAX_SIZES {
            let at = |part: usize| multiplied((part, n_growing), MAX_SIZES);
            for (from, until) in (0..MAX_SIZES).map(|part| (at(part), at(part + 1))) {
                let mean = self.tokens_at(from).midpoint(self.tokens_at(until - 1));
                tokens = tokens.saturating_add(mean.saturating_mul((until - from) as u64));
            }
            first = n_growing;
        }
        // Many steps have the same batch size. Since the size never shrinks, bisection finds the next larger one.
        while first < step {
            let size = self.at(first);
            let (mut same, mut next) = (first, step);
            while next - same > 1 {
                let middle = same.midpoint(next);
                if first >= self.n_growing || self.at(middle) == size { same = middle } else { next = middle }
            }
            let n_steps = (next - first) as u64;
            tokens = tokens.saturating_add(self.tokens_at(first).saturating_mul(n_steps));
            first = next;
        }
        tokens
    }
}

/// Computes `a b / c`, rounded down, for a quotient of at most the larger of `a` and `b`.
fn multiplied((a, b): (usize, usize), c: usize) -> usize {
    usize::try_from(a as u128 * b as u128 / c as u128).expect("the quotient is at most a or b")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(serde::Deserialize)]
    struct ScheduleCase {
        max_steps: usize,
        warmup_steps: usize,
        learning_rate: f64,
        min_learning_rate: f64,
        decay_fraction: f64,
        learning_rates: BTreeMap<String, Vec<f64>>,
    }

    /// Compares with `scripts/fixtures/schedule.py`, whose cosine is that of the PyTorch reference.
    #[test]
    fn schedules_match_reference() {
        let text = include_str!("../../../../tests/fixtures/schedule.json");
        let mut fixture: serde_json::Value = serde_json::from_str(text).expect("the fixture is JSON");
        let cases: Vec<ScheduleCase> = serde_json::from_value(fixture["cases"].take()).expect("the fixture has cases");
        let mut compared = 0;
        for case in cases {
            let ScheduleCase {
                warmup_steps, min_learning_rate, decay_fraction, learning_rate: peak, max_steps, ..
            } = case;
            for (name, expected) in case.learning_rates {
                let kind = serde_json::from_value(name.as_str().into()).expect("the fixture names known kinds");
                let schedule = ScheduleConfig {
                    kind,
                    warmup_steps,
                    min_learning_rate,
                    decay_fraction,
                    ..ScheduleConfig::default()
                };
                for (step, expected) in expected.into_iter().enumerate() {
                    let got = learning_rate(&schedule, peak, step, max_steps);
                    assert!((got - expected).abs() < 1e-12, "{name} step {step}: {got} {expected}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 100, "only {compared} values compared");
    }

    fn batches(max_steps: usize, [rows, tokens]: [Option<usize>; 2]) -> BatchSchedule {
        let mut config = Config::default();
        (config.train.max_steps, config.train.batch_size, config.train.grad_accumulation_steps) = (max_steps, 12, 3);
        config.model.context_length = 100;
        (config.schedule.initial_batch_size, config.schedule.initial_context_length) = (rows, tokens);
        config.schedule.ramp_fraction = 0.5;
        BatchSchedule::new(&config)
    }

    #[test]
    fn rows_and_batches_grow_linearly_then_stay() {
        let both = batches(20, [Some(2), Some(30)]);
        let sizes = [0, 1, 5, 9, 10, 19, 1000].map(|step| both.at(step));
        assert_eq!(sizes, [[2, 30], [3, 32], [7, 64], [11, 88], [12, 100], [12, 100], [12, 100]]);
        assert_eq!(batches(20, [None, Some(30)]).at(5), [12, 64]);
        assert_eq!(batches(20, [None, None]).at(0), [12, 100]);
        assert_eq!(batches(1, [Some(2), None]).at(0), [2, 100], "a run of a single step begins");
    }

    #[test]
    fn tokens_before_sums_earlier_steps() {
        for ends in [[None, None], [Some(2), None], [None, Some(1)], [Some(1), Some(99)], [Some(12), Some(100)]] {
            for max_steps in [1, 7, 150] {
                let batches = batches(max_steps, ends);
                let mut tokens = 0;
                for step in 0..max_steps + 3 {
                    assert_eq!(batches.tokens_before(step), tokens, "{ends:?}, step {step} of {max_steps}");
                    tokens += batches.tokens_at(step);
                }
            }
        }
        // More sizes than are added up one by one: on average half of the last.
        let mut config = Config::default();
        (config.train.max_steps, config.train.batch_size, config.model.context_length) = (1 << 30, 1 << 24, 128);
        (config.schedule.initial_batch_size, config.schedule.ramp_fraction) = (Some(1), 1.0);
        let tokens = BatchSchedule::new(&config).tokens_before(1 << 30) as f64;
        let expected = f64::from(1 << 30) * f64::from(1 << 23) * 128.0;
        assert!((tokens / expected - 1.0).abs() < 1e-6, "{tokens} {expected}");
        let endless = batches(usize::MAX, [Some(1), Some(1)]);
        assert_eq!(endless.tokens_before(usize::MAX), u64::MAX);
    }
}
