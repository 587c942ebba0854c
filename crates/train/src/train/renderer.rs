//! burn-train's renderers as observers of a run. Steps are burn-train's items, evaluations its epochs.

use std::sync::Arc;

use burn::train::metric::{MetricDefinition, MetricEntry, MetricId, NumericAttributes, NumericEntry, SerializedEntry};
use burn::train::renderer::{MetricState, MetricsRenderer};

use super::{Event, Logged, Observer, Started};

/// The splits of a renderer: the steps, the estimates, and the evaluation of the whole validation split.
const TRAINING: &str = "train";
const EVALUATING: &str = "valid";
const EVALUATING_FULLY: &str = "valid, whole split";

/// The name and unit of each metric of a log interval, and its value.
type Metric = (&'static str, Option<&'static str>, fn(&Logged) -> f64);
const METRICS: [Metric; 4] = [
    ("loss", Some("nats/token"), |logged| logged.train_loss),
    ("learning rate", None, |logged| logged.learning_rate),
    ("speed", Some("tokens/s"), |logged| logged.tokens_per_s),
    ("gradient norm", None, |logged| logged.gradient_norm.into()),
];

/// Passes the progress and the metrics of a run to a renderer of burn-train.
pub struct RendererObserver {
    renderer: Box<dyn MetricsRenderer>,
    /// The current split; `None` before the run has started.
    split: Option<&'static str>,
    eval_interval: usize,
    max_steps: usize,
}

impl RendererObserver {
    /// An observer that passes what it sees to `renderer`.
    pub fn new(renderer: Box<dyn MetricsRenderer>) -> Self {
        Self { renderer, split: None, eval_interval: 0, max_steps: 0 }
    }

    fn start(&mut self, started: &Started) {
        (self.eval_interval, self.max_steps) = (started.eval_interval, started.max_steps);
        for (name, unit, _) in METRICS {
            let attributes = NumericAttributes { unit: unit.map(str::to_owned), higher_is_better: name == "speed" };
            self.renderer.register_metric(MetricDefinition {
                metric_id: id(name),
                name: Arc::new(name.to_owned()),
                description: None,
                attributes: attributes.into(),
            });
        }
        let first = self.evaluations_by(started.step) + 1; // epochs count from 1
        self.renderer.start(self.evaluations_by(self.max_steps), first, Some(self.max_steps), None);
        self.enter(TRAINING);
    }

    fn enter(&mut self, split: &'static str) {
        if self.split != Some(split) {
            if self.split.is_some() {
                self.renderer.end_split();
            }
            self.renderer.start_split(split, self.max_steps);
            self.split = Some(split);
        }
    }

    /// The number of evaluations due by `step`: one after each interval, and one after the last step.
    fn evaluations_by(&self, step: usize) -> usize {
        let is_last = step >= self.max_steps;
        match self.eval_interval {
            0 => usize::from(is_last),
            interval if is_last => step.div_ceil(interval),
            interval => step / interval,
        }
    }
}

impl Observer for RendererObserver {
    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Started(started) => self.start(started),
            Event::Stepped { step, .. } => {
                self.enter(TRAINING);
                self.renderer.update_split(*step);
            }
            Event::Logged(logged) => {
                for (name, _, value) in METRICS {
                    self.renderer.update_train(state(name, value(logged)));
                }
            }
            Event::Evaluating => self.enter(EVALUATING),
            Event::Evaluated(evaluation) => {
                self.renderer.update_valid(state(METRICS[0].0, evaluation.val_loss));
                self.renderer.update_epoch(self.evaluations_by(evaluation.step));
            }
            Event::FinalEvaluation { .. } => self.enter(EVALUATING_FULLY),
            _ => {}
        }
    }
}

impl Drop for RendererObserver {
    fn drop(&mut self) {
        if self.split.is_some() {
            self.renderer.end_split();
            self.renderer.end();
        }
    }
}

fn id(name: &str) -> MetricId {
    MetricId::new(Arc::new(name.to_owned()))
}

