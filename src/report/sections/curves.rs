//! The loss and the learning rate over the steps.

use std::fmt::Write as _;

use serde_json::{Map, json};

use super::{FIGURE_SCRIPT, FIGURE_STYLE, legend_entry};
use crate::page::Fragment;
use crate::report::chart::{self, Chart, Size};

const SCRIPT: &str = include_str!("../assets/curves.js");

/// The charts, each with its name in the page and the decimals with which its values are read out; none for
/// powers of ten. Nothing where nothing was logged.
pub(in crate::report) fn curves(charts: &[(&str, Option<u8>, Chart)]) -> Option<Fragment> {
    let mut body = String::new();
    let mut data = Map::new();
    for (name, digits, chart) in charts.iter().filter(|(.., chart)| !chart.is_empty()) {
        let [title, unit] = chart.title;
        let series = chart.drawn_series(Size::Wide);
        let series: Vec<_> = series.iter().filter(|series| !series.points.is_empty()).collect();
        let entry = |class: &str, name| legend_entry(&format!("line {class}"), name);
        let legend: String = match series[..] {
            [_] => String::new(), // the title says it
            _ => series.iter().map(|series| entry(series.class, series.name)).collect(),
        };
        let cut = match chart.is_cut() {
            true => "<span>higher values are drawn at the upper edge</span>",
            false => "",
        };
        writeln!(
            body,
            "<figure data-chart=\"{name}\">\n\
             <figcaption><span class=\"what\">{title}<span class=\"unit\">{unit}</span></span>\
             <span class=\"legend\">{legend}{cut}</span></figcaption>\n<output></output>\n{}{}</figure>",
            chart.svg(Size::Wide),
            chart.svg(Size::Narrow)
        )
        .expect("a string");
        let series: Vec<_> = series
            .iter()
            .map(|series| json!({"name": series.name, "className": series.class, "points": series.points}))
            .collect();
        data.insert((*name).to_owned(), json!({"digits": digits, "series": series}));
    }
    (!data.is_empty()).then(|| Fragment {
        kind: "curves",
        styles: &[chart::STYLE, FIGURE_STYLE],
        scripts: &[FIGURE_SCRIPT, SCRIPT],
        body,
        data: Some(serde_json::Value::Object(data).to_string()),
    })
}
