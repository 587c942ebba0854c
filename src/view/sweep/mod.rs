//! The table of a sweep, and its page.

mod figures;
mod page;

pub use page::sweep_page;

use std::cmp::Ordering;
use std::iter;

use crate::format::{compact, counted, duration, grouped};
use crate::sweep::{Edge, Outcome, TrialRow};
use crate::view::terminal::table::table;

/// The table of a sweep: a line per setting, best first, and the importance of each key below.
pub fn sweep_table(outcome: &Outcome, n_columns: usize) -> String {
    let keys = outcome.keys.iter().map(|key| format!(" | >{}", name(key))).collect::<String>();
    let headings = format!("TRIAL{keys} | >PARAMS | >MS/STEP | >STEPS | >BITS/BYTE");
    let row = |row: &TrialRow| {
        let trial = if row.trial == 0 { "0, base".to_owned() } else { row.trial.to_string() };
        let numbers = [
            row.parameters.map(compact).unwrap_or_default(),
            row.step_ms.map(|ms| format!("{ms:.1}")).unwrap_or_default(),
            row.step.map(|step| grouped(step as u64)).unwrap_or_default(),
            loss(row),
        ];
        iter::once(trial).chain(row.values.iter().cloned()).chain(numbers).collect::<Vec<_>>()
    };
    let mut text = table(&headings, &outcome.trials.iter().map(row).collect::<Vec<_>>(), n_columns);
    let reason = |row: &TrialRow| Some(format!("trial {}: {}\n", row.trial, row.reason.as_ref()?));
    let reasons: String = outcome.trials.iter().filter_map(reason).collect();
    if !reasons.is_empty() {
        text += &format!("\n{reasons}");
    }
    let known = outcome.importance.iter().filter(|importance| importance.share.is_some());
    let lines: String = known.map(|it| format!("{:>7}  {}\n", it.percent(), it.key)).collect();
    if !lines.is_empty() {
        text += &format!("\nIMPORTANCE, by the ranks after {}\n{lines}", duration(outcome.plan.full_s));
    }
    let remarks = remarks(outcome);
    if !remarks.is_empty() {
        text += &format!("\n{}\n", remarks.join("\n"));
    }
    text
}

/// How the best setting and the base config compare, how much is chance, and where to search next.
fn remarks(outcome: &Outcome) -> Vec<String> {
    let mut remarks = Vec::new();
    let Some(best) = outcome.best() else { return remarks };
    if let Some(base) = outcome.base().filter(|base| base.trial != best.trial && base.bits_per_byte.is_some()) {
        let result =
            |row: &TrialRow| format!("{}, in {}", loss(row), counted(row.step.unwrap_or_default() as u64, "step"));
        let after = duration(outcome.plan.full_s);
        remarks.push(format!(
            "After {after} the best setting had {}, and the base config {}.",
            result(best),
            result(base)
        ));
    }
    let spread = |row: &TrialRow| row.seeds.map(|[low, high]| high - low);
    match outcome.trials.iter().filter_map(spread).reduce(f64::max) {
        Some(most) => remarks.push(format!("Seeds of one setting differ by up to {most:.4}.")),
        None => remarks.push("One seed each: --seeds 3 shows which differences are chance.".to_owned()),
    }
    for next in &outcome.next {
        let (name, space) = (name(&next.key), &next.space);
        let Some(edge) = next.edge else {
            remarks.push(format!("Around the best {name}: --space \"{space}\"."));
            continue;
        };
        let (most, end, beyond) = match edge {
            Edge::Lowest => ("lowest", "lower", Ordering::Less),
            Edge::Highest => ("highest", "upper", Ordering::Greater),
        };
        // A best value near the end of its range may have others beyond it.
        let at = outcome.keys.iter().position(|key| *key == next.key);
        let value = |row: &TrialRow| row.values[at?].parse::<f64>().ok();
        let is_beyond = |row: &TrialRow| value(row).zip(value(best)).is_some_and(|(a, b)| a.total_cmp(&b) == beyond);
        let place = match outcome.trials.iter().any(is_beyond) {
            true => format!("near the {end} end of its range"),
            false => format!("the {most} that was tried"),
        };
        remarks.push(format!("The best {name} is {place}: search --space \"{space}\" next."));
    }
    remarks
}

/// The key without its section.
fn name(key: &str) -> &str {
    key.split_once('.').map_or(key, |(_, name)| name)
}

/// The values of a setting, such as `mlp=swiglu learning_rate=0.003`; the base config is marked.
fn values(outcome: &Outcome, row: &TrialRow) -> String {
    let pairs = outcome.keys.iter().zip(&row.values).map(|(key, value)| format!("{}={value}", name(key)));
    let base = (row.trial == 0).then(|| "base:".to_owned());
    base.into_iter().chain(pairs).collect::<Vec<_>>().join(" ")
}

