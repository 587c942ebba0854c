//! The steps that a run makes in a time. While its batches grow they take less time than the measured ones, of full
//! size, in proportion to their tokens.

use super::course::Course;
use crate::config::{Config, ScheduleConfig};
use crate::optimizer::BatchSchedule;

/// The evaluations before the end of the first rung, of a run whose rungs are no multiples of each other.
const EVALUATIONS_IN_FIRST_RUNG: usize = 4;

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

/// The step at the end of a rung, which all runs reach after the same time.
pub(super) fn step_of_rung(course: &Course, config: &Config, rung: usize) -> usize {
    let max_steps = config.train.max_steps;
    if !BatchSchedule::new(config).grows() {
        return course.steps_of(rung, max_steps);
    }
    if rung + 1 == course.n_rungs {
        return max_steps;
    }
    let interval = evaluation_interval(course, config);
    step_after(course, config, rung) / interval * interval
}

/// The number of steps between the evaluations of a run, which meet the ends of all its rungs.
pub(super) fn evaluation_interval(course: &Course, config: &Config) -> usize {
    match BatchSchedule::new(config).grows() {
        true => (step_after(course, config, 0) / EVALUATIONS_IN_FIRST_RUNG).max(1),
        false => course.steps_of(0, config.train.max_steps),
    }
}

/// The step that is nearest to the time of a rung, and before it.
fn step_after(course: &Course, config: &Config, rung: usize) -> usize {
    let max_steps = config.train.max_steps;
    let wanted = whole_steps(config, max_steps) * course.seconds_of(rung) / course.full_s;
    let (mut before, mut after) = (0, max_steps + 1);
    while after - before > 1 {
        let middle = before.midpoint(after);
        if whole_steps(config, middle) <= wanted { before = middle } else { after = middle }
    }
    before
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

    const COURSE: Course = Course { base_s: 27.0, full_s: 27.0, n_settings: 27, n_rungs: 4, n_seeds: 1, jobs: 1 };

    #[test]
    fn a_run_whose_batches_grow_makes_more_steps_in_the_same_time() {
        let plain = config(&[]);
        assert_eq!(steps_within(&plain, 27.0, 10.0), 2700);
        assert_eq!([0, 1, 2, 3].map(|rung| step_of_rung(&COURSE, &plain, rung)), [100, 300, 900, 2700]);
        for settings in [
            &["schedule.initial_batch_size=4"][..],
            &["schedule.initial_context_length=8", "schedule.ramp_fraction=0.8"],
            &["schedule.initial_batch_size=1", "schedule.initial_context_length=8", "schedule.ramp_fraction=1.0"],
        ] {
            let mut grows = config(settings);
            grows.train.max_steps = steps_within(&grows, 27.0, 10.0);
            assert!(grows.train.max_steps > 2800, "{settings:?}: {}", grows.train.max_steps);
            let s = |step| whole_steps(&grows, step) * 10.0 / 1e3;
            assert!(s(grows.train.max_steps) <= 27.0 && s(grows.train.max_steps) > 26.9, "{settings:?}");
            let interval = evaluation_interval(&COURSE, &grows);
            for rung in 0..4 {
                let step = step_of_rung(&COURSE, &grows, rung);
                let wanted = COURSE.seconds_of(rung);
                assert!(s(step) <= wanted && s(step) > 0.7 * wanted, "{settings:?} {rung}: {} {wanted}", s(step));
                assert!(rung == 3 || step.is_multiple_of(interval));
            }
        }
    }

    #[test]
    fn settings_of_a_ramp_that_is_none_are_the_same_run() {
        let same = |settings: &[&str]| effective(&config(settings)) == effective(&config(&[]));
        assert!(same(&["schedule.ramp_fraction=0.3"]) && same(&["schedule.initial_batch_size=16"]));
        assert!(!same(&["schedule.initial_batch_size=4"]) && !same(&["train.batch_size=4"]));
    }
}
