//! burn-train's side of the dashboard: its metrics and its progress go onto the board.
//!
//! burn-train calls a step an item and an evaluation an epoch. It tells the values of an item first and
//! then its step, so the board keeps the values until it knows where they belong.

use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::{MetricDefinition, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};

use super::Shared;
use super::board::{Activity, MeasuredOn};

/// Puts what burn-train measures onto a board.
pub(super) struct Renderer(pub(super) Shared);

impl Renderer {
    fn update(&self, on: MeasuredOn, state: MetricState) {
        // What is final repeats the interval's last value.
        if let MetricState::Numeric(entry, Some(value)) = state
            && !matches!(value, NumericEntry::Final(_))
        {
            self.0.with(|board| board.measured(&entry.metric_id, on, value.current()));
        }
    }
}

impl MetricsRenderer for Renderer {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.0.with(|board| board.register(definition));
    }
}

impl MetricsRendererTraining for Renderer {
    fn update_train(&mut self, state: MetricState) {
        self.update(MeasuredOn::Train, state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.update(MeasuredOn::Val, state);
    }
}

impl TrainingProgressLogger for Renderer {
    fn start(&mut self, total: usize, first: usize, _: Option<usize>, _: Option<&str>) {
        self.0.with(|board| {
            board.evaluations = first.saturating_sub(1); // epochs count from 1
            board.all_evaluations = total;
        });
    }

    fn start_split(&mut self, split: &str, _: usize) {
        let activity = match split {
            "train" => Activity::Training,
            _ => Activity::Evaluating,
        };
        self.0.with(|board| board.activity = activity);
    }

    fn update_split(&mut self, step: usize) {
        self.0.with(|board| board.place(step));
    }

    fn update_epoch(&mut self, evaluations: usize) {
        self.0.with(|board| board.evaluations = evaluations);
    }

    fn end_split(&mut self) {}
    fn end(&mut self) {}
    fn log_event_training(&mut self, _: String) {}
}

/// What burn-train's own evaluator would tell, which no run uses.
impl MetricsRendererEvaluation for Renderer {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
}

impl EvaluationProgressLogger for Renderer {
    fn start_global_progress(&mut self, _: usize) {}
    fn start_test(&mut self, _: &str, _: usize) {}
    fn update_test_progress(&mut self, _: usize) {}
    fn end_test(&mut self) {}
    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _: String) {}
}
