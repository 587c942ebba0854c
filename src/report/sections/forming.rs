//! How heads form.

use super::{FIGURE_SCRIPT, FIGURE_STYLE, legend_entry};
use crate::format::grouped;
use crate::page::Fragment;
use crate::report::chart::{self, Size};
use crate::report::forming::{EVEN, Forming};

const STYLE: &str = include_str!("../assets/forming.css");
const SCRIPT: &str = include_str!("../assets/forming.js");

/// A chart for each score, with a line for each head.
pub(in crate::report) fn forming(forming: &Forming) -> Fragment {
    let layers = forming.legend();
    let layers =
        layers.iter().map(|(shade, name)| legend_entry(&format!("line shade-{shade}"), name));
    let legend: String = layers.chain([legend_entry("even", EVEN)]).collect();
    let [drawn, all] = forming.n_evaluations().map(|n| grouped(n as u64));
    let left_out = match drawn == all {
        true => String::new(),
        false => format!(" Of {all} evaluations {drawn} are drawn, at even distances."),
    };
    let body = format!(
        "<p>What each head does with the validation split, at each evaluation: a line for each head, coloured by its \
         layer.{left_out}</p>\n\
         <figure>\n<figcaption><span class=\"legend\">{legend}</span></figcaption>\n\
         <output>Point at a line to follow its head through all charts.</output>\n{}{}</figure>",
        forming.svg(Size::Wide),
        forming.svg(Size::Narrow)
    );
    Fragment {
        kind: "forming",
        styles: &[chart::STYLE, FIGURE_STYLE, STYLE],
        scripts: &[FIGURE_SCRIPT, SCRIPT],
        body,
        data: Some(forming.data().to_string()),
    }
}