/// The loss; empty without a result.
fn loss(row: &TrialRow) -> String {
    row.bits_per_byte.map(|loss| format!("{loss:.4}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::sweep::{Group, Importance, NextRange, SweepPlan};

    fn outcome() -> Outcome {
        let row = |trial: usize, mlp: &str, loss: Option<f64>, reason: Option<&str>| TrialRow {
            trial,
            values: vec![mlp.to_owned(), "0.001".to_owned()],
            run: format!("runs/trial-{trial:03}").into(),
            parameters: Some(804_096),
            step_ms: Some(31.25),
            step: loss.map(|_| 300),
            bits_per_byte: loss,
            seeds: None,
            reason: reason.map(str::to_owned),
        };
        Outcome {
            sweep_dir: "sweeps/<my>".into(),
            keys: vec!["model.mlp".to_owned(), "optimizer.learning_rate".to_owned()],
            plan: SweepPlan { base_s: 120.0, full_s: 120.0, n_settings: 3, n_seeds: 1, jobs: 1 },
            unit: "bits per byte",
            trials: vec![
                row(2, "swiglu", Some(1.5), None),
                row(0, "gelu", Some(1.75), None),
                row(1, "<b>", None, Some("the loss of step 7 is NaN")),
            ],
            importance: vec![Importance {
                key: "model.mlp".to_owned(),
                share: Some(0.625),
                groups: vec![Group { values: "<b>".to_owned(), n_trials: 1, bits_per_byte: None }],
            }],
            next: vec![NextRange {
                key: "optimizer.learning_rate".to_owned(),
                edge: Some(Edge::Highest),
                space: "optimizer.learning_rate=log(1e-3..1e-1)".to_owned(),
            }],
            best_trial: Some(2),
            best_toml: Some("a = \"<b>\"".to_owned()),
        }
    }

    #[test]
    fn table_ranks_settings_and_keys() {
        assert_snapshot!(sweep_table(&outcome(), 100), @r#"
        TRIAL       mlp  learning_rate  PARAMS  MS/STEP  STEPS  BITS/BYTE
        2        swiglu          0.001    804K     31.2    300     1.5000
        0, base    gelu          0.001    804K     31.2    300     1.7500
        1           <b>          0.001    804K     31.2

        trial 1: the loss of step 7 is NaN

        IMPORTANCE, by the ranks after 2 min 0 s
         62.5 %  model.mlp

        After 2 min 0 s the best setting had 1.5000, in 300 steps, and the base config 1.7500, in 300 steps.
        One seed each: --seeds 3 shows which differences are chance.
        The best learning_rate is the highest that was tried: search --space "optimizer.learning_rate=log(1e-3..1e-1)" next.
        "#);
    }

    #[test]
    fn value_is_called_highest_only_if_no_higher_one_was_tried() {
        for (others, said) in [
            (["0.00801", "0.00992"], "near the upper end of its range"),
            (["0.004", "0.0012"], "the highest that was tried"),
        ] {
            let mut outcome = outcome();
            for (row, value) in outcome.trials.iter_mut().zip(iter::once("0.00721").chain(others)) {
                value.clone_into(&mut row.values[1]);
            }
            let table = sweep_table(&outcome, 100);
            assert!(table.contains(&format!("The best learning_rate is {said}: search")), "{table}");
        }
    }

    #[test]
    fn page_shows_curves_and_escapes_values() {
        let curves = [vec![(40.0, 1.9), (120.0, 1.5)], vec![(40.0, 1.75)], Vec::new()];
        let html = sweep_page(&outcome(), &curves);
        assert!(!html.contains("<b>") && !html.contains("NaN\""), "{html}");
        assert_eq!(html.matches("<path class=\"line series-").count(), 2 * 3, "legend and chart");
        assert_eq!(html.matches(" r=\"4\"><title>").count(), 2 * 2, "settings with a loss, by key");
        assert!(
            html.contains("\"name\":\"mlp=swiglu learning_rate=0.001\"") && !html.contains("trial 2"),
            "by settings"
        );
        assert!(html.contains("[[40.0,1.9],[120.0,1.5]]") && html.contains("data-x=\"0 120 "), "in seconds, and whole");
        assert!(html.contains("the highest that was tried") && html.contains("After 2 min 0 s the best"));
        for heading in ["What was found", "Settings", "Curves", "Each key", "Importance", "The best config"] {
            assert!(html.contains(&format!("<h2>{heading}</h2>")), "{heading}");
        }
        assert!(!sweep_page(&outcome(), &[Vec::new(), Vec::new(), Vec::new()]).contains("<h2>Curves"));
    }
}
