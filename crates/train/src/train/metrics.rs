//! Passes the numbers of a run to the observer's renderer as burn-train's metrics.

use std::sync::Arc;

use burn::train::metric::{MetricDefinition, MetricEntry, MetricId, NumericAttributes, NumericEntry, SerializedEntry};
use burn::train::renderer::{MetricState, MetricsRenderer};

use super::observer::{Evaluation, Logged};
use crate::config::TrainConfig;
use crate::measure::peak_rss_mib;

const LOSS: &str = "loss";
const SPEED: &str = "speed";

/// Name, unit and value of a metric of a log interval. [`COLUMNS`] lists the metrics in display order.
type Column = (&'static str, Option<&'static str>, fn(&Logged) -> Option<f64>);
const COLUMNS: [Column; 5] = [
    (LOSS, Some("nats/token"), |logged| Some(logged.train_loss)),
    ("learning rate", None, |logged| Some(logged.learning_rate)),
    (SPEED, Some("tokens/s"), |logged| Some(logged.tokens_per_s)),
    ("gradient norm", None, |logged| Some(logged.gradient_norm.into())),
    ("peak memory", Some("MiB"), |_| peak_rss_mib()),
];

/// The phases of the training loop, shown as the renderer's splits: the steps.
pub const TRAINING: &str = "train";
/// An estimate of the losses.
pub const EVALUATING: &str = "valid";
/// The evaluation of the whole validation split, after the last step.
pub const EVALUATING_FULLY: &str = "valid, whole split";

/// Reports the progress and measurements of the training loop to a renderer, if there is one. Steps are burn-train's
/// items, and evaluations are its epochs.
pub struct Metrics {
    renderer: Option<Box<dyn MetricsRenderer>>,
    eval_interval: usize,
    max_steps: usize,
    split: &'static str,
}

impl Metrics {
    /// Registers the metrics of a run that has made `step` steps so far.
    pub fn start(mut renderer: Option<Box<dyn MetricsRenderer>>, config: &TrainConfig, step: usize) -> Self {
        let TrainConfig { eval_interval, max_steps, .. } = *config;
        if let Some(renderer) = &mut renderer {
            for (name, unit, _) in COLUMNS {
                renderer.register_metric(definition(name, unit));
            }
            let all = evaluations_by(max_steps, eval_interval, max_steps);
            let first = evaluations_by(step, eval_interval, max_steps) + 1; // epochs count from 1
            renderer.start(all, first, Some(max_steps), None);
            renderer.start_split(TRAINING, max_steps);
        }
        Self { renderer, eval_interval, max_steps, split: TRAINING }
    }

    /// Announces that the training loop switches to `split`.
    pub fn enter(&mut self, split: &'static str) {
        if let Some(renderer) = self.renderer.as_mut().filter(|_| self.split != split) {
            renderer.end_split();
            renderer.start_split(split, self.max_steps);
            self.split = split;
        }
    }

    /// Reports the number of the last step.
    pub fn stepped(&mut self, step: usize) {
        if let Some(renderer) = &mut self.renderer {
            renderer.update_split(step);
        }
    }

    /// Reports a log interval.
    pub fn logged(&mut self, logged: &Logged) {
        if let Some(renderer) = &mut self.renderer {
            for (name, _, value) in COLUMNS {
                if let Some(value) = value(logged) {
                    renderer.update_train(state(name, value));
                }
            }
        }
    }

    /// Reports an evaluation.
    pub fn evaluated(&mut self, evaluation: &Evaluation) {
        let n = evaluations_by(evaluation.step, self.eval_interval, self.max_steps);
        if let Some(renderer) = &mut self.renderer {
            renderer.update_valid(state(LOSS, evaluation.val_loss));
            renderer.update_epoch(n);
        }
    }

    /// Ends the run.
    pub fn end(&mut self) {
        if let Some(renderer) = &mut self.renderer {
            renderer.end_split();
            renderer.end();
        }
    }
}

/// The number of evaluations due by `step`: one after each interval, and one after the last step.
fn evaluations_by(step: usize, eval_interval: usize, max_steps: usize) -> usize {
    let is_last = step >= max_steps;
    match eval_interval {
        0 => usize::from(is_last),
        _ if is_last => step.div_ceil(eval_interval),
        _ => step / eval_interval,
    }
}

fn id(name: &str) -> MetricId {
    MetricId::new(Arc::new(name.to_owned()))
}

/// A metric of a run.
pub fn definition(name: &str, unit: Option<&str>) -> MetricDefinition {
    let attributes = NumericAttributes { unit: unit.map(str::to_owned), higher_is_better: name == SPEED };
    MetricDefinition {
        metric_id: id(name),
        name: Arc::new(name.to_owned()),
        description: None,
        attributes: attributes.into(),
    }
}

fn state(name: &str, value: f64) -> MetricState {
    let serialized = SerializedEntry::new(format!("{value:.4}"), value.to_string());
    MetricState::Numeric(MetricEntry::new(id(name), serialized), Some(NumericEntry::Value(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_follow_the_interval_and_the_last_step() {
        for (step, eval_interval, max_steps, expected) in [
            (0, 250, 1001, 0),
            (249, 250, 1001, 0),
            (250, 250, 1001, 1),
            (300, 250, 1001, 1), // a possible step to resume from; 500, 750, 1000 and 1001 are still due
            (1000, 250, 1001, 4),
            (1001, 250, 1001, 5),
            (1000, 250, 1000, 4),
            (7, 250, 7, 1),
            (7, 0, 10, 0),
            (10, 0, 10, 1),
        ] {
            let n = evaluations_by(step, eval_interval, max_steps);
            assert_eq!(n, expected, "step {step} of {max_steps}, every {eval_interval}");
        }
    }
}
