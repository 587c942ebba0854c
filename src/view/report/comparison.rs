//! Several runs on one page: their numbers, their overlaid curves, their samples, and their differing settings.

use super::curves::{Column, GRADIENT_NORM, LEARNING_RATE, SPEED, TRAINING_LOSS, VALIDATION_LOSS};
use super::numbers::median;
use super::{Report, ReportError};
use crate::format::{compact, duration, grouped, whole};
use crate::run::{self, Difference, RunDir, RunInfo};
use crate::view::escape::escape;
use crate::view::html::curves::curves;
use crate::view::html::{Fragment, page};
use crate::view::svg::chart::{Chart, ranked_class};
use crate::view::svg::plot;
use crate::view::terminal::runs::{marked_loss, run_names};

const STYLE: &str = include_str!("../assets/comparison.css");

/// The contents of a page about several runs, best first.
#[derive(Clone, Debug)]
pub struct Comparison {
    reports: Vec<Report>,
    differences: Vec<Difference>,
}

impl Comparison {
    /// Reads the files of these runs, as far as they exist.
    ///
    /// # Errors
    /// If a run's config or one of its logs cannot be read.
    pub fn read(runs: &[RunDir]) -> Result<Self, ReportError> {
        let reports = runs.iter().map(Report::read).collect::<Result<Vec<_>, _>>()?;
        let mut order: Vec<usize> = (0..runs.len()).collect();
        let bits = |at: &usize| reports[*at].facts.val_bits_per_byte.unwrap_or(f64::INFINITY);
        order.sort_by(|a, b| bits(a).total_cmp(&bits(b)));
        let sorted: Vec<RunDir> = order.iter().map(|&at| runs[at].clone()).collect();
        let reports = order.iter().map(|&at| reports[at].clone()).collect();
        Ok(Self { reports, differences: run::differences(&sorted)? })
    }

    /// One line for each missing part.
    pub fn notes(&self) -> Vec<&str> {
        self.reports.iter().flat_map(Report::notes).map(String::as_str).collect()
    }

    /// The page.
    pub fn html(&self) -> String {
        let facts: Vec<RunInfo> = self.reports.iter().map(|report| report.facts.clone()).collect();
        let names = run_names(&facts);
        let sections = [
            ("Runs", Some(self.table(&names))),
            ("Curves", curves(&self.charts(&names), Some(""))),
            ("Samples", self.samples(&names)),
            ("Differing settings", self.settings(&names)),
        ];
        let known: Vec<_> = sections.into_iter().filter_map(|(heading, it)| Some((heading, it?))).collect();
        let lead = format!("{} runs, the best first. ~ marks an estimate.", names.len());
        page(&names.join(", "), "", &lead, &known)
    }

    /// The validation losses as a large chart, the training losses and the other columns as small ones, with a curve per
    /// run. The best are in front.
    fn charts(&self, names: &[String]) -> Vec<Chart> {
        let [mut losses, training] =
            [VALIDATION_LOSS, TRAINING_LOSS].map(|column| Chart { from_zero: false, ..self.column(column, names) });
        for series in &mut losses.series {
            series.has_dots = true;
        }
        let small = [LEARNING_RATE, GRADIENT_NORM, SPEED].map(|column| self.column(column, names));
        [losses, training].into_iter().chain(small).collect()
    }

    fn column(&self, column: Column, names: &[String]) -> Chart {
        let runs = names.iter().zip(&self.reports).enumerate().rev();
        let of_runs = runs.map(|(at, (name, report))| (name.clone(), ranked_class(at, names.len()), &report.curves));
        Chart { is_ranked: true, ..column.chart(of_runs) }
    }

    fn table(&self, names: &[String]) -> Fragment {
        let mut body = "<div class=\"scrolls\" role=\"region\" aria-label=\"The runs\" tabindex=\"0\">\n<table>\n\
                        <tr><th>run</th><th>bits per byte</th><th>best validation loss</th><th>at step</th>\
                        <th>steps</th><th>parameters</th><th>tokens per second</th><th>training time</th></tr>\n"
            .to_owned();
        for (at, (name, report)) in names.iter().zip(&self.reports).enumerate() {
            let facts = &report.facts;
            let loss = |loss: Option<f64>| loss.map(|loss| marked_loss(loss, facts.is_estimate)).unwrap_or_default();
            let speed = median(&report.curves, "tokens_per_s").map(whole).unwrap_or_default();
            body += &format!(
                "<tr><th scope=\"row\"><svg viewBox=\"0 0 20 10\" aria-hidden=\"true\"><path class=\"line {}\" d=\"M1 \
                 5H19\"/></svg>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{speed}</td><td>{}</td>\
                 </tr>\n",
                ranked_class(at, names.len()),
                escape(name),
                loss(facts.val_bits_per_byte),
                loss(facts.val_loss),
                facts.best_step.map(grouped).unwrap_or_default(),
                grouped(facts.step),
                facts.parameters.map(compact).unwrap_or_default(),
                facts.train_s.map(duration).unwrap_or_default(),
            );
        }
        fragment(body + "</table>\n</div>")
    }

    fn samples(&self, names: &[String]) -> Option<Fragment> {
        let written = names.iter().zip(&self.reports);
        let texts = written.filter_map(|(name, report)| super::samples::newest(name, &report.samples));
        let texts: String = texts.collect();
        (!texts.is_empty()).then(|| fragment(format!("<div class=\"texts\">\n{texts}</div>")))
    }

    fn settings(&self, names: &[String]) -> Option<Fragment> {
        if self.differences.is_empty() {
            return None;
        }
        let heading: String = names.iter().map(|name| format!("<th>{}</th>", escape(name))).collect();
        let row = |Difference { key, values }: &Difference| {
            let cells = values.iter().map(|value| value.as_ref().map(ToString::to_string).unwrap_or_default());
            let cells: String = cells.map(|value| format!("<td>{}</td>", escape(&value))).collect();
            format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escape(key))
        };
        let rows: String = self.differences.iter().map(row).collect();
        let table = format!("<table>\n<tr><td></td>{heading}</tr>\n{rows}</table>");
        Some(fragment(format!(
            "<div class=\"scrolls\" role=\"region\" aria-label=\"The settings\" tabindex=\"0\">\n{table}\n</div>"
        )))
    }
}

fn fragment(body: String) -> Fragment {
    Fragment { body, ..Fragment::empty("comparison", &[plot::STYLE, STYLE], &[]) }
}
