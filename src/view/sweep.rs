//! The table and the page of a sweep.

use crate::format::{compact, duration, grouped, milliseconds, percent, whole};
use crate::sweep::{Importance, Outcome, Row};
use crate::view::svg::plot::{self, N_SERIES, Plot, Size, legend_entry, series_of};
use crate::view::terminal::table::table;
use crate::view::{self, Fragment, escape, page};

const STYLE: &str = include_str!("assets/sweep.css");

/// The number of curves with a separate colour and a name.
const NAMED: usize = N_SERIES;

/// The multiple of the best loss above which losses are drawn at the upper edge.
const CEILING: f64 = 2.0;

/// The table of a sweep: a line per setting, best first, and the importance of each key below.
#[must_use]
pub fn sweep_table(outcome: &Outcome, n_columns: usize) -> String {
    let headings = "SETTING | >TRIAL | >PARAMS | >MS/STEP | >STEPS | >AFTER | >BITS/BYTE";
    let row = |row: &Row| {
        [
            values(outcome, row),
            row.trial.to_string(),
            row.parameters.map(compact).unwrap_or_default(),
            row.step_ms.map(|ms| format!("{ms:.1}")).unwrap_or_default(),
            row.step.map(|step| grouped(step as u64)).unwrap_or_default(),
            after(outcome, row),
            loss(outcome, row),
        ]
    };
    let mut text = table(headings, &outcome.trials.iter().map(row).collect::<Vec<_>>(), n_columns);
    let reason = |row: &Row| Some(format!("trial {}: {}\n", row.trial, row.reason.as_ref()?));
    let reasons: String = outcome.trials.iter().filter_map(reason).collect();
    if !reasons.is_empty() {
        text += &format!("\n{reasons}");
    }
    let known = outcome.importance.iter().filter(|importance| importance.share.is_some());
    let lines: String = known.map(|it| format!("{:>7}  {}\n", it.percent(), it.key)).collect();
    if !lines.is_empty() {
        text += &format!("\nIMPORTANCE, by the ranks after {}\n{lines}", duration(outcome.rungs_s[0]));
    }
    text
}

/// The values of a setting, such as `mlp=swiglu learning_rate=0.003`; the base config is marked.
fn values(outcome: &Outcome, row: &Row) -> String {
    let name = |key: &str| key.split_once('.').map_or(key, |(_, name)| name).to_owned();
    let pairs = outcome.keys.iter().zip(&row.values).map(|(key, value)| format!("{}={value}", name(key)));
    let base = (row.trial == 0).then(|| "base:".to_owned());
    base.into_iter().chain(pairs).collect::<Vec<_>>().join(" ")
}

fn after(outcome: &Outcome, row: &Row) -> String {
    row.rung.map(|rung| duration(outcome.rungs_s[rung])).unwrap_or_default()
}

/// The bits per byte; those of an early rung are an estimate.
fn loss(outcome: &Outcome, row: &Row) -> String {
    let is_estimate = row.rung.is_some_and(|rung| rung + 1 < outcome.course.n_rungs);
    row.bits_per_byte.map(|loss| view::loss(loss, is_estimate)).unwrap_or_default()
}

/// The page of a sweep. `curves` has those of the trials, in order: seconds of training, and bits per byte.
pub fn sweep_page(outcome: &Outcome, curves: &[Vec<(f64, f64)>]) -> String {
    let best = outcome.best().map(|best| format!("{}: {} bits per byte", values(outcome, best), loss(outcome, best)));
    let lead = format!(
        "{} settings of {}. {}",
        outcome.trials.len(),
        outcome.sweep_dir.display(),
        best.map_or_else(|| "None was trained.".to_owned(), |best| format!("The best: {best}."))
    );
    let styles = &[plot::STYLE, plot::FIGURE_STYLE, STYLE];
    let section = |body: String| Fragment { body, ..Fragment::empty("sweep", styles, &[]) };
    let mut sections = vec![("Settings", section(settings(outcome)))];
    sections.extend(figure(outcome, curves).map(|figure| ("Curves", section(figure))));
    sections.push(("Importance", section(importance(&outcome.importance))));
    if let Some(toml) = &outcome.best_toml {
        sections.push(("The best config", section(format!("<pre tabindex=\"0\">{}</pre>", escape(toml)))));
    }
    page("Sweep", &lead, &sections)
}

