//! Divides the budget of a sweep: the number of settings, and the training time of each.

use serde::{Deserialize, Serialize};

use super::Request;

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

impl SweepPlan {
    /// Plans as many settings as there is time for, each trained as long as the base config; if the time allows only a
    /// few, each is trained for less. `n_possible` is the number of possible settings, including the base config's;
    /// `None` if they cannot be counted.
    pub(super) fn new(request: &Request, base_s: f64, n_possible: Option<usize>, jobs: usize) -> Self {
        let n_seeds = request.n_seeds.max(1);
        let most = n_possible.unwrap_or(MOST_SETTINGS);
        let fewest = if request.method == Method::Grid { most } else { FEWEST_RANDOM.min(most) };
        let budget_s = request.budget_s * jobs as f64;
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

    #[test]
    fn plan_spends_the_budget_on_settings_then_on_time() {
        let plan = |method, n_seeds, base_s, n_possible, jobs| {
            let request = Request { method, budget_s: 1800.0, n_seeds, ..Request::default() };
            let SweepPlan { n_settings, full_s, .. } = SweepPlan::new(&request, base_s, n_possible, jobs);
            (n_settings, full_s.round() as u32)
        };
        assert_eq!(plan(Method::Random, 1, 60.0, None, 1), (30, 60));
        assert_eq!(plan(Method::Random, 3, 60.0, None, 1), (10, 60));
        assert_eq!(plan(Method::Random, 1, 60.0, None, 2), (60, 60));
        assert_eq!(plan(Method::Random, 1, 60.0, Some(5), 1), (5, 60));
        assert_eq!(plan(Method::Random, 1, 6000.0, None, 1), (8, 225), "each setting gets less time");
        assert_eq!(plan(Method::Random, 3, 6000.0, None, 1), (8, 75));
        assert_eq!(plan(Method::Grid, 1, 600.0, Some(6), 1), (6, 300));
    }
}
