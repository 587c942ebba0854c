//! Plans the time of a sweep: the number of settings that it tries, and the training time of each.
//!
//! Successive halving compares many settings early and trains few to the end: after each rung the best third is
//! promoted, and each rung lasts three times as long as the one before. The rungs are synchronous. The asynchronous
//! variant keeps many machines busy, but promotes the runs that happen to be finished; here promotion depends on the
//! results alone.
//!
//! Source: Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter Optimization"; Li et
//! al. 2020, "A System for Massively Parallel Hyperparameter Tuning" (ASHA).

use serde::{Deserialize, Serialize};

/// One of this many settings is promoted, and the next rung is this many times longer.
const FACTOR: usize = 3;

/// The most rungs: the first is a 27th of the full run.
const MOST_RUNGS: usize = 4;

/// From this many settings on, later comparisons are preferred to more settings, since they mislead less: small models
/// learn faster at first, but end with higher losses.
const ENOUGH_SETTINGS: usize = 27;

/// The most settings: more would hardly add information.
pub(super) const MOST_SETTINGS: usize = 243;

/// The fewest settings drawn at random; with less time each is trained for a shorter time.
const FEWEST_RANDOM: usize = 8;

/// The fewest steps of the first rung, for the base config.
const FEWEST_STEPS: usize = 10;

/// Which settings are tried, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the docs of the variants would be a part of the help")]
pub enum Method {
    Grid,
    Random,
    #[default]
    #[cfg_attr(feature = "clap", value(alias = "asha"))]
    Halving,
}

/// The dimensions of a sweep, fixed before its first run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// Seconds of training steps in the base config's own run.
    pub base_s: f64,
    /// Seconds of training steps in a run through all rungs.
    pub full_s: f64,
    /// The number of settings, including the base config's.
    pub n_settings: usize,
    /// The number of comparisons between runs.
    pub n_rungs: usize,
    /// The number of seeds per setting in the last rung.
    pub n_seeds: usize,
    /// The number of runs trained in parallel.
    pub jobs: usize,
}

/// The facts that determine a course.
#[derive(Clone, Copy, Debug)]
pub(super) struct CourseInputs {
    pub method: Method,
    pub budget_s: f64,
    pub base_s: f64,
    pub base_steps: usize,
    /// The number of possible settings, including the base config's; `None` if they cannot be counted.
    pub n_possible: Option<usize>,
    pub n_seeds: usize,
    pub jobs: usize,
}

impl Course {
    /// Plans as many settings as there is time for, each trained as long as the base config, in the fewest rungs that
    /// leave enough of them; if the time allows only a few, each is trained for less.
    pub(super) fn plan(inputs: CourseInputs) -> Self {
        let CourseInputs { method, budget_s, base_s, base_steps, n_possible, n_seeds, jobs } = inputs;
        let most = n_possible.unwrap_or(MOST_SETTINGS);
        let budget_s = budget_s * jobs as f64;
        let cost = |n_rungs, n_settings| Self { base_s, full_s: 1.0, n_settings, n_rungs, n_seeds, jobs }.cost_s();
        let (n_rungs, fewest) = match method {
            Method::Grid => (1, most),
            Method::Random => (1, FEWEST_RANDOM.min(most)),
            Method::Halving => {
                let is_possible =
                    |n_rungs: &usize| power(n_rungs - 1) <= most && base_steps / power(n_rungs - 1) >= FEWEST_STEPS;
                let is_enough = |n_rungs: &usize| base_s * cost(*n_rungs, ENOUGH_SETTINGS.min(most)) <= budget_s;
                let possible = || (2..=MOST_RUNGS).filter(is_possible);
                let n_rungs = possible().find(is_enough).or(possible().next_back()).unwrap_or(1);
                (n_rungs, if n_rungs == 1 { FEWEST_RANDOM.min(most) } else { power(n_rungs - 1) })
            }
        };
        let cost = |n_settings| cost(n_rungs, n_settings);
        let full_s = base_s.min(budget_s / cost(fewest));
        let affordable = |n: &usize| cost(*n) * full_s <= budget_s * (1.0 + 1e-9);
        let affordable_n = (fewest..=most.min(MOST_SETTINGS).max(fewest)).take_while(affordable).last();
        Self { base_s, full_s, n_settings: affordable_n.unwrap_or(fewest), n_rungs, n_seeds, jobs }
    }

