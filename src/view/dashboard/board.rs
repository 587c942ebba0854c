//! The state of the dashboard: progress, the history of every metric, and the last lines of the log.

use std::collections::VecDeque;

use super::load::Load;
use crate::format::without_control;
use crate::measure::peak_rss_mib;
use crate::train::{Event, Logged, Started, Thinned};

/// The number of log lines to keep, more than any window shows.
const MOST_LINES: usize = 200;

/// The number of samples to keep, more than any window shows.
const MOST_SAMPLES: usize = 20;

/// The most points of a curve, more than a chart can resolve.
const MOST_POINTS: usize = 1024;

/// The name of each metric, in display order, its unit in parentheses, and its value in a log interval.
type Metric = (&'static str, &'static str, fn(&Logged) -> Option<f64>);
pub(super) const METRICS: [Metric; 5] = [
    ("loss", " (nats/token)", |logged| Some(logged.train_loss)),
    ("learning rate", "", |logged| Some(logged.learning_rate)),
    ("speed", " (tokens/s)", |logged| Some(logged.tokens_per_s)),
    ("gradient norm", "", |logged| Some(logged.gradient_norm.into())),
    ("peak memory", " (MiB)", |_| peak_rss_mib()),
];
/// The index of the only metric that is measured on the validation split, too.
const LOSS: usize = 0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Activity {
    #[default]
    Training,
    /// Estimates the losses.
    Evaluating,
    /// Evaluates the whole validation split, after the last step.
    EvaluatingFully,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Board {
    pub(crate) title: String,
    pub(crate) activity: Activity,
    /// The number of updates made before this process started.
    pub(crate) first_step: usize,
    /// The number of updates made so far.
    pub(crate) step: usize,
    pub(crate) max_steps: usize,
    eval_interval: usize,
    /// The number of evaluations made so far.
    pub(crate) evaluations: usize,
    pub(crate) metrics: [History; METRICS.len()],
    /// The index of the metric on the chart.
    pub(crate) selected: usize,
    pub(crate) lines: VecDeque<LogLine>,
    /// The samples of the model, newest first.
    pub(crate) samples: VecDeque<StepSample>,
    /// The load of the machine; `None` before the first measurement.
    pub(crate) load: Option<Load>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) text: String,
    /// Whether the line belongs to a sample; samples may have a separate pane.
    pub(crate) is_sample: bool,
}

/// A text that the model generated, and the step of its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepSample {
    pub(crate) step: usize,
    pub(crate) text: String,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) train: Curve,
    pub(crate) val: Curve,
}

/// A metric on one split: its latest value and the points (step, value) to draw, means of groups in a long run.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) latest: Option<f64>,
    pub(crate) points: Thinned<(f64, f64)>,
}

impl Default for Curve {
    fn default() -> Self {
        Self { latest: None, points: Thinned::new(MOST_POINTS, mean) }
    }
}

impl Board {
    /// Takes over the numbers of an event. [`Board::note`] and [`Board::sampled`] take its words.
    pub(crate) fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Started(Started { run_dir, device, step, max_steps, eval_interval, .. }) => {
                self.title = format!("{} on {device}", run_dir.display());
                (self.first_step, self.step) = (*step, *step);
                (self.max_steps, self.eval_interval) = (*max_steps, *eval_interval);
                self.evaluations = self.evaluations_by(*step);
            }
            Event::Stepped { step, .. } => (self.step, self.activity) = (*step, Activity::Training),
            Event::Logged(logged) => {
                for (history, (_, _, value)) in self.metrics.iter_mut().zip(METRICS) {
                    history.train.push(self.step, value(logged));
                }
            }
            Event::Evaluating => self.activity = Activity::Evaluating,
            Event::Evaluated(evaluation) => {
                self.activity = Activity::Training;
                self.evaluations = self.evaluations_by(evaluation.step);
                self.metrics[LOSS].val.push(self.step, Some(evaluation.val_loss));
            }
            Event::FinalEvaluation { .. } => self.activity = Activity::EvaluatingFully,
            _ => {}
        }
    }

    /// The number of evaluations due by `step`: one after each interval, and one after the last step.
    pub(crate) fn evaluations_by(&self, step: usize) -> usize {
        let is_last = step >= self.max_steps;
        match self.eval_interval {
            0 => usize::from(is_last),
            interval if is_last => step.div_ceil(interval),
            interval => step / interval,
        }
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.log(text, false);
    }

    /// Adds a sample of the current step, and its lines to the log.
    pub(crate) fn sampled(&mut self, text: &str, lines: &str) {
        self.samples.push_front(StepSample { step: self.step, text: without_control(text.trim()).into_owned() });
        self.samples.truncate(MOST_SAMPLES);
        self.log(lines, true);
    }

    fn log(&mut self, text: &str, is_sample: bool) {
        self.lines.extend(text.lines().map(|line| LogLine { text: line.to_owned(), is_sample }));
        let excess = self.lines.len().saturating_sub(MOST_LINES);
        self.lines.drain(..excess);
    }

    /// Moves the selection down by `n` metrics, cyclically.
    pub(crate) fn select(&mut self, n: isize) {
        let to = self.selected.cast_signed() + n;
        self.selected = to.rem_euclid(METRICS.len().cast_signed()).cast_unsigned();
    }
}

