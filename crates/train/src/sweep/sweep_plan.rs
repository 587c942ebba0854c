//! Divides the budget of a sweep: the number of settings, and the training time of each.

use serde::{Deserialize, Serialize};

/// The most settings: more would hardly add information.
pub(super) const MOST_SETTINGS: usize = 243;

/// The fewest settings drawn at random; with less time each is trained for a shorter time.
const FEWEST_RANDOM: usize = 8;

/// How the settings are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the docs of the variants would be a part of the help")]
pub enum Method {
    Grid,
    #[default]
    Random,
}

/// The dimensions of a sweep, fixed before its first run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepPlan {
    /// Seconds of training steps in the base config's own run.
    pub base_s: f64,
    /// Seconds of training steps in a run of the sweep.
    pub full_s: f64,
    /// The number of settings, including the base config's.
    pub n_settings: usize,
    /// The number of seeds per setting.
    pub n_seeds: usize,
    /// The number of runs trained in parallel.
    pub jobs: usize,
}

/// The facts that determine a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanInputs {
    pub method: Method,
    pub budget_s: f64,
    pub base_s: f64,
    /// The number of possible settings, including the base config's; `None` if they cannot be counted.
    pub n_possible: Option<usize>,
    pub n_seeds: usize,
    pub jobs: usize,
}

impl SweepPlan {
    /// Plans as many settings as there is time for, each trained as long as the base config; if the time allows only a
    /// few, each is trained for less.
    pub(super) fn new(inputs: PlanInputs) -> Self {
        let PlanInputs { method, budget_s, base_s, n_possible, n_seeds, jobs } = inputs;
        let most = n_possible.unwrap_or(MOST_SETTINGS);
        let fewest = if method == Method::Grid { most } else { FEWEST_RANDOM.min(most) };
        let budget_s = budget_s * jobs as f64;
        let cost_s = |n_settings: usize, full_s: f64| (n_settings * n_seeds) as f64 * full_s;
        let full_s = base_s.min(budget_s / cost_s(fewest, 1.0));
        let is_affordable = |n: &usize| cost_s(*n, full_s) <= budget_s * (1.0 + 1e-9);
        let n_settings = (fewest..=most.min(MOST_SETTINGS).max(fewest)).take_while(is_affordable).last();
        Self { base_s, full_s, n_settings: n_settings.unwrap_or(fewest), n_seeds, jobs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: PlanInputs =
        PlanInputs { method: Method::Random, budget_s: 1800.0, base_s: 60.0, n_possible: None, n_seeds: 1, jobs: 1 };

    #[test]
    fn plan_spends_the_budget_on_settings_then_on_time() {
        let plan = |inputs| {
            let SweepPlan { n_settings, full_s, .. } = SweepPlan::new(inputs);
            (n_settings, full_s.round() as u32)
        };
        assert_eq!(plan(INPUTS), (30, 60));
        assert_eq!(plan(PlanInputs { n_seeds: 3, ..INPUTS }), (10, 60));
        assert_eq!(plan(PlanInputs { jobs: 2, ..INPUTS }), (60, 60));
        assert_eq!(plan(PlanInputs { n_possible: Some(5), ..INPUTS }), (5, 60));
        assert_eq!(plan(PlanInputs { base_s: 6000.0, ..INPUTS }), (8, 225), "each setting gets less time");
        assert_eq!(plan(PlanInputs { base_s: 6000.0, n_seeds: 3, ..INPUTS }), (8, 75));
        let grid = PlanInputs { method: Method::Grid, n_possible: Some(6), base_s: 600.0, ..INPUTS };
        assert_eq!(plan(grid), (6, 300));
    }
}
