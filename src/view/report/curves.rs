//! The charts of every run: its losses, and small ones of learning rate, gradients and speed.

use std::collections::BTreeMap;

use crate::run::{Curves, RunInfo};
use crate::view::svg::chart::{Chart, Series};
use crate::view::svg::plot::{N_SERIES, Point, spread};

/// The multiple of the first loss above which losses are drawn at the upper edge: an explosion would flatten everything
/// else.
const MOST_GROWTH: f64 = 4.0;

/// The losses: means over the log intervals for training, and estimates for validation. The mark is the headline number
/// of the report: over the whole validation split, once that is known.
pub(super) fn losses(curves: &Curves, facts: &RunInfo) -> Chart {
    let train = curves.column("train_loss");
    let validation = curves.column("val_loss_estimate");
    let best = facts.best_step.zip(facts.val_loss);
    let label = |loss: f64| match facts.is_estimate {
        true => format!("best ~{loss:.4}, an estimate"),
        false => format!("best {loss:.4}, whole split"),
    };
    let mark = best.map(|point| (point, label(point.1)));
    let first = train.first().into_iter().chain(validation.first());
    let first = first.map(|point| point.1).fold(0.0, f64::max);
    let training = Series { progress: progress(curves), ..Series::new("training", "train".to_owned(), train) };
    let validation = Series {
        has_dots: true,
        progress: progress(curves),
        ..Series::new("validation (estimates)", "validation".to_owned(), validation)
    };
    Chart {
        mark,
        ceiling: if first > 0.0 { MOST_GROWTH * first } else { f64::INFINITY },
        ..Chart::new("loss", ["Loss", facts.loss_unit()], vec![training, validation])
    }
}

/// Tokens read and seconds of training steps at each step of the log.
fn progress(curves: &Curves) -> Vec<(u64, [f64; 2])> {
    let seconds: BTreeMap<u64, f64> = curves.column("train_s").into_iter().collect();
    let both = |(step, tokens): (u64, f64)| Some((step, [tokens, *seconds.get(&step)?]));
    curves.column("tokens").into_iter().filter_map(both).collect()
}

/// A column of a run's log as a small chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub id: &'static str,
    pub title: [&'static str; 2],
    /// Its key in the log.
    pub key: &'static str,
    pub decimals: Option<u8>,
}

pub(super) const LEARNING_RATE: Column =
    Column { id: "rate", title: ["Learning rate", "by step"], key: "learning_rate", decimals: None };

pub(super) const VALIDATION_LOSS: Column = Column {
    id: "loss",
    title: ["Validation loss", "bits per byte, estimates"],
    key: "val_bits_per_byte_estimate",
    decimals: Some(4),
};

pub(super) const TRAINING_LOSS: Column =
    Column { id: "training", title: ["Training loss", "nats per token"], key: "train_loss", decimals: Some(4) };

pub(super) const GRADIENT_NORM: Column =
    Column { id: "gradients", title: ["Gradient norm", "before clipping"], key: "gradient_norm", decimals: Some(3) };

pub(super) const SPEED: Column =
    Column { id: "speed", title: ["Speed", "tokens per second"], key: "tokens_per_s", decimals: Some(0) };

pub(super) const ACCURACY: Column = Column {
    id: "accuracy",
    title: ["Preferences learned", "share of validation pairs"],
    key: "val_accuracy_estimate",
    decimals: Some(2),
};

pub(super) const MARGIN: Column = Column {
    id: "margin",
    title: ["Margin of preferences", "difference of the rewards"],
    key: "val_margin_estimate",
    decimals: Some(4),
};

/// The gradient norm of each layer of a run, as curves of one chart; of a deep model only some of the layers.
pub(super) fn gradient_norms(curves: &Curves) -> Chart {
    let layers = curves.gradient_norms();
    let shown = spread(layers.len(), N_SERIES);
    let rest =
        if shown.len() < layers.len() { format!(", of {} of {}", shown.len(), layers.len()) } else { String::new() };
    let series = shown.iter().enumerate().map(|(at, layer)| {
        let (name, points) = &layers[*layer];
        ((*name).to_owned(), format!("series-{at}"), points.clone(), curves)
    });
    Chart {
        title: [format!("Gradient norm by layer{rest}"), GRADIENT_NORM.title[1].to_owned()],
        is_logarithmic: true,
        ..chart("gradients-by-layer", series)
    }
}

impl Column {
    /// A chart of this column, with the name, the CSS class and the log of each curve.
    pub fn chart<'a>(self, curves: impl IntoIterator<Item = (String, String, &'a Curves)>) -> Chart {
        let Self { id, title, key, decimals } = self;
        let series = curves.into_iter().map(|(name, class, curves)| (name, class, curves.column(key), curves));
        Chart { title: title.map(str::to_owned), decimals, ..chart(id, series) }
    }

    pub fn single(self, curves: &Curves) -> Chart {
        self.chart([(self.title[0].to_lowercase(), "rate".to_owned(), curves)])
    }
}

/// A chart without a title, from 0, with the name, the CSS class, the points and the log of each curve.
fn chart<'a>(id: &str, curves: impl IntoIterator<Item = (String, String, Vec<Point>, &'a Curves)>) -> Chart {
    let series = curves.into_iter().map(|(name, class, points, curves)| Series {
        progress: progress(curves),
        ..Series::new(&name, class, points)
    });
    Chart { decimals: GRADIENT_NORM.decimals, ..Chart::from_zero(id, series.collect()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::terminal::runs::log_row;

    fn curves(rows: &[serde_json::Value]) -> Curves {
        Curves { rows: rows.iter().cloned().map(log_row).collect(), ..Curves::default() }
    }

    /// A run with only its best number known.
    fn facts(best: Option<(u64, f64)>, is_estimate: bool) -> RunInfo {
        RunInfo {
            val_loss: best.map(|best| best.1),
            is_estimate,
            best_step: best.map(|best| best.0),
            ..RunInfo::default()
        }
    }

    #[test]
    fn mark_says_whole_split_or_estimate() {
        let curves = curves(&[
            json!({"step": 10, "train_loss": 3.0}),
            json!({"step": 20, "train_loss": 2.0, "val_loss_estimate": 2.25}),
            json!({"step": 30, "val_loss_estimate": 2.5, "val_loss": 2.125, "best_step": 20}),
        ]);
        let mark = |facts| losses(&curves, &facts).mark;
        assert_eq!(mark(facts(Some((20, 2.125)), false)), Some(((20, 2.125), "best 2.1250, whole split".to_owned())));
        assert_eq!(mark(facts(Some((20, 2.25)), true)), Some(((20, 2.25), "best ~2.2500, an estimate".to_owned())));
        assert_eq!(mark(facts(None, false)), None, "no evaluation");
    }

    #[test]
    fn ceiling_hides_explosions() {
        let curves = curves(&[
            json!({"step": 1, "train_loss": 4.0}),
            json!({"step": 2, "train_loss": 15.0}),
            json!({"step": 3, "train_loss": 1e30}),
        ]);
        let chart = losses(&curves, &facts(None, false));
        assert!((chart.ceiling - 16.0).abs() < 1e-12 && chart.is_cut());
    }
}
