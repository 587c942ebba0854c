//! The state of the dashboard: progress, the history of every metric, and the last lines of the log.

use std::collections::VecDeque;

use burn::train::metric::{MetricAttributes, MetricDefinition, MetricId};

use super::load::Load;
use crate::format::without_control;
use crate::train::Started;

/// The number of log lines to keep, more than any window shows.
const MOST_LINES: usize = 200;

/// The number of samples to keep, more than any window shows.
const MOST_SAMPLES: usize = 20;

/// The most points of a curve, more than a chart can resolve.
const MOST_POINTS: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct Board {
    /// The run and its device, as the title.
    pub(super) title: String,
    /// One of the names of splits in [`crate::train::metrics`]; empty before the first split.
    pub(super) split: &'static str,
    /// The number of updates made before this process started.
    pub(super) first_step: usize,
    /// The number of updates made so far.
    pub(super) step: usize,
    pub(super) max_steps: usize,
    /// The number of evaluations made so far.
    pub(super) evaluations: usize,
    /// The number of evaluations in the whole run, unless it stops early.
    pub(super) all_evaluations: usize,
    /// The metrics, in the order in which they were registered.
    pub(super) metrics: Vec<History>,
    /// The index of the metric on the chart.
    pub(super) selected: usize,
    pub(super) lines: VecDeque<LogLine>,
    /// The samples of the model, newest first.
    pub(super) samples: VecDeque<WrittenSample>,
    /// The load of the machine; `None` before the first measurement.
    pub(super) load: Option<Load>,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogLine {
    pub(super) text: String,
    /// Whether the line belongs to a sample; samples may have a separate pane.
    pub(super) is_sample: bool,
}

/// A text that the model generated, and the step of its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenSample {
    pub(super) step: usize,
    pub(super) text: String,
}

/// The split that a number was measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MeasuredOn {
    Train,
    Val,
}

/// One metric over time.
#[derive(Clone, Debug)]
pub(super) struct History {
    id: MetricId,
    pub(super) name: String,
    /// The unit, or an empty string for a bare number.
    pub(super) unit: String,
    pub(super) train: Curve,
    pub(super) val: Curve,
}

/// A metric on one split: its latest value and the points (step, value) to draw.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    pub(super) latest: Option<f64>,
    pub(super) points: Vec<(f64, f64)>,
    /// The points whose mean will be the next point.
    gathered: Vec<(f64, f64)>,
    /// The number of times that the curve was halved: each point is the mean of `2^halvings` values.
    halvings: u32,
}

impl Board {
    pub(super) fn started(&mut self, started: &Started) {
        self.title = format!("{} on {}", started.run_dir.display(), started.device);
        (self.first_step, self.step, self.max_steps) = (started.step, started.step, started.max_steps);
    }

    /// Adds lines to the log.
    pub(super) fn note(&mut self, text: &str) {
        self.log(text, false);
    }

    /// Adds a sample of the current step, and its lines to the log.
    pub(super) fn sampled(&mut self, text: &str, lines: &str) {
        self.samples.push_front(WrittenSample { step: self.step, text: without_control(text.trim()).into_owned() });
        self.samples.truncate(MOST_SAMPLES);
        self.log(lines, true);
    }

    fn log(&mut self, text: &str, is_sample: bool) {
        self.lines.extend(text.lines().map(|line| LogLine { text: line.to_owned(), is_sample }));
        let excess = self.lines.len().saturating_sub(MOST_LINES);
        self.lines.drain(..excess);
    }

    /// Adds a metric, unless it is already known.
    pub(super) fn register(&mut self, definition: MetricDefinition) {
        let MetricDefinition { metric_id: id, name, attributes, .. } = definition;
        let MetricAttributes::Numeric(numeric) = attributes else { return };
        if self.metrics.iter().all(|known| known.id != id) {
            let (name, unit) = (name.to_string(), numeric.unit.unwrap_or_default());
            self.metrics.push(History { id, name, unit, train: Curve::default(), val: Curve::default() });
        }
    }

    /// Adds a value of the current step to a metric's history. NaN and infinities are left out, since no chart can show
    /// them.
    pub(super) fn measured(&mut self, id: &MetricId, on: MeasuredOn, value: f64) {
        let metric = self.metrics.iter_mut().find(|metric| metric.id == *id);
        if let Some(metric) = metric.filter(|_| value.is_finite()) {
            let curve = match on {
                MeasuredOn::Train => &mut metric.train,
                MeasuredOn::Val => &mut metric.val,
            };
            curve.latest = Some(value);
            curve.push((self.step as f64, value));
        }
    }

    /// Moves the selection down by `n` metrics, cyclically.
    pub(super) fn select(&mut self, n: isize) {
        if let Some(n_metrics) = isize::try_from(self.metrics.len()).ok().filter(|n| *n > 0) {
            let to = self.selected.cast_signed() + n;
            self.selected = to.rem_euclid(n_metrics).cast_unsigned();
        }
    }
}

impl Curve {
    fn push(&mut self, point: (f64, f64)) {
        self.gathered.push(point);
        if self.gathered.len() == 1 << self.halvings {
            self.points.push(mean(&self.gathered));
            self.gathered.clear();
        }
        if self.points.len() == MOST_POINTS {
            self.points = self.points.chunks(2).map(mean).collect();
            self.halvings += 1;
        }
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
    use crate::train::metrics::definition;

    fn board() -> (Board, MetricId) {
        let mut board = Board::default();
        let loss = definition("loss", Some("nats/token"));
        board.register(loss.clone());
        board.register(loss.clone()); // once for each split
        assert_eq!(board.metrics.len(), 1);
        (board, loss.metric_id)
    }

    #[test]
    fn board_assigns_values_to_current_step() {
        let (mut board, loss) = board();
        for (step, on, value) in [
            (10, MeasuredOn::Train, 4.0),
            (20, MeasuredOn::Train, 3.0),
            (20, MeasuredOn::Val, 3.5),
            (30, MeasuredOn::Train, f64::NAN),
        ] {
            board.step = step;
            board.measured(&loss, on, value);
        }
        let metric = &board.metrics[0];
        assert_eq!(metric.train.points, [(10.0, 4.0), (20.0, 3.0)]);
        assert_eq!(metric.val.points, [(20.0, 3.5)]);
        assert_eq!((metric.train.latest, metric.val.latest), (Some(3.0), Some(3.5)));
    }

    #[test]
    fn long_history_is_thinned_and_keeps_its_shape() {
        let (mut board, loss) = board();
        for step in 0..100_000_u32 {
            board.step = step as usize;
            board.measured(&loss, MeasuredOn::Train, 2.0 * f64::from(step));
        }
        let points = &board.metrics[0].train.points;
        assert!((MOST_POINTS / 2..MOST_POINTS).contains(&points.len()));
        assert!(points.iter().all(|(x, y)| (y - 2.0 * x).abs() < 1e-6));
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(points[0].0 < 200.0 && points[points.len() - 1].0 > 99_700.0);
    }

    #[test]
    fn selection_wraps_around_metrics() {
        let (mut board, _) = board();
        board.register(definition("speed", None));
        board.select(-1);
        assert_eq!(board.selected, 1);
        board.select(1);
        assert_eq!(board.selected, 0);
        let mut empty = Board::default();
        empty.select(1); // a key may be pressed before there are any metrics
        assert_eq!(empty.selected, 0);
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
        assert_eq!(board.samples[0], WrittenSample { step: MOST_SAMPLES + 1, text: "The\u{fffd}[31m cat".to_owned() });
        assert!(board.lines.iter().all(|line| line.is_sample));
    }
}
