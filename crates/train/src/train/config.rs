//! `[train]`: the keys of the training loop, with their defaults and rules.

use serde::{Deserialize, Serialize};
use tinderbox_model::section::Problems;

use super::precision::PrecisionChoice;

tinderbox_model::sections! {
    /// `[train]`: the length of the run and its intervals.
    pub struct TrainConfig {
        /// The seed of initial weights, batches and dropout: the same seed gives the same run. Below 2^63, since TOML
        /// integers are signed.
        pub seed: u64 = 1337,
        /// The device: `auto` (a CUDA device, else a discrete GPU or Metal, if it trains the model faster than the CPU,
        /// else the CPU), `cpu`, or a name that `tinderbox devices` lists.
        pub device: String = "auto".to_owned(),
        /// The precision of matrix products in attention's projections, the MLPs, the gradients of the output layer and
        /// Muon's steps: `f32`, `bf16` (matrices are rounded to 8 significant bits; all else stays in f32) or `auto`
        /// (bf16 on a CPU that multiplies it natively, else f32). Only on `flex`; see docs/runs.md.
        pub matmul_precision: PrecisionChoice = PrecisionChoice::default(),
        /// The number of weight updates. At least 1.
        pub max_steps: usize = 2000,
        /// The number of windows of text in one forward pass. At least 1.
        pub batch_size: usize = 12,
        /// The number of batches whose gradients are accumulated for one update. At least 1.
        pub grad_accumulation_steps: usize = 1,
        /// Samples windows of the text with replacement. Without, an epoch reads each window once in random order, and
        /// each epoch cuts the text at different places.
        pub with_replacement: bool = true,
        /// Steps between two lines of the log. At least 1.
        pub log_interval: usize = 10,
        /// Steps between two evaluations; 0: only at the end.
        pub eval_interval: usize = 250,
        /// The number of batches of each split in an evaluation during the run. At least 1.
        pub eval_batches: usize = 20,
        /// Steps between two checkpoints; 0: only at the end.
        pub checkpoint_interval: usize = 250,
        /// The number of latest checkpoints kept on disk, or `"all"`; the best one is always kept. At least 1.
        pub keep_checkpoints: KeptCheckpoints = KeptCheckpoints::default(),
        /// The prompt of the sample text at each evaluation. Not empty unless samples are off.
        pub sample_prompt: String = "\n".to_owned(),
        /// The length, in tokens, of the sample text at each evaluation; 0: off.
        pub sample_tokens: usize = 200,
        /// Skips a step whose loss or gradient is not finite instead of ending the run.
        pub skip_non_finite: bool = false,
        /// Skips a step if its loss is more than this many standard deviations above the mean of the last 128 losses;
        /// 0: never. At least 0.
        pub skip_loss_spikes: f64 = 0.0,
        /// Stops the run after this many consecutive evaluations without a better validation loss; 0: never.
        pub early_stopping_patience: usize = 0,
        /// Also writes curves and samples for `TensorBoard`, to `tensorboard/` in the run directory.
        pub tensorboard: bool = false,
        /// Also measures every attention head in evaluations, to `head_metrics.jsonl` in the run directory; see
        /// docs/heads.md.
        pub head_metrics: bool = false,
    }
}

/// The number of latest checkpoints kept on disk; in a config a number or the word `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a whole number, at least 1, or \"all\"")]
pub enum KeptCheckpoints {
    /// The latest `n` checkpoints.
    Latest(usize),
    /// All checkpoints.
    All(All),
}

/// The word `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum All {
    /// All checkpoints.
    #[serde(rename = "all")]
    All,
}

impl KeptCheckpoints {
    /// The most checkpoints that are kept.
    pub fn limit(self) -> usize {
        match self {
            Self::Latest(n) => n,
            Self::All(_) => usize::MAX,
        }
    }
}

impl Default for KeptCheckpoints {
    fn default() -> Self {
        Self::Latest(2)
    }
}

impl TrainConfig {
    pub(crate) fn check_into(&self, problems: &mut Problems) {
        let Self {
            seed,
            device,
            matmul_precision: _, // checked against the device when it is opened
            max_steps,
            batch_size,
            grad_accumulation_steps,
            with_replacement: _,
            log_interval,
            eval_interval: _, // 0 is only at the end, and it may exceed the run
            eval_batches,
            checkpoint_interval: _, // same as eval_interval
            keep_checkpoints,
            sample_prompt,
            sample_tokens,
            skip_non_finite: _,
            skip_loss_spikes,
            early_stopping_patience: _, // 0 is off
            tensorboard: _,
            head_metrics: _,
        } = self;
        problems.seed("train.seed", *seed);
        let rule = "name a device, such as \"auto\" or \"cpu\"; `tinderbox devices` lists them";
        problems.must(!device.trim().is_empty(), "train.device", format!("{device:?}"), rule);
        problems.at_least_one("train.max_steps", *max_steps);
        problems.size("train.batch_size", *batch_size);
        problems.size("train.grad_accumulation_steps", *grad_accumulation_steps);
        problems.at_least_one("train.log_interval", *log_interval);
        problems.at_least_one("train.eval_batches", *eval_batches);
        problems.at_least_one("train.keep_checkpoints", keep_checkpoints.limit());
        problems.not_negative("train.skip_loss_spikes", *skip_loss_spikes);
        let rule = "not be empty: generation needs a prompt; train.sample_tokens = 0 turns samples off";
        problems.must(*sample_tokens == 0 || !sample_prompt.is_empty(), "train.sample_prompt", "\"\"", rule);
    }
}
