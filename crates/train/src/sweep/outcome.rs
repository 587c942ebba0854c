//! The result of a sweep: its table, the importance of each key, and the best setting.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use serde::Serialize;
use toml::Value;

use super::equal_time::whole_steps;
use super::space::number;
use super::{Dimension, NextRange, PAGE, Prepared, Results, Setting, SweepError, SweepPlan, mean, run_name};
use crate::run::{Curves, RunDir, RunInfo};
use tinderbox_model::disk::write_atomically;
use tinderbox_model::format::short;

/// The number of equal-sized groups that the values of a range are put into.
const N_GROUPS: usize = 3;

/// The most values of a list that are not grouped; longer lists of numbers are grouped like ranges.
const MOST_VALUES: usize = 6;

/// The result of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct Outcome {
    #[serde(serialize_with = "tinderbox_model::format::serialize_path")]
    pub sweep_dir: PathBuf,
    /// The keys that varied.
    pub keys: Vec<String>,
    #[serde(rename = "course")]
    pub plan: SweepPlan,
    /// What the losses are in: bits per byte, or of preferences nats per pair.
    pub unit: &'static str,
    /// Every setting, best first.
    pub trials: Vec<TrialRow>,
    /// Every key, most important first; empty if there are too few results.
    pub importance: Vec<Importance>,
    /// Where to search next, by key; only for keys that take numbers.
    pub next: Vec<NextRange>,
    /// The setting with the best result; `None` if no run ended with one.
    pub best_trial: Option<usize>,
    /// The best setting as a config.
    #[serde(skip)]
    pub best_toml: Option<String>,
}

/// A setting and its results.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct TrialRow {
    /// Its number; 0 is the base config.
    pub trial: usize,
    /// The values of the keys that varied.
    pub values: Vec<String>,
    /// The directory of its first run.
    #[serde(serialize_with = "tinderbox_model::format::serialize_path")]
    pub run: PathBuf,
    pub parameters: Option<u64>,
    pub step_ms: Option<f64>,
    pub step: Option<usize>,
    /// Validation loss after them, in the unit of the outcome: the mean over its seeds.
    pub bits_per_byte: Option<f64>,
    /// The lowest and the highest loss of its seeds.
    pub seeds: Option<[f64; 2]>,
    /// The reason why it was left out, or ended without a result.
    pub reason: Option<String>,
}

/// The share of the difference between settings that is due to one key.
///
/// It is the share of the variance of the ranks, at equal training time, that the groups of the key's
/// values explain: `(H - k + 1) / (n - k)` with the Kruskal-Wallis H, k groups and n settings; 0 is what chance
/// explains. Ranks, since one diverging setting would otherwise account for all of the variance; it just ranks last.
/// Values of different keys may come together by chance, so that the same differences count for both: shares that add up
/// to more than 1 are divided by their sum.
///
/// Source: Tomczak and Tomczak 2014, "The need to report effect size estimates revisited", `eta^2_H`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Importance {
    /// The key.
    pub key: String,
    /// In [0, 1]; `None` if too few settings have a result.
    pub share: Option<f64>,
    /// The groups of its values.
    pub groups: Vec<Group>,
}

/// Values of a key, and their results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The value, or the lowest and the highest.
    pub values: String,
    /// The number of settings with these values.
    pub n_trials: usize,
    /// The mean over the settings with a result, in the unit of the outcome.
    pub bits_per_byte: Option<f64>,
}

impl Outcome {
    pub(super) fn new(
        root: &Path,
        space: &[Dimension],
        settings: &[Setting],
        plan: &SweepPlan,
        results: &Results,
    ) -> Self {
        let mut trials: Vec<TrialRow> = settings.iter().enumerate().map(|(at, it)| row(at, it, results)).collect();
        let loss = |row: &TrialRow| row.bits_per_byte.unwrap_or(f64::INFINITY);
        trials.sort_by(|a, b| loss(a).total_cmp(&loss(b)).then(a.trial.cmp(&b.trial)));
        let loss = |trial: usize| Some(results.losses(trial)?.map_or(f64::INFINITY, |runs| mean(&runs)));
        let known: Vec<(&Setting, f64)> =
            settings.iter().enumerate().filter_map(|(trial, setting)| Some((setting, loss(trial)?))).collect();
        let of_key = |(at, dimension): (usize, &Dimension)| {
            let values: Vec<(&Value, f64)> = known.iter().map(|(setting, loss)| (&setting[at], *loss)).collect();
            importance(&dimension.key.path, values)
        };
        let mut importance: Vec<Importance> = space.iter().enumerate().map(of_key).collect();
        limit_to_all(&mut importance);
        importance.sort_by(|a, b| b.share.unwrap_or(-1.0).total_cmp(&a.share.unwrap_or(-1.0)));
        let info = RunDir::open(&root.join(run_name(0, 0))).and_then(|run| RunInfo::read(&run));
        let are_preferences = info.is_ok_and(|info| info.val_accuracy.is_some());
        let mut outcome = Self {
            unit: if are_preferences { "nats per pair" } else { "bits per byte" },
            sweep_dir: root.to_owned(),
            keys: space.iter().map(|dimension| dimension.key.path.clone()).collect(),
            plan: *plan,
            best_trial: None,
            best_toml: None,
            next: Vec::new(),
            importance,
            trials,
        };
        outcome.best_trial = outcome.best().map(|row| row.trial);
        if let Some(best) = outcome.best_trial {
            outcome.next = space.iter().zip(&settings[best]).filter_map(|(key, best)| key.next(best)).collect();
        }
        outcome
    }

