//! The steps that a run makes in a time. While its batches grow they take less time than the measured ones, of full
//! size, in proportion to their tokens.

use crate::config::{Config, ScheduleConfig};
use crate::optimizer::BatchSchedule;

/// The time of the steps before `step`, in steps of full size.
pub(super) fn whole_steps(config: &Config, step: usize) -> f64 {
    let batches = BatchSchedule::new(config);
    batches.tokens_before(step) as f64 / batches.tokens_at(usize::MAX) as f64
}

/// The length of a run of this config that takes at most `s` seconds, if a step of full size takes `step_ms`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded down, and saturating")]
pub(super) fn steps_within(config: &Config, s: f64, step_ms: f64) -> usize {
    let whole = s * 1e3 / step_ms * (1.0 + 1e-9);
    let fits = |max_steps: usize| {
        let mut config = config.clone();
        config.train.max_steps = max_steps;
        whole_steps(&config, max_steps) <= whole
    };
    let mut fitting = whole as usize; // steps that grow are no longer than others
    let mut too_many = fitting.saturating_add(1);
    while fits(too_many) && too_many < usize::MAX / 2 {
        (fitting, too_many) = (too_many, too_many * 2);
    }
    while too_many - fitting > 1 {
        let middle = fitting.midpoint(too_many);
        if fits(middle) { fitting = middle } else { too_many = middle }
    }
    fitting
}

/// The config without keys that change nothing: two settings with the same one make the same run.
pub(super) fn effective(config: &Config) -> Config {
    if BatchSchedule::new(config).grows() {
        return config.clone();
    }
    let ramp_fraction = ScheduleConfig::default().ramp_fraction;
    Config { schedule: ScheduleConfig { ramp_fraction, ..config.schedule.without_ramp() }, ..config.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[&str]) -> Config {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let text = "data = {path = \"a\"}\nmodel = {context_length = 64}\ntrain = {batch_size = 16, max_steps = 2700}";
        Config::from_toml(text, "c.toml".as_ref(), &settings).unwrap()
    }

    #[test]
    fn growing_batches_make_more_steps_in_equal_time() {
        assert_eq!(steps_within(&config(&[]), 27.0, 10.0), 2700);
        for settings in [
            &["schedule.initial_batch_size=4"][..],
            &["schedule.initial_context_length=8", "schedule.ramp_fraction=0.8"],
            &["schedule.initial_batch_size=1", "schedule.initial_context_length=8", "schedule.ramp_fraction=1.0"],
        ] {
            let mut grows = config(settings);
            grows.train.max_steps = steps_within(&grows, 27.0, 10.0);
            assert!(grows.train.max_steps > 2800, "{settings:?}: {}", grows.train.max_steps);
            let s = whole_steps(&grows, grows.train.max_steps) * 10.0 / 1e3;
            assert!(s <= 27.0 && s > 26.9, "{settings:?}: {s}");
        }
    }
}
