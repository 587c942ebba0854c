//! `[distributed]`: the keys of runs with several ranks, with their defaults and rules.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tinderbox_model::section::Problems;

use super::ExchangeDtype;

tinderbox_model::sections! {
    /// `[distributed]`: how several processes train one run under a launcher such as `mpirun`; ignored without one.
    pub struct DistributedConfig {
        /// The quantity that processes synchronize, under a launcher such as `mpirun`, and how often: `step` (gradients
        /// in every step, as if one process had computed them) or `local` (weights after some steps that each process
        /// makes by itself, for slow networks).
        pub sync: SyncKind = SyncKind::default(),
        /// With `local`, the number of steps that each process trains alone; an evaluation or a checkpoint ends them
        /// early. At least 1.
        pub local_steps: usize = 50,
        /// With `local`, the outer learning rate: how far the weights move from their common start to the average of
        /// all processes, as a fraction. Above 0.
        ///
        /// Source: Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models".
        pub outer_learning_rate: f64 = 0.7,
        /// With `local`, the outer momentum: the fraction of the previous move that is repeated. In [0, 1).
        pub outer_momentum: f64 = 0.9,
        /// With `step`, the format of gradients in messages: `f32`, or `bf16` (gradients and sums rounded to 8
        /// significant bits: half the bytes). `local` only takes `f32`.
        pub gradient_dtype: ExchangeDtype = ExchangeDtype::default(),
        /// The seconds that a process waits for another before the run ends; 0 waits forever.
        pub timeout_s: usize = 300,
    }
}

/// The quantity that the processes of a distributed run synchronize, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncKind {
    /// Gradients, in every step: the result equals training with one process.
    #[default]
    Step,
    /// Weights, after several local steps of each process on its rows of the batches.
    Local,
}

impl DistributedConfig {
    /// The limit of `timeout_s`, or `None` without a limit.
    pub fn time_limit(&self) -> Option<Duration> {
        (self.timeout_s > 0).then(|| Duration::from_secs(self.timeout_s as u64))
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl DistributedConfig {
    pub(crate) fn check_into(&self, problems: &mut Problems) {
        let Self { sync, local_steps, outer_learning_rate, outer_momentum, gradient_dtype, timeout_s: _ } = self;
        problems.at_least_one("distributed.local_steps", *local_steps);
        problems.above_zero("distributed.outer_learning_rate", *outer_learning_rate);
        problems.below_one("distributed.outer_momentum", *outer_momentum);
        let is_used = *gradient_dtype == ExchangeDtype::F32 || *sync == SyncKind::Step;
        let rule = "be \"f32\" with distributed.sync = \"local\", which exchanges weights, in f32";
        problems.must(is_used, "distributed.gradient_dtype", "\"bf16\"", rule);
    }
}