fn settings(outcome: &Outcome) -> String {
    let keys: String = outcome.keys.iter().map(|key| format!("<th>{}</th>", escape(key))).collect();
    let rows = outcome.trials.iter().map(|row| {
        let values: String = row.values.iter().map(|value| format!("<td>{}</td>", escape(value))).collect();
        let seeds = row.seeds.map(|[low, high]| format!("<small>{low:.4} to {high:.4}</small>")).unwrap_or_default();
        let reason = row.reason.as_ref().map(|why| format!("<small>{}</small>", escape(why))).unwrap_or_default();
        format!(
            "<tr><th>{}</th>{values}<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}{seeds}{reason}</td></tr>\n",
            if row.trial == 0 { "0, base".to_owned() } else { row.trial.to_string() },
            row.parameters.map(grouped).unwrap_or_default(),
            row.step_ms.map(milliseconds).unwrap_or_default(),
            row.step.map(|step| grouped(step as u64)).unwrap_or_default(),
            after(outcome, row),
            loss(outcome, row),
        )
    });
    format!(
        "<p>Ranked by validation loss in bits per byte after the same time of training steps; those that were trained \
         for longer come first. ~ marks an estimate, as during every run.</p>\n\
         <div class=\"wide-table\" role=\"region\" aria-label=\"The settings\" tabindex=\"0\"><table>\n\
         <tr><th>trial</th>{keys}<th>parameters</th><th>step</th><th>steps</th><th>after</th><th>bits per byte</th>\
         </tr>\n{}</table></div>\n",
        rows.collect::<String>()
    )
}

/// The curves over training time; the best are coloured. `None` if no run was evaluated.
fn figure(outcome: &Outcome, curves: &[Vec<(f64, f64)>]) -> Option<String> {
    let points = || curves.iter().flatten();
    let longest_s = points().map(|point| point.0).fold(0.0, f64::max);
    let lowest = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
    if !(longest_s > 0.0 && lowest.is_finite()) {
        return None;
    }
    // Plots use integer steps.
    let (unit, in_units) = if longest_s >= 100.0 { ("seconds", 1.0) } else { ("milliseconds", 1e3) };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
    let scaled = |curve: &Vec<(f64, f64)>| -> Vec<plot::Point> {
        curve.iter().map(|(s, loss)| ((s * in_units).round() as u64, *loss)).collect()
    };
    let high = points().map(|point| point.1).fold(lowest, f64::max).min(CEILING * lowest);
    let margin = 0.05 * (high - lowest).max(0.01);
    let n_named = curves.len().min(NAMED);
    let class = |at: usize| match at < n_named {
        true => format!("line series-{}", series_of(at, n_named)),
        false => "line train".to_owned(),
    };
    let label = "Validation loss, bits per byte";
    let svg = |size: Size, pixels: [f64; 2]| {
        let plot = Plot::new(pixels, 48.0, [0.0, longest_s * in_units], [lowest - margin, high + margin]);
        let mut body = plot.axes();
        for (at, curve) in curves.iter().enumerate().rev().filter(|(_, curve)| !curve.is_empty()) {
            let name = escape(&values(outcome, &outcome.trials[at]));
            let path = plot.path(&scaled(curve));
            body += &format!("<path class=\"{}\" d=\"{path}\"><title>{name}</title></path>\n", class(at));
        }
        plot::in_page(size, pixels, label, "", &body)
    };
    let named = outcome.trials.iter().enumerate().take(n_named).filter(|(at, _)| !curves[*at].is_empty());
    let legend: String = named.map(|(at, row)| legend_entry(&class(at), &format!("trial {}", row.trial))).collect();
    Some(format!(
        "<figure>\n<figcaption><span class=\"what\">{label}<span class=\"unit\">by {unit} of training steps</span></span>\
         <span class=\"legend\">{legend}</span></figcaption>\n{}{}</figure>\n",
        svg(Size::Wide, [880.0, 300.0]),
        svg(Size::Narrow, [340.0, 230.0])
    ))
}

