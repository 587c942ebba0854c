//! What the dashboard knows: how far the run is, the history of every metric, the last lines of its log.

use std::collections::VecDeque;

use burn::train::metric::{MetricAttributes, MetricDefinition, MetricId};

use crate::train::Started;

/// The log keeps so many lines, more than any window shows.
const MOST_LINES: usize = 200;

/// A curve keeps at most so many points, more than a chart can tell apart.
const MOST_POINTS: usize = 1024;

/// Everything that is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Board {
    /// The run and what it is computed on.
    pub(super) title: String,
    /// What is being done.
    pub(super) activity: Activity,
    /// The step that this process began after.
    pub(super) first_step: usize,
    /// Updates made so far.
    pub(super) step: usize,
    /// Updates in all.
    pub(super) max_steps: usize,
    /// Evaluations made so far.
    pub(super) evaluations: usize,
    /// Evaluations in all, unless the run stops early.
    pub(super) all_evaluations: usize,
    /// In the order in which they were registered.
    pub(super) metrics: Vec<History>,
    /// Which of them has the chart.
    pub(super) selected: usize,
    /// The last lines of the log.
    pub(super) lines: VecDeque<String>,
}

/// What a run is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Activity {
    #[default]
    Training,
    Evaluating,
    /// Over the whole validation split, after the last step.
    EvaluatingFully,
}

/// Which text a number was measured on.
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
    /// What it is counted in; empty for a bare number.
    pub(super) unit: String,
    pub(super) train: Curve,
    pub(super) val: Curve,
}

/// A metric on one split: its latest value, and points of (step, value) to draw.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    pub(super) latest: Option<f64>,
    pub(super) points: Vec<(f64, f64)>,
    /// A value whose step is not known yet.
    unplaced: Option<f64>,
    /// Values whose mean will be the next point.
    gathered: Vec<(f64, f64)>,
    /// A point is the mean of two to the power of so many values.
    halvings: u32,
}

impl Board {
    /// A run begins or goes on.
    pub(super) fn started(&mut self, started: &Started) {
        self.title = format!("{} on {}", started.run_dir.display(), started.device);
        self.first_step = started.step;
        self.step = started.step;
        self.max_steps = started.max_steps;
    }

    /// Adds what the log says.
    pub(super) fn note(&mut self, text: &str) {
        self.lines.extend(text.lines().map(str::to_owned));
        let excess = self.lines.len().saturating_sub(MOST_LINES);
        self.lines.drain(..excess);
    }

    /// A metric will be measured.
    pub(super) fn register(&mut self, definition: MetricDefinition) {
        let unit = match definition.attributes {
            MetricAttributes::Numeric(numeric) => numeric.unit.unwrap_or_default(),
            MetricAttributes::None => return, // a text, of which there is no history
        };
        if self.metrics.iter().all(|known| known.id != definition.metric_id) {
            self.metrics.push(History {
                id: definition.metric_id,
                name: definition.name.to_string(),
                unit,
                train: Curve::default(),
                val: Curve::default(),
            });
        }
    }

    /// A metric was measured, at a step that [`Board::place`] tells. What is not a number has no place on a chart.
    pub(super) fn measured(&mut self, id: &MetricId, on: MeasuredOn, value: f64) {
        let metric = self.metrics.iter_mut().find(|metric| metric.id == *id);
        if let Some(metric) = metric.filter(|_| value.is_finite()) {
            let curve = match on {
                MeasuredOn::Train => &mut metric.train,
                MeasuredOn::Val => &mut metric.val,
            };
            curve.latest = Some(value);
            curve.unplaced = Some(value);
        }
    }

    /// What was measured last belongs to this step.
    pub(super) fn place(&mut self, step: usize) {
        for metric in &mut self.metrics {
            for curve in [&mut metric.train, &mut metric.val] {
                if let Some(value) = curve.unplaced.take() {
                    #[allow(clippy::cast_precision_loss, reason = "steps are below 2^52")]
                    curve.push((step as f64, value));
                }
            }
        }
    }

    /// Gives the chart to the metric so many places further down, from the last to the first.
    pub(super) fn select(&mut self, places: isize) {
        if let Some(n) = isize::try_from(self.metrics.len()).ok().filter(|n| *n > 0) {
            let to = self.selected.cast_signed() + places;
            self.selected = to.rem_euclid(n).cast_unsigned();
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

#[allow(clippy::cast_precision_loss, reason = "a handful of points")]
fn mean(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    (x / n, y / n)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use burn::train::metric::NumericAttributes;

    use super::*;

    /// A metric as burn-train registers it.
    pub(in super::super) fn definition(name: &str, unit: Option<&str>) -> MetricDefinition {
        MetricDefinition {
            metric_id: MetricId::new(Arc::new(name.to_owned())),
            name: Arc::new(name.to_owned()),
            description: None,
            attributes: MetricAttributes::Numeric(NumericAttributes {
                unit: unit.map(str::to_owned),
                higher_is_better: false,
            }),
        }
    }

    fn board() -> (Board, MetricId) {
        let mut board = Board::default();
        let loss = definition("loss", Some("nats/token"));
        board.register(loss.clone());
        board.register(loss.clone()); // once for each split
        assert_eq!(board.metrics.len(), 1);
        (board, loss.metric_id)
    }

    #[test]
    fn values_stand_at_the_step_that_is_told_after_them() {
        let (mut board, loss) = board();
        board.measured(&loss, MeasuredOn::Train, 4.0);
        board.place(10);
        board.measured(&loss, MeasuredOn::Train, 3.0);
        board.place(20);
        board.measured(&loss, MeasuredOn::Val, 3.5);
        board.place(20);
        board.measured(&loss, MeasuredOn::Train, f64::NAN);
        board.place(30);
        let metric = &board.metrics[0];
        assert_eq!(metric.train.points, [(10.0, 4.0), (20.0, 3.0)]);
        assert_eq!(metric.val.points, [(20.0, 3.5)]);
        assert_eq!((metric.train.latest, metric.val.latest), (Some(3.0), Some(3.5)));
    }

    #[test]
    fn a_long_history_becomes_coarser_and_keeps_its_shape() {
        let (mut board, loss) = board();
        for step in 0..100_000_u32 {
            board.measured(&loss, MeasuredOn::Train, 2.0 * f64::from(step));
            board.place(step as usize);
        }
        let points = &board.metrics[0].train.points;
        assert!((MOST_POINTS / 2..MOST_POINTS).contains(&points.len()));
        assert!(points.iter().all(|(x, y)| (y - 2.0 * x).abs() < 1e-6));
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(points[0].0 < 200.0 && points[points.len() - 1].0 > 99_700.0);
    }

    #[test]
    fn the_chart_goes_round_the_metrics() {
        let (mut board, _) = board();
        board.register(definition("speed", None));
        board.select(-1);
        assert_eq!(board.selected, 1);
        board.select(1);
        assert_eq!(board.selected, 0);
        let mut empty = Board::default();
        empty.select(1); // a key may be pressed before there is any
        assert_eq!(empty.selected, 0);
    }

    #[test]
    fn the_log_keeps_its_last_lines() {
        let mut board = Board::default();
        for i in 0..MOST_LINES {
            board.note(&format!("{i}\nand more"));
        }
        assert_eq!(board.lines.len(), MOST_LINES);
        assert_eq!(board.lines[0], "100");
    }
}
