//! A plan as pictures: memory by part, the schedule, and time.

use crate::config::Config;
use crate::format::{counted, duration, grouped, size};
use crate::optimizer::learning_rate;
use crate::plan::{Memory, Plan, Time};
use crate::view::sheet::{Content, Figure, Sheet};
use crate::view::svg::chart::{Chart, Series};
use crate::view::svg::plot::{N_SERIES, spread};

/// The most points of the schedule.
const MOST_POINTS: usize = 400;

/// The memory at its peak, the learning rate of every step, and the time of every activity, if it was measured.
#[must_use]
pub fn plan_sheets(plan: &Plan, config: &Config) -> Vec<Sheet> {
    let mut sheets = vec![memory(plan), schedule(plan, config)];
    sheets.extend(plan.time.as_ref().map(|it| time(it, plan)));
    sheets
}

fn memory(plan: &Plan) -> Sheet {
    let Memory { peak, peak_during, parts, kept_for_backward, machine, .. } = plan.memory;
    let known = parts.into_iter().filter(|(_, bytes)| *bytes > 0);
    let rows = known.map(|(name, bytes)| (name.replace('_', " "), bytes as f64)).collect();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of bytes")]
    let label = |bytes: f64| size(bytes as u64);
    let machine = machine.map_or_else(String::new, |machine| {
        format!(" The machine has {}, of which {} are free now.", size(machine.total), size(machine.available))
    });
    Sheet {
        heading: "Memory".to_owned(),
        lead: format!(
            "{} at most, during {peak_during}; {} are kept for the backward pass.{machine}",
            size(peak),
            size(kept_for_backward)
        ),
        figures: vec![Figure::bars("By part, at the peak", rows, label)],
    }
}

fn schedule(plan: &Plan, config: &Config) -> Sheet {
    let (run, peak) = (&plan.run, config.optimizer.learning_rate);
    let n_steps = config.train.max_steps;
    let rate = |step: usize| (step as u64 + 1, learning_rate(&config.schedule, peak, step, n_steps));
    let points = spread(n_steps, MOST_POINTS).into_iter().map(rate).collect();
    let epochs = run.epochs.map_or_else(String::new, |epochs| format!(", {epochs:.1} times the training text"));
    let curve = Series::new("learning rate", format!("series-{}", N_SERIES - 1), points);
    Sheet {
        heading: "Schedule".to_owned(),
        lead: format!(
            "{} of {} tokens: {} tokens{epochs}. {} and {}.",
            counted(run.steps, "step"),
            grouped(run.tokens_per_step),
            grouped(run.tokens),
            counted(run.evaluations, "evaluation"),
            counted(run.checkpoints, "checkpoint")
        ),
        figures: vec![Figure::new(
            "Learning rate, by step",
            Content::Charts(vec![Chart::from_zero("schedule", vec![curve])]),
        )],
    }
}

fn time(time: &Time, plan: &Plan) -> Sheet {
    let rows = [
        ("training", time.steps_s),
        ("evaluations", time.evaluations_s),
        ("the last evaluation", time.last_evaluation_s),
        ("samples", time.samples_s),
        ("checkpoints", time.checkpoints_s),
    ];
    let rows = rows.into_iter().filter(|(_, s)| *s > 0.0).map(|(name, s)| (name.to_owned(), s)).collect();
    Sheet {
        heading: "Time".to_owned(),
        lead: format!(
            "{} on {}, at {} tokens per second. Measured: {}.",
            duration(time.total_s),
            plan.device,
            crate::format::whole(time.tokens_per_s),
            time.measured.how
        ),
        figures: vec![Figure::bars("By activity", rows, duration)],
    }
}