    /// Seconds of all training steps at most: the base config takes part in every comparison, also when it is not
    /// promoted.
    fn cost_s(&self) -> f64 {
        let of_rung = |rung: usize| {
            let before = if rung == 0 { 0.0 } else { self.seconds_of(rung - 1) };
            let others = if rung + 1 == self.n_rungs { (self.n_seeds - 1) as f64 * self.full_s } else { 0.0 };
            n_left(self.n_settings, rung) as f64 * (self.seconds_of(rung) - before + others)
        };
        let base = if self.n_rungs == 1 { 0.0 } else { self.n_seeds as f64 * self.full_s - self.seconds_of(0) };
        base + (0..self.n_rungs).map(of_rung).sum::<f64>()
    }

    /// Seconds of training at the end of a rung, when runs are compared.
    pub fn seconds_of(&self, rung: usize) -> f64 {
        self.full_s / power(self.n_rungs - 1 - rung) as f64
    }

    /// The steps at the end of a rung in a run of `max_steps`. All rungs but the last are multiples of the first, so
    /// that one evaluation interval meets them all.
    pub(super) fn steps_of(&self, rung: usize, max_steps: usize) -> usize {
        if rung + 1 == self.n_rungs { max_steps } else { max_steps / power(self.n_rungs - 1) * power(rung) }
    }
}

/// The number of settings, out of `n`, that reach a rung.
pub(super) fn n_left(n: usize, rung: usize) -> usize {
    (n / power(rung)).max(1)
}

fn power(exponent: usize) -> usize {
    FACTOR.pow(u32::try_from(exponent).expect("few rungs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: CourseInputs = CourseInputs {
        method: Method::Halving,
        budget_s: 1800.0,
        base_s: 600.0,
        base_steps: 6000,
        n_possible: None,
        n_seeds: 1,
        jobs: 1,
    };

    #[test]
    fn twenty_seven_settings_take_four_times_as_long_as_one() {
        let course = Course::plan(CourseInputs { budget_s: 2390.0, ..INPUTS });
        assert_eq!((course.n_settings, course.n_rungs), (27, 4));
        assert!((course.full_s - 600.0).abs() < 1e-9, "{course:?}");
        // Three full runs for the search, and one for the base config, less its part of the first rung.
        assert!((course.cost_s() - (2400.0 - 600.0 / 27.0)).abs() < 1e-9, "{course:?}");
        assert_eq!([0, 1, 2, 3].map(|rung| n_left(27, rung)), [27, 9, 3, 1]);
        assert_eq!([0, 1, 2, 3].map(|rung| course.steps_of(rung, 2000)), [74, 222, 666, 2000]);
        let seconds = [0, 1, 2, 3].map(|rung| course.seconds_of(rung).round());
        assert!(seconds.iter().zip([22.0, 67.0, 200.0, 600.0]).all(|(a, b)| (a - b).abs() < 1e-9), "{seconds:?}");
    }

    #[test]
    fn a_short_run_is_tried_with_more_settings_and_a_long_one_is_shortened() {
        let short = Course::plan(CourseInputs { base_s: 60.0, ..INPUTS });
        assert_eq!((short.n_settings, short.n_rungs), (53, 2), "compared late: {short:?}");
        assert!((short.full_s - 60.0).abs() < 1e-9, "{short:?}");
        let between = Course::plan(CourseInputs { base_s: 160.0, ..INPUTS });
        assert_eq!((between.n_settings, between.n_rungs), (41, 3), "{between:?}");
        let long = Course::plan(CourseInputs { base_s: 6000.0, n_seeds: 3, ..INPUTS });
        assert_eq!(long.n_settings, 27);
        assert!(
            (long.full_s - 1800.0 / (8.0 - 1.0 / 27.0)).abs() < 1e-9,
            "three runs of the last and of the base: {long:?}"
        );
        let two = Course::plan(CourseInputs { base_s: 6000.0, jobs: 2, ..INPUTS });
        assert!((two.full_s - 3600.0 / (4.0 - 1.0 / 27.0)).abs() < 1e-9, "{two:?}");
    }

    #[test]
    fn a_small_space_has_fewer_rungs_and_a_grid_one() {
        let few = Course::plan(CourseInputs { n_possible: Some(5), ..INPUTS });
        assert_eq!((few.n_settings, few.n_rungs), (5, 2));
        let grid = Course::plan(CourseInputs { method: Method::Grid, n_possible: Some(6), ..INPUTS });
        assert_eq!((grid.n_settings, grid.n_rungs), (6, 1));
        assert!((grid.full_s - 300.0).abs() < 1e-9, "{grid:?}");
        let random = Course::plan(CourseInputs { method: Method::Random, base_s: 60.0, ..INPUTS });
        assert_eq!((random.n_settings, random.n_rungs), (30, 1));
        assert_eq!(Course::plan(CourseInputs { base_steps: 29, ..INPUTS }).n_rungs, 1, "too short to be divided");
    }
}
