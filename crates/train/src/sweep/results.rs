//! The results in a sweep's log so far, and the settings that are promoted after each rung.

use std::collections::BTreeMap;

use super::{Course, Entry, course};

/// The results in the log so far.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) course: Option<Course>,
    pub(super) trials: BTreeMap<usize, Result<Prepared, String>>,
    /// Losses or failures, by trial, rung and seed.
    pub(super) reached: BTreeMap<(usize, usize, usize), Result<f64, String>>,
    /// Step times with nothing else running, by trial.
    pub(super) alone: BTreeMap<usize, IsolatedStepTimes>,
    /// The steps that runs had made at their rungs, by trial and rung.
    pub(super) steps: BTreeMap<(usize, usize), usize>,
    pub(super) is_cautioned: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    pub(super) parameters: u64,
    pub(super) step_ms: f64,
    pub(super) max_steps: usize,
}

/// The step times of the base config and of a setting, measured one right after the other with nothing else running.
#[derive(Clone, Copy, Debug)]
pub(super) struct IsolatedStepTimes {
    pub(super) base_ms: f64,
    pub(super) step_ms: f64,
}

impl Results {
    pub(super) fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Planned(course) => self.course = Some(course),
            Entry::Prepared { trial, parameters, step_ms, max_steps } => {
                self.trials.insert(trial, Ok(Prepared { parameters, step_ms, max_steps }));
            }
            Entry::LeftOut { trial, reason } => _ = self.trials.insert(trial, Err(reason)),
            Entry::Caution { .. } => self.is_cautioned = true,
            Entry::Reached { trial, seed, rung, step, bits_per_byte } => {
                self.steps.insert((trial, rung), step);
                self.reached.insert((trial, rung, seed), Ok(bits_per_byte));
            }
            Entry::Failed { trial, seed, rung, reason } => {
                self.reached.insert((trial, rung, seed), Err(reason));
            }
            Entry::Alone { trial, base_ms, step_ms } => {
                _ = self.alone.insert(trial, IsolatedStepTimes { base_ms, step_ms });
            }
        }
    }

    /// The losses of a trial's runs at a rung; `None` if it did not take part.
    pub(super) fn losses(&self, trial: usize, rung: usize) -> Option<Result<Vec<f64>, String>> {
        let of_seeds = self.reached.range((trial, rung, 0)..=(trial, rung, usize::MAX));
        let of_seeds: Vec<_> = of_seeds.map(|(_, result)| result.clone()).collect();
        (!of_seeds.is_empty()).then(|| of_seeds.into_iter().collect())
    }

    /// The trials in a rung: in the first, all that can be trained; then the best of the previous one, and the base config,
    /// which the result is compared with.
    pub(super) fn in_rung(&self, rung: usize) -> Vec<usize> {
        let can_be_trained = self.trials.iter().filter(|(_, prepared)| prepared.is_ok());
        let all: Vec<usize> = can_be_trained.map(|(trial, _)| *trial).collect();
        if rung == 0 {
            return all;
        }
        let of_before = |trial: &usize| Some((mean(&self.losses(*trial, rung - 1)?.ok()?), *trial));
        let mut ranked: Vec<(f64, usize)> = all.iter().filter_map(of_before).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let n_left = course::n_left(all.len(), rung);
        let in_rung = |(at, (_, trial)): (usize, (f64, usize))| (at < n_left || trial == 0).then_some(trial);
        ranked.into_iter().enumerate().filter_map(in_rung).collect()
    }
}

pub(super) fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}
