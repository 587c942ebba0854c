//! The results in a sweep's log so far.

use std::collections::BTreeMap;

use super::{Entry, SweepPlan};

/// The results in the log so far.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) plan: Option<SweepPlan>,
    pub(super) trials: BTreeMap<usize, Result<Prepared, String>>,
    /// Losses or failures, by trial and seed.
    pub(super) reached: BTreeMap<(usize, usize), Result<f64, String>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    pub(super) parameters: u64,
    pub(super) step_ms: f64,
    pub(super) max_steps: usize,
}

impl Results {
    pub(super) fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Planned(plan) => self.plan = Some(plan),
            Entry::Prepared { trial, parameters, step_ms, max_steps } => {
                self.trials.insert(trial, Ok(Prepared { parameters, step_ms, max_steps }));
            }
            Entry::LeftOut { trial, reason } => _ = self.trials.insert(trial, Err(reason)),
            Entry::Reached { trial, seed, step: _, bits_per_byte } => {
                self.reached.insert((trial, seed), Ok(bits_per_byte));
            }
            Entry::Failed { trial, seed, reason } => _ = self.reached.insert((trial, seed), Err(reason)),
        }
    }

    /// The losses of a trial's runs; `None` if it was not trained.
    pub(super) fn losses(&self, trial: usize) -> Option<Result<Vec<f64>, String>> {
        let of_seeds: Vec<_> = self.reached.range((trial, 0)..=(trial, usize::MAX)).map(|(_, it)| it.clone()).collect();
        (!of_seeds.is_empty()).then(|| of_seeds.into_iter().collect())
    }

    pub(super) fn trainable(&self) -> Vec<usize> {
        self.trials.iter().filter(|(_, prepared)| prepared.is_ok()).map(|(trial, _)| *trial).collect()
    }
}

pub(super) fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}
