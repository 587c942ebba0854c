//! The metrics renderer that burn-train calls. Its items are steps, and its epochs are evaluations.

use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::{MetricDefinition, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
};

use super::Shared;
use super::board::MeasuredOn;
use crate::train::metrics::{EVALUATING, EVALUATING_FULLY, TRAINING};

/// Writes the progress and the metrics of a run to a board.
pub(super) struct Renderer(pub(super) Shared);

impl Renderer {
    fn update(&self, on: MeasuredOn, state: MetricState) {
        if let MetricState::Numeric(entry, Some(NumericEntry::Value(value))) = state {
            self.0.with(|board| board.measured(&entry.metric_id, on, value));
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
        let known = [TRAINING, EVALUATING].into_iter().find(|known| *known == split);
        self.0.with(|board| board.split = known.unwrap_or(EVALUATING_FULLY));
    }

    fn update_split(&mut self, step: usize) {
        self.0.with(|board| board.step = step);
    }

    fn update_epoch(&mut self, evaluations: usize) {
        self.0.with(|board| board.evaluations = evaluations);
    }

    fn end_split(&mut self) {}
    fn end(&mut self) {}
    fn log_event_training(&mut self, _: String) {}
}

// A run does not use burn-train's evaluator, which makes the other calls.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;
    use crate::train::metrics::Metrics;
    use crate::train::{Evaluation, Logged};

    #[test]
    fn resumed_run_counts_evaluations() {
        let shared = Shared::default();
        let config = TrainConfig { eval_interval: 250, max_steps: 1001, ..TrainConfig::default() };
        let mut metrics = Metrics::start(Some(Box::new(Renderer(shared.clone()))), &config, 300);
        let counts = || shared.with(|board| (board.evaluations, board.all_evaluations));
        assert_eq!(counts(), (1, 5));
        metrics.stepped(310);
        metrics.logged(&Logged { step: 310, train_loss: 2.0, ..Logged::default() });
        for (step, n) in [(500, 2), (750, 3), (1000, 4), (1001, 5)] {
            metrics.stepped(step);
            metrics.enter(EVALUATING);
            metrics.evaluated(&Evaluation { step, ..Evaluation::default() });
            assert_eq!(counts(), (n, 5), "step {step}");
        }
        shared.with(|board| {
            assert_eq!(board.split, EVALUATING);
            assert_eq!(board.metrics[0].train.points, [(310.0, 2.0)]);
            assert_eq!(board.metrics[0].val.points.len(), 4);
        });
    }
}