fn importance(keys: &[Importance]) -> String {
    let rows = keys.iter().map(|it| {
        let share = it.share.unwrap_or_default();
        let groups: Vec<String> = it.groups.iter().map(|group| escape(&group.label())).collect();
        format!(
            "<tr><th>{}</th><td>{}</td><td><svg class=\"bar\" viewBox=\"0 0 100 8\" role=\"img\" aria-label=\"{}\">\
             <rect width=\"{}\" height=\"8\"/></svg></td><td>{}</td></tr>\n",
            escape(&it.key),
            it.share.map_or_else(|| "-".to_owned(), percent),
            percent(share),
            whole(100.0 * share),
            groups.join("<br>")
        )
    });
    format!(
        "<p>The share of the variance of the ranks in the first rung that the values of a key explain, beyond what \
         chance would (the effect size of Kruskal and Wallis's test). Settings that failed rank last. To the right, the \
         mean bits per byte of each group of values there, and the number of its settings.</p>\n\
         <div class=\"wide-table\" role=\"region\" aria-label=\"The importance of keys\" tabindex=\"0\"><table>\n{}\
         </table></div>\n",
        rows.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::sweep::{Course, Group};

    fn outcome() -> Outcome {
        let row = |trial: usize, mlp: &str, rung: Option<usize>, loss: Option<f64>, reason: Option<&str>| Row {
            trial,
            values: vec![mlp.to_owned(), "0.001".to_owned()],
            run: format!("runs/trial-{trial:03}").into(),
            parameters: Some(804_096),
            step_ms: Some(31.25),
            rung,
            step: rung.map(|rung| [100, 300][rung]),
            bits_per_byte: loss,
            seeds: None,
            reason: reason.map(str::to_owned),
        };
        Outcome {
            sweep_dir: "sweeps/<my>".into(),
            keys: vec!["model.mlp".to_owned(), "optimizer.learning_rate".to_owned()],
            course: Course { base_s: 120.0, full_s: 120.0, n_settings: 3, n_rungs: 2, n_seeds: 1, jobs: 1 },
            rungs_s: vec![40.0, 120.0],
            trials: vec![
                row(2, "swiglu", Some(1), Some(1.5), None),
                row(0, "gelu", Some(0), Some(1.75), None),
                row(1, "<b>", None, None, Some("the loss of step 7 is NaN")),
            ],
            importance: vec![Importance {
                key: "model.mlp".to_owned(),
                share: Some(0.625),
                groups: vec![Group { values: "<b>".to_owned(), n_trials: 1, bits_per_byte: None }],
            }],
            best_trial: Some(2),
            best_toml: Some("a = \"<b>\"".to_owned()),
        }
    }

    #[test]
    fn the_table_ranks_settings_and_keys() {
        assert_snapshot!(sweep_table(&outcome(), 100), @r"
        SETTING                             TRIAL  PARAMS  MS/STEP  STEPS      AFTER  BITS/BYTE
        mlp=swiglu learning_rate=0.001          2    804K     31.2    300  2 min 0 s     1.5000
        base: mlp=gelu learning_rate=0.001      0    804K     31.2    100     40.0 s    ~1.7500
        mlp=<b> learning_rate=0.001             1    804K     31.2

        trial 1: the loss of step 7 is NaN

        IMPORTANCE, by the ranks after 40.0 s
         62.5 %  model.mlp
        ");
    }

    #[test]
    fn the_page_shows_curves_and_no_markup_from_elsewhere() {
        let curves = [vec![(40.0, 1.9), (120.0, 1.5)], vec![(40.0, 1.75)], Vec::new()];
        let html = sweep_page(&outcome(), &curves);
        assert!(!html.contains("<b>") && !html.contains("NaN\""), "{html}");
        assert_eq!(html.matches("<path class=\"line ").count(), 3 * 2, "two curves in the legend, wide and narrow");
        for heading in ["Settings", "Curves", "Importance", "The best config"] {
            assert!(html.contains(&format!("<h2>{heading}</h2>")), "{heading}");
        }
        assert!(!sweep_page(&outcome(), &[Vec::new(), Vec::new(), Vec::new()]).contains("<h2>Curves"));
    }
}