fn state(name: &str, value: f64) -> MetricState {
    let serialized = SerializedEntry::new(format!("{value:.4}"), value.to_string());
    MetricState::Numeric(MetricEntry::new(id(name), serialized), Some(NumericEntry::Value(value)))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
    use burn::train::renderer::{EvaluationName, MetricsRendererEvaluation, MetricsRendererTraining};

    use super::*;
    use crate::train::Evaluation;

    /// Keeps the calls that it gets.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<Vec<String>>>);

    impl Recorder {
        fn record(&self, call: String) {
            self.0.lock().expect("no recorder panicked").push(call);
        }

        fn record_state(&self, split: &str, state: MetricState) {
            if let MetricState::Numeric(entry, Some(NumericEntry::Value(value))) = state {
                let metric = METRICS.iter().find(|(name, ..)| id(name) == entry.metric_id).expect("it is registered").0;
                self.record(format!("{split} {metric} {value}"));
            }
        }
    }

    impl MetricsRenderer for Recorder {
        fn manual_close(&mut self) {}
        fn register_metric(&mut self, definition: MetricDefinition) {
            self.record(format!("metric {}", definition.name));
        }
    }

    impl MetricsRendererTraining for Recorder {
        fn update_train(&mut self, state: MetricState) {
            self.record_state("train", state);
        }
        fn update_valid(&mut self, state: MetricState) {
            self.record_state("valid", state);
        }
    }

    impl TrainingProgressLogger for Recorder {
        fn start(&mut self, total: usize, first: usize, _: Option<usize>, _: Option<&str>) {
            self.record(format!("start {first} of {total}"));
        }
        fn start_split(&mut self, split: &str, _: usize) {
            self.record(format!("split {split}"));
        }
        fn update_split(&mut self, step: usize) {
            self.record(format!("step {step}"));
        }
        fn update_epoch(&mut self, evaluations: usize) {
            self.record(format!("evaluations {evaluations}"));
        }
        fn end_split(&mut self) {}
        fn end(&mut self) {
            self.record("end".to_owned());
        }
        fn log_event_training(&mut self, _: String) {}
    }

    impl MetricsRendererEvaluation for Recorder {
        fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
    }

    impl EvaluationProgressLogger for Recorder {
        fn start_global_progress(&mut self, _: usize) {}
        fn start_test(&mut self, _: &str, _: usize) {}
        fn update_test_progress(&mut self, _: usize) {}
        fn end_test(&mut self) {}
        fn end_global_progress(&mut self) {}
        fn log_event_evaluation(&mut self, _: String) {}
    }

    #[test]
    fn resumed_run_is_rendered_with_its_evaluations() {
        let recorder = Recorder::default();
        let mut observer = RendererObserver::new(Box::new(recorder.clone()));
        let started = Started { step: 300, max_steps: 1001, eval_interval: 250, ..Started::default() };
        observer.observe(&Event::Started(&started));
        observer.observe(&Event::Stepped { step: 310, loss: None });
        observer.observe(&Event::Logged(&Logged { step: 310, train_loss: 2.0, ..Logged::default() }));
        for step in [500, 750, 1000, 1001] {
            observer.observe(&Event::Evaluating);
            observer.observe(&Event::Evaluated(&Evaluation { step, val_loss: 1.5, ..Evaluation::default() }));
        }
        observer.observe(&Event::FinalEvaluation { done: 0, of: 1 });
        drop(observer);
        let calls = recorder.0.lock().expect("no recorder panicked").clone();
        assert_eq!(
            calls[..6].join(", "),
            "metric loss, metric learning rate, metric speed, metric gradient norm, start 2 of 5, split train"
        );
        assert_eq!(calls[6..8], ["step 310", "train loss 2"]);
        let evaluations: Vec<_> = calls.iter().filter(|call| call.starts_with("evaluations")).collect();
        assert_eq!(evaluations, ["evaluations 2", "evaluations 3", "evaluations 4", "evaluations 5"]);
        assert_eq!(calls[calls.len() - 2..], ["split valid, whole split", "end"]);
    }
}
