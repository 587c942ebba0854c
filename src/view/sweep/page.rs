//! The page of a sweep.

use super::{figures, loss, name, remarks, values};
use crate::format::{duration, grouped, milliseconds, percent};
use crate::sweep::{Group, Importance, Outcome};
use crate::view::escape::escape;
use crate::view::html::curves::curves as curves_section;
use crate::view::html::{Fragment, page};
use crate::view::sheet::html::sheet_fragment;
use crate::view::sheet::{Cell, ColorScale, ColumnKind, Figure, Grid, Sheet};
use crate::view::svg::chart::{Chart, SECONDS, Series, ranked_class};
use crate::view::svg::plot;

const STYLE: &str = include_str!("../assets/sweep.css");
const SCRIPT: &str = include_str!("../assets/sweep.js");

/// The page of a sweep. `curves` has those of the trials, in order: seconds of training, and losses.
pub fn sweep_page(outcome: &Outcome, curves: &[Vec<(f64, f64)>]) -> String {
    let best = outcome.best().map(|best| format!("{}: {} {}", values(outcome, best), loss(best), outcome.unit));
    let lead = format!(
        "{} settings of {}. {}",
        outcome.trials.len(),
        outcome.sweep_dir.display(),
        best.map_or_else(|| "None was trained.".to_owned(), |best| format!("The best: {best}."))
    );
    let styles = &[plot::STYLE, plot::FIGURE_STYLE, STYLE];
    let section = |body: String| Fragment { body, ..Fragment::empty("sweep", styles, &[SCRIPT]) };
    let found: String = remarks(outcome).iter().map(|remark| format!("<p>{}</p>\n", escape(remark))).collect();
    let mut sections = Vec::new();
    if !found.is_empty() {
        sections.push(("What was found", section(found)));
    }
    sections.extend(curves_section(&[chart(outcome, curves)], Some("")).map(|curves| ("Curves", curves)));
    let scatters = figures::scatters(outcome);
    if !scatters.is_empty() {
        sections.push(("Each key", section(scatters)));
    }
    sections.push(("Importance", sheet_fragment(&importance(&outcome.importance, outcome.unit))));
    sections.push(("Settings", section(settings(outcome))));
    if let Some(toml) = &outcome.best_toml {
        let toml = escape(toml);
        let config = format!("<details>\n<summary>Show it</summary>\n<pre tabindex=\"0\">{toml}</pre>\n</details>");
        sections.push(("The best config", section(config)));
    }
    page("Sweep", "", &lead, &sections)
}

/// The losses over training time: the best settings are coloured, and no curve is cut.
fn chart(outcome: &Outcome, curves: &[Vec<(f64, f64)>]) -> Chart {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
    let in_ms = |curve: &[(f64, f64)]| curve.iter().map(|(s, loss)| ((s * 1e3).round() as u64, *loss)).collect();
    let series = outcome.trials.iter().zip(curves).enumerate().map(|(at, (row, curve))| Series {
        has_dots: true,
        ..Series::new(&values(outcome, row), ranked_class(at, outcome.trials.len()), in_ms(curve))
    });
    let about = format!("{}, by seconds of training steps", outcome.unit);
    Chart {
        across: SECONDS,
        is_ranked: true,
        is_logarithmic: true,
        ..Chart::new("loss", ["Validation loss", &about], series.rev().collect())
    }
}

fn settings(outcome: &Outcome) -> String {
    let keys: String = outcome.keys.iter().map(|key| format!("<th>{}</th>", escape(key))).collect();
    let rows = outcome.trials.iter().map(|row| {
        let values: String = row.values.iter().map(|value| format!("<td>{}</td>", escape(value))).collect();
        let seeds = row.seeds.map(|[low, high]| format!("<small>{low:.4} to {high:.4}</small>")).unwrap_or_default();
        let reason = row.reason.as_ref().map(|why| format!("<small>{}</small>", escape(why))).unwrap_or_default();
        format!(
            "<tr><th>{}</th>{values}<td>{}</td><td>{}</td><td>{}</td><td>{}{seeds}{reason}</td></tr>\n",
            if row.trial == 0 { "0, base".to_owned() } else { row.trial.to_string() },
            row.parameters.map(grouped).unwrap_or_default(),
            row.step_ms.map(milliseconds).unwrap_or_default(),
            row.step.map(|step| grouped(step as u64)).unwrap_or_default(),
            loss(row),
        )
    });
    let unit = outcome.unit;
    format!(
        "<p>Ranked by validation loss in {unit} after {} of training steps.</p>\n\
         <div class=\"wide-table\" role=\"region\" aria-label=\"The settings\" tabindex=\"0\"><table>\n\
         <tr><th>trial</th>{keys}<th>parameters</th><th>step</th><th>steps</th><th>{unit}</th></tr>\n\
         {}</table></div>\n",
        duration(outcome.plan.full_s),
        rows.collect::<String>()
    )
}

/// The share of each key as bars, and the mean loss of each group of its values.
fn importance(keys: &[Importance], unit: &str) -> Sheet {
    let shares = keys.iter().filter_map(|it| Some((it.key.clone(), it.share?))).collect();
    let groups: Vec<(&str, &Group)> =
        keys.iter().flat_map(|it| it.groups.iter().map(move |group| (&*it.key, group))).collect();
    let losses: Vec<f64> = groups.iter().filter_map(|(_, group)| group.bits_per_byte).collect();
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    let cell = |row: usize, _| {
        let (key, group) = groups[row];
        let loss = group.bits_per_byte?;
        Some(Cell::new(mean - loss, format!("{loss:.4}"), format!("{key} = {}", group.label())))
    };
    let rows = groups.iter().map(|(key, group)| format!("{} = {}", name(key), group.values)).collect();
    let scale = ColorScale::signed(losses.iter().map(|loss| mean - loss));
    let grid = Grid::new(rows, vec![unit.to_owned()], ColumnKind::Named, scale, cell);
    Sheet {
        heading: "Importance".to_owned(),
        lead: "The share of the variance of the ranks that the values of a key explain, beyond what chance would (the \
               effect size of Kruskal and Wallis's test). Settings that failed rank last."
            .to_owned(),
        figures: vec![
            Figure::bars("The share of each key", shares, percent),
            Figure::grid(
                "The mean loss of the settings with these values; the colour is its distance below the mean",
                grid,
            ),
        ],
    }
}