    /// The best row.
    pub fn best(&self) -> Option<&TrialRow> {
        self.trials.first().filter(|row| row.bits_per_byte.is_some())
    }

    /// The row of the base config.
    pub fn base(&self) -> Option<&TrialRow> {
        self.trials.iter().find(|row| row.trial == 0)
    }

    /// Writes the page of the sweep, which the caller has drawn, into its folder.
    pub fn write_page(root: &Path, page: &str) -> Result<(), SweepError> {
        write(root, PAGE, page)
    }

    /// The validation loss of each trial over its training time in seconds.
    pub fn curves(&self, root: &Path) -> Vec<Vec<(f64, f64)>> {
        let curve = |row: &TrialRow| {
            let read = |run: RunDir| Ok((run.config()?, Curves::read(&run)?));
            let Ok((config, curves)) = RunDir::open(&root.join(&row.run)).and_then(read) else { return Vec::new() };
            let column = ["val_bits_per_byte_estimate", "val_loss_estimate"].map(|name| curves.column(name));
            let points = column.into_iter().find(|points| !points.is_empty()).unwrap_or_default();
            // Runs are aligned by training time.
            let step_ms = row.step_ms.unwrap_or_default();
            let s = |step: u64| whole_steps(&config, usize::try_from(step).unwrap_or(usize::MAX)) * step_ms / 1e3;
            points.into_iter().map(|(step, loss)| (s(step), loss)).collect()
        };
        self.trials.iter().map(curve).collect()
    }
}

pub(super) fn write(root: &Path, name: &str, text: &str) -> Result<(), SweepError> {
    let path = root.join(name);
    write_atomically(&path, text.as_bytes()).map_err(|error| SweepError::File(path, error))
}

fn row(trial: usize, setting: &Setting, results: &Results) -> TrialRow {
    let row =
        TrialRow { trial, values: setting.iter().map(plain).collect(), run: run_name(trial, 0), ..TrialRow::default() };
    let Prepared { parameters, step_ms, max_steps } = match results.trials.get(&trial).cloned() {
        None => return row,
        Some(Err(reason)) => return TrialRow { reason: Some(reason), ..row },
        Some(Ok(prepared)) => prepared,
    };
    let row = TrialRow { parameters: Some(parameters), step_ms: Some(step_ms), ..row };
    match results.losses(trial) {
        None => row,
        Some(Err(reason)) => TrialRow { reason: Some(reason), ..row },
        Some(Ok(runs)) => {
            let ends = [f64::INFINITY, f64::NEG_INFINITY];
            let ends = runs.iter().fold(ends, |[low, high], run| [low.min(*run), high.max(*run)]);
            let seeds = (runs.len() > 1).then_some(ends);
            TrialRow { step: Some(max_steps), bits_per_byte: Some(mean(&runs)), seeds, ..row }
        }
    }
}

/// A value for display: strings without quotes, floats in their shortest form.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Float(number) => format!("{number:?}"),
        other => other.to_string(),
    }
}

/// The groups of a key's values: each value, or thirds of the settings ordered by value.
fn groups(values: &[(&Value, f64)]) -> Vec<(String, Vec<usize>)> {
    let mut distinct: Vec<(&Value, Vec<usize>)> = Vec::new();
    for (at, (value, _)) in values.iter().enumerate() {
        match distinct.iter_mut().find(|(known, _)| known == value) {
            Some((_, members)) => members.push(at),
            None => distinct.push((value, vec![at])),
        }
    }
    let numbers: Option<Vec<f64>> = values.iter().map(|(value, _)| number(value)).collect();
    let Some(numbers) = numbers.filter(|_| distinct.len() > MOST_VALUES) else {
        distinct.sort_by(|(a, _), (b, _)| number(a).partial_cmp(&number(b)).unwrap_or(Ordering::Equal));
        return distinct.into_iter().map(|(value, members)| (plain(value), members)).collect();
    };
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b]).then(a.cmp(b)));
    let thirds = order.chunks(order.len().div_ceil(N_GROUPS));
    let named = thirds.map(|third| {
        let end = |at: Option<&usize>| plain(values[*at.expect("chunks are never empty")].0);
        (format!("{} to {}", end(third.first()), end(third.last())), third.to_vec())
    });
    named.collect()
}

