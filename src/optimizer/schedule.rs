//! The learning rate as a pure function of the step, so that a resumed run needs no scheduler state.

use crate::config::{ScheduleConfig, ScheduleKind};

/// The learning rate of step `step`, counted from 0, in a run of `max_steps`.
///
/// A linear warm-up to `peak` over `warmup_steps`, then the schedule's kind down to `min_learning_rate` at
/// `max_steps` and from there on. A warm-up may be longer than the run.
///
/// Source of the cosine: Loshchilov and Hutter 2017, "SGDR", eq. 5, one half period; of warm-up,
/// plateau and decay ("wsd"): Hu et al. 2024, "MiniCPM", section 4.
pub fn learning_rate(schedule: &ScheduleConfig, peak: f64, step: usize, max_steps: usize) -> f64 {
    let ScheduleConfig { kind, warmup_steps, min_learning_rate: min, decay_fraction } = *schedule;
    if step < warmup_steps {
        return peak * (step + 1) as f64 / (warmup_steps + 1) as f64;
    }
    let (step, warmup, end) = (step as f64, warmup_steps as f64, max_steps as f64);
    let progress_from = |start: f64| ((step - start) / (end - start).max(1.0)).clamp(0.0, 1.0);
    match kind {
        ScheduleKind::Constant => peak,
        ScheduleKind::Linear => peak + (min - peak) * progress_from(warmup),
        ScheduleKind::Cosine => {
            let cosine = (std::f64::consts::PI * progress_from(warmup)).cos();
            min + 0.5 * (1.0 + cosine) * (peak - min)
        }
        ScheduleKind::Wsd => {
            let decay_start = (end * (1.0 - decay_fraction)).max(warmup);
            peak + (min - peak) * progress_from(decay_start)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(serde::Deserialize)]
    struct Case {
        max_steps: usize,
        warmup_steps: usize,
        learning_rate: f64,
        min_learning_rate: f64,
        decay_fraction: f64,
        learning_rates: BTreeMap<String, Vec<f64>>,
    }

    /// Against `scripts/fixtures/schedule.py`, whose cosine is that of the `PyTorch` reference.
    #[test]
    fn every_kind_follows_the_reference() {
        let text = include_str!("../../tests/fixtures/schedule.json");
        let mut fixture: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let cases: Vec<Case> = serde_json::from_value(fixture["cases"].take()).expect("cases");
        let mut compared = 0;
        for case in cases {
            let Case { warmup_steps, min_learning_rate, decay_fraction, learning_rate: peak, max_steps, .. } = case;
            for (name, expected) in case.learning_rates {
                let kind = serde_json::from_value(name.as_str().into()).expect("a kind");
                let schedule = ScheduleConfig { kind, warmup_steps, min_learning_rate, decay_fraction };
                for (step, expected) in expected.into_iter().enumerate() {
                    let got = learning_rate(&schedule, peak, step, max_steps);
                    assert!((got - expected).abs() < 1e-12, "{name} step {step}: {got} {expected}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 100, "only {compared} values compared");
    }
}
