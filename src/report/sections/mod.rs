//! The sections of the page: each makes HTML of what a run said, with its styles and its script beside it.

mod curves;
mod forming;
mod heads;
mod numbers;
mod samples;
mod settings;

pub(super) use curves::curves;
pub(super) use forming::forming;
pub(super) use heads::heads;
pub(super) use numbers::{lead, numbers};
pub(super) use samples::samples;
pub(super) use settings::settings;

/// What all sections with charts share.
const FIGURE_STYLE: &str = include_str!("../assets/figure.css");
const FIGURE_SCRIPT: &str = include_str!("../assets/figure.js");

/// An entry of a chart's legend: a line of this class, and what it is.
fn legend_entry(class: &str, name: &str) -> String {
    format!(
        "<span><svg viewBox=\"0 0 20 10\" aria-hidden=\"true\"><path class=\"{class}\" d=\"M1 5H19\"/></svg>{}</span>",
        crate::page::escape(name)
    )
}
