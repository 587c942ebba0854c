//! The charts that every run has: its losses and its learning rate.

use crate::draw::{Chart, Series};
use crate::run::Curves;

/// Losses above this many times the first are drawn at the upper edge: an explosion would hide everything else.
const MOST_GROWTH: f64 = 4.0;

/// The losses: means over the log intervals for training, and the estimates for validation, the best one marked.
pub(super) fn losses(curves: &Curves, best_step: Option<u64>) -> Chart {
    let train = curves.column("train_loss");
    let validation = curves.column("val_loss_estimate");
    let best = validation.iter().find(|(step, _)| Some(*step) == best_step);
    let mark = best.map(|&point| (point, format!("best {:.4}", point.1)));
    let first = train.first().into_iter().chain(validation.first());
    let first = first.map(|point| point.1).fold(0.0, f64::max);
    Chart {
        title: ["Loss", "nats per token"],
        series: vec![
            Series { name: "training", class: "train", points: train, has_dots: false },
            Series { name: "validation (estimates)", class: "validation", points: validation, has_dots: true },
        ],
        mark,
        from_zero: false,
        ceiling: if first > 0.0 { MOST_GROWTH * first } else { f64::INFINITY },
        decimals: Some(4),
    }
}

/// The learning rate of each log interval's last step.
pub(super) fn learning_rate(curves: &Curves) -> Chart {
    Chart {
        title: ["Learning rate", "by step"],
        series: vec![Series {
            name: "learning rate",
            class: "rate",
            points: curves.column("learning_rate"),
            has_dots: false,
        }],
        mark: None,
        from_zero: true,
        ceiling: f64::INFINITY,
        decimals: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn curves(rows: &[serde_json::Value]) -> Curves {
        let rows: Vec<Map<_, _>> = rows.iter().map(|row| row.as_object().unwrap().clone()).collect();
        Curves { rows, ..Curves::default() }
    }

    #[test]
    fn the_best_evaluation_is_marked() {
        let curves = curves(&[
            json!({"step": 10, "train_loss": 3.0}),
            json!({"step": 20, "train_loss": 2.0, "val_loss_estimate": 2.25}),
            json!({"step": 30, "val_loss_estimate": 2.5}),
        ]);
        let chart = losses(&curves, Some(20));
        assert_eq!(chart.mark.expect("a mark").1, "best 2.2500");
        assert_eq!(chart.series[0].points, [(10, 3.0), (20, 2.0)]);
        assert!(losses(&curves, Some(10)).mark.is_none(), "no evaluation");
        assert!(losses(&curves, None).mark.is_none());
    }

    #[test]
    fn an_explosion_does_not_hide_what_came_before() {
        let curves = curves(&[
            json!({"step": 1, "train_loss": 4.0}),
            json!({"step": 2, "train_loss": 15.0}),
            json!({"step": 3, "train_loss": 1e30}),
        ]);
        let chart = losses(&curves, None);
        assert!((chart.ceiling - 16.0).abs() < 1e-12 && chart.is_cut());
    }

    #[test]
    fn a_run_without_logs_has_empty_charts() {
        let nothing = Curves::default();
        assert!(losses(&nothing, None).is_empty() && learning_rate(&nothing).is_empty());
    }
}