impl Curve {
    /// Adds a value. NaN and infinities are left out, since no chart can show them.
    fn push(&mut self, step: usize, value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        self.latest = Some(value);
        self.points.push((step as f64, value));
    }
}

fn mean(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    (x / n, y / n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::Evaluation;

    fn at(step: usize, event: Event<'_>, board: &mut Board) {
        board.step = step;
        board.observe(&event);
    }

    #[test]
    fn board_assigns_values_to_current_step() {
        let mut board = Board::default();
        for (step, train_loss) in [(10, 4.0), (20, 3.0), (30, f64::NAN)] {
            at(step, Event::Logged(&Logged { train_loss, ..Logged::default() }), &mut board);
        }
        at(20, Event::Evaluated(&Evaluation { val_loss: 3.5, ..Evaluation::default() }), &mut board);
        let loss = &board.metrics[LOSS];
        assert_eq!(*loss.train.points, [(10.0, 4.0), (20.0, 3.0)]);
        assert_eq!(*loss.val.points, [(20.0, 3.5)]);
        assert_eq!((loss.train.latest, loss.val.latest), (Some(3.0), Some(3.5)));
    }

    #[test]
    fn long_history_is_thinned_and_keeps_its_shape() {
        let mut curve = Curve::default();
        (0..100_000).for_each(|step| curve.push(step, Some(2.0 * step as f64)));
        let points = &curve.points;
        assert!((MOST_POINTS / 2..MOST_POINTS).contains(&points.len()));
        assert!(points.iter().all(|(x, y)| (y - 2.0 * x).abs() < 1e-6));
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(points[0].0 < 200.0 && points[points.len() - 1].0 > 99_700.0);
    }

    #[test]
    fn selection_wraps_around_metrics() {
        let mut board = Board::default();
        board.select(-1);
        assert_eq!(board.selected, METRICS.len() - 1);
        board.select(1);
        assert_eq!(board.selected, 0);
    }

    #[test]
    fn log_keeps_last_lines() {
        let mut board = Board::default();
        for i in 0..MOST_LINES {
            board.note(&format!("{i}\nand more"));
        }
        assert_eq!(board.lines.len(), MOST_LINES);
        assert_eq!(board.lines[0].text, "100");
    }

    #[test]
    fn newest_sample_comes_first() {
        let mut board = Board::default();
        for step in 1..=MOST_SAMPLES + 1 {
            board.step = step;
            board.sampled("\n The\u{1b}[31m cat\n", "sample:\n    | The cat");
        }
        assert_eq!(board.samples.len(), MOST_SAMPLES);
        assert_eq!(board.samples[0], StepSample { step: MOST_SAMPLES + 1, text: "The\u{fffd}[31m cat".to_owned() });
        assert!(board.lines.iter().all(|line| line.is_sample));
    }

    #[test]
    fn resumed_run_counts_evaluations() {
        let mut board = Board::default();
        let started = Started { step: 300, max_steps: 1001, eval_interval: 250, ..Started::default() };
        board.observe(&Event::Started(&started));
        assert_eq!((board.evaluations, board.evaluations_by(1001)), (1, 5));
        for (step, n) in [(500, 2), (750, 3), (1000, 4), (1001, 5)] {
            board.observe(&Event::Stepped { step, loss: None });
            board.observe(&Event::Evaluating);
            assert_eq!((board.activity, board.evaluations), (Activity::Evaluating, n - 1), "step {step}");
            board.observe(&Event::Evaluated(&Evaluation { step, ..Evaluation::default() }));
            assert_eq!((board.activity, board.evaluations), (Activity::Training, n), "step {step}");
        }
    }

    #[test]
    fn evaluations_follow_interval_and_last_step() {
        for (step, eval_interval, max_steps, expected) in [
            (249, 250, 1001, 0),
            (250, 250, 1001, 1),
            (1001, 250, 1001, 5),
            (1000, 250, 1000, 4),
            (7, 250, 7, 1),
            (7, 0, 10, 0),
            (10, 0, 10, 1),
        ] {
            let board = Board { max_steps, eval_interval, ..Board::default() };
            assert_eq!(board.evaluations_by(step), expected, "step {step} of {max_steps}, every {eval_interval}");
        }
    }
}
