//! The numbers of steps, evaluations, samples and checkpoints of a run.

use serde::Serialize;

use super::Compute;
use crate::config::Config;
use crate::data::Estimate;
use crate::optimizer::BatchSchedule;

/// The counts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct RunCounts {
    pub steps: u64,
    /// Tokens per update; the final number if batches grow.
    pub tokens_per_step: u64,
    /// Tokens of the whole run, including repetitions.
    pub tokens: u64,
    /// The number of times that each token of the training text is seen; `None` without the text.
    pub epochs: Option<f64>,
    /// FLOPs of all training steps, updates included.
    pub flops: f64,
    /// FLOPs of the matrix products in the optimizer's updates; 0 with `AdamW`.
    pub update_flops: f64,
    pub evaluations: u64,
    pub evaluation_batches: u64,
    /// Batches of the whole validation split, evaluated at the end; `None` without the text.
    pub validation_batches: Option<u64>,
    pub sample_tokens: u64,
    /// Checkpoints saved, if every evaluation improves the loss.
    pub checkpoints: u64,
}

impl RunCounts {
    /// `compute` has the FLOPs per token, `update_flops` those per update.
    pub(super) fn new(config: &Config, text: Option<&Estimate>, compute: &Compute, update_flops: f64) -> Self {
        let train = &config.train;
        let steps = train.max_steps as u64;
        let row = config.model.context_length as u64;
        let batch = train.batch_size as u64 * row;
        let tokens_per_step = batch.saturating_mul(train.grad_accumulation_steps as u64);
        let tokens = BatchSchedule::new(config).tokens_before(train.max_steps);
        let update_flops = update_flops * steps as f64;
        let evaluations = ends(steps, train.eval_interval as u64);
        let batches_of = |n_tokens: u64| n_tokens.saturating_sub(1).div_ceil(batch).max(1);
        let of_each = |n_tokens: Option<u64>| {
            let wanted = train.eval_batches as u64;
            n_tokens.map_or(wanted, |n_tokens| wanted.min(batches_of(n_tokens)))
        };
        let both = of_each(text.map(|text| text.train_tokens)) + of_each(text.map(|text| text.val_tokens));
        Self {
            steps,
            tokens_per_step,
            tokens,
            epochs: text.map(|text| tokens as f64 / text.train_tokens.max(1) as f64),
            flops: compute.training * tokens as f64 + update_flops,
            update_flops,
            evaluations,
            evaluation_batches: evaluations.saturating_mul(both),
            validation_batches: text.map(|text| batches_of(text.val_tokens)),
            sample_tokens: evaluations.saturating_mul(train.sample_tokens as u64),
            checkpoints: saves(steps, train.eval_interval as u64, train.checkpoint_interval as u64),
        }
    }
}

/// The number of intervals that end in a run. The end of the run ends the last one; an interval of 0 ends only there.
fn ends(steps: u64, interval: u64) -> u64 {
    match interval {
        0 => 1,
        interval => steps.div_ceil(interval),
    }
}

/// The number of distinct steps that end an interval of either kind.
fn saves(steps: u64, evaluations: u64, checkpoints: u64) -> u64 {
    let before_the_end = |interval: u64| ends(steps, interval) - 1;
    let both = match (evaluations, checkpoints) {
        (0, _) | (_, 0) => 0,
        (a, b) => before_the_end((a / greatest_common_divisor(a, b)).saturating_mul(b)),
    };
    before_the_end(evaluations) + before_the_end(checkpoints) - both + 1
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => greatest_common_divisor(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_saves_match_run() {
        for steps in 1..60 {
            for (evaluations, checkpoints) in [(0, 0), (0, 7), (5, 0), (4, 6), (6, 4), (5, 5), (70, 3)] {
                let closes = |step: u64, interval| interval > 0 && step.is_multiple_of(interval);
                let is_saved = |step: &u64| *step == steps || closes(*step, evaluations) || closes(*step, checkpoints);
                let counted = (1..=steps).filter(is_saved).count() as u64;
                assert_eq!(saves(steps, evaluations, checkpoints), counted, "{steps} {evaluations} {checkpoints}");
            }
        }
    }
}