/// `values` has the value of every trained setting with its loss; infinity for a run that failed.
fn importance(key: &str, values: Vec<(&Value, f64)>) -> Importance {
    let (n, groups) = (values.len(), groups(&values));
    let losses: Vec<f64> = values.iter().map(|(_, loss)| *loss).collect();
    let ranks = ranks(&losses);
    let middle = f64::midpoint(n as f64, 1.0);
    let squares = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| (x - middle).powi(2)).sum::<f64>();
    let all = squares(&mut ranks.iter().copied());
    let between: f64 = groups
        .iter()
        .map(|(_, members)| {
            let mean = members.iter().map(|at| ranks[*at]).sum::<f64>() / members.len() as f64;
            members.len() as f64 * (mean - middle).powi(2)
        })
        .sum();
    let k = groups.len();
    let share = (n > k && k > 1 && all > 0.0).then(|| {
        let h = (n as f64 - 1.0) * between / all;
        ((h - k as f64 + 1.0) / (n - k) as f64).clamp(0.0, 1.0)
    });
    let group = |(values, members): (String, Vec<usize>)| {
        let finite: Vec<f64> = members.iter().map(|at| losses[*at]).filter(|loss| loss.is_finite()).collect();
        Group { values, n_trials: members.len(), bits_per_byte: (!finite.is_empty()).then(|| mean(&finite)) }
    };
    Importance { key: key.to_owned(), share, groups: groups.into_iter().map(group).collect() }
}

/// Divides shares that add up to more than 1 by their sum.
fn limit_to_all(keys: &mut [Importance]) {
    let sum: f64 = keys.iter().filter_map(|key| key.share).sum();
    keys.iter_mut().filter_map(|key| key.share.as_mut()).for_each(|share| *share /= sum.max(1.0));
}

/// The rank of each number, from 1; ties share their mean rank.
fn ranks(numbers: &[f64]) -> Vec<f64> {
    let rank = |number: &f64| {
        let below = numbers.iter().filter(|other| *other < number).count() as f64;
        let equal = numbers.iter().filter(|other| other.total_cmp(number).is_eq()).count() as f64;
        below + f64::midpoint(equal, 1.0)
    };
    numbers.iter().map(rank).collect()
}

impl Group {
    /// The group as text, such as `gelu 2.410 (9)`.
    pub fn label(&self) -> String {
        let loss = self.bits_per_byte.map_or_else(|| "no result".to_owned(), |loss| format!("{loss:.3}"));
        format!("{}: {loss} ({})", self.values, self.n_trials)
    }
}

impl Importance {
    /// The share in percent, or a dash.
    pub fn percent(&self) -> String {
        self.share.map_or_else(|| "-".to_owned(), |share| format!("{} %", short(100.0 * share)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn importance_ranks_deciding_key_first() {
        let kinds = ["a", "b"].map(|kind| Value::String(kind.to_owned()));
        let rates: Vec<Value> = (1_u32..=12).map(|i| Value::Float(f64::from(i) / 100.0)).collect();
        // `b` is better by 1, at any rate; one run fails.
        let losses: Vec<f64> = (0..12).map(|i| f64::from(i % 3) / 10.0 + f64::from((i + 1) % 2)).collect();
        let of_kind = importance("kind", losses.iter().enumerate().map(|(i, x)| (&kinds[i % 2], *x)).collect());
        let of_rate = importance("rate", losses.iter().zip(&rates).map(|(x, rate)| (rate, *x)).collect());
        assert!(of_kind.share > Some(0.6) && of_rate.share < Some(0.2), "{of_kind:?} {of_rate:?}");
        assert_eq!(of_kind.groups[1].label(), "b: 0.100 (6)");
        assert_eq!(
            of_rate.groups.iter().map(|group| &*group.values).collect::<Vec<_>>(),
            ["0.01 to 0.04", "0.05 to 0.08", "0.09 to 0.12"]
        );
        let same = importance("kind", vec![(&kinds[0], 1.0), (&kinds[0], 2.0)]);
        assert_eq!(same.share, None, "one value explains nothing");
    }

    #[test]
    fn shares_of_confounded_keys_sum_to_one() {
        let kinds = ["a", "b"].map(|kind| Value::String(kind.to_owned()));
        let of = |key| importance(key, (0..60).map(|i| (&kinds[i / 30], f64::from(i / 30 == 0))).collect());
        let mut keys = [of("one"), of("other"), importance("none", Vec::new())];
        limit_to_all(&mut keys);
        assert_eq!(keys.map(|key| key.share), [Some(0.5), Some(0.5), None]);
        let mut alone = [Importance { share: Some(0.25), ..of("one") }];
        limit_to_all(&mut alone);
        assert_eq!(alone[0].share, Some(0.25));
    }

    #[test]
    fn share_equals_kruskal_wallis_worked_by_hand() {
        // Ranks 1, 2, 3 against 4, 5, 6: H = 12 / (6 * 7) * (6^2 / 3 + 15^2 / 3) - 3 * 7 = 27 / 7.
        let kinds = ["a", "b"].map(|kind| Value::String(kind.to_owned()));
        let values: Vec<(&Value, f64)> = (0..6).map(|i| (&kinds[i / 3], i as f64)).collect();
        let share = importance("kind", values).share.unwrap();
        assert!((share - (27.0 / 7.0 - 1.0) / 4.0).abs() < 1e-12, "{share}");
        assert_eq!(ranks(&[2.0, 1.0, f64::INFINITY, 2.0]), [2.5, 1.0, 4.0, 2.5]);
    }
}
