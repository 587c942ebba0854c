//! Writes the best setting of a sweep as a config: the base config's own text, with its comments, and the sweep's
//! values with their reasons.

use toml::Value;

use super::equal_time::steps_within;
use super::{Dimension, Outcome, Request, overrides};
use crate::autoconfig;
use crate::config::Config;
use crate::config::commented::{Change, comment, edited, given};
use tinderbox_model::format::{duration, milliseconds};

/// The config of a setting, whose steps take `step_ms`, for a run as long as the base config's.
pub(super) fn toml(
    request: &Request,
    space: &[Dimension],
    setting: &[Value],
    step_ms: f64,
    outcome: &Outcome,
) -> String {
    let load = |text: &str, overrides: &[String]| Config::from_toml(text, &request.config_name, overrides).ok();
    let mut overrides = overrides(request, space, setting);
    let best = load(&request.config, &overrides).expect("it was trained");
    let base_s = outcome.plan.base_s;
    let max_steps = steps_within(&best, base_s, step_ms).max(1);
    overrides.push(format!("train.max_steps={max_steps}"));
    let wanted = load(&request.config, &overrides).expect("it was trained with these settings");
    let mut changes = changes(request, space, setting, &wanted, outcome);
    let why = format!(
        "As many steps of {} as fit the {} of the base config's, as timed in the sweep.",
        milliseconds(step_ms),
        duration(base_s)
    );
    let value = Value::Integer(i64::try_from(max_steps).unwrap_or(i64::MAX));
    changes.push(Change { path: "train.max_steps".to_owned(), value, why });
    let title = comment(&format!(
        "The best setting of `{}`. {} Comments that do not name the sweep are the base config's.",
        outcome.sweep_dir.display(),
        results(outcome)
    ));
    let of = |text: &str| format!("{title}\n{}", edited(text, &changes, text.starts_with(autoconfig::TITLE)));
    let own = of(&request.config);
    // A text that does not set its keys line by line is rewritten.
    if load(&own, &[]).as_ref() == Some(&wanted) { own } else { of(&wanted.to_toml()) }
}

fn results(outcome: &Outcome) -> String {
    let Some((best, loss)) = outcome.best().and_then(|best| Some((best, best.bits_per_byte?))) else {
        return String::new();
    };
    let after = duration(outcome.plan.full_s);
    let mut text = format!("After {after} of training steps its validation loss is {loss:.4} {}", outcome.unit);
    match outcome.base().and_then(|base| Some((base.trial, base.bits_per_byte?))) {
        Some((base, _)) if base == best.trial => text += "; it is the base config itself.",
        Some((_, loss)) => text.extend(["; the base config's is ", &format!("{loss:.4}"), "."]),
        None => text.push('.'),
    }
    text
}

fn changes(
    request: &Request,
    space: &[Dimension],
    setting: &[Value],
    wanted: &Config,
    outcome: &Outcome,
) -> Vec<Change> {
    let is_swept = |path: &str| space.iter().any(|dimension| dimension.key.path == path);
    let given = given(&request.overrides, wanted, "Given with --set, for all runs of the sweep.");
    let given = given.filter(|change| !is_swept(&change.path) && change.path != "train.max_steps");
    let mut changes: Vec<Change> = given.collect();
    for (dimension, value) in space.iter().zip(setting) {
        let path = dimension.key.path.clone();
        let importance = outcome.importance.iter().find(|importance| importance.key == path);
        let why = importance.map_or_else(String::new, |importance| {
            let groups: Vec<String> = importance.groups.iter().map(super::Group::label).collect();
            format!(
                "Chosen by the sweep. Importance {}; {}, and how many settings: {}.",
                importance.percent(),
                outcome.unit,
                groups.join(", ")
            )
        });
        changes.push(Change { path, value: value.clone(), why });
    }
    changes
}
