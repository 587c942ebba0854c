//! The page: which sections there are, and in which order.

use super::{Report, curves, sections};
use crate::inspect::render;
use crate::page::Page;

/// The page of a run.
pub(super) fn of(report: &Report) -> Page {
    let facts = &report.facts;
    // `.` is a run, too, and has a name.
    let root = std::path::absolute(&facts.run).unwrap_or_else(|_| facts.run.clone());
    let name = root.file_name().unwrap_or(root.as_os_str()).to_string_lossy();
    let mut page =
        Page::new(&name, &sections::lead(report)).section("Numbers", sections::numbers(report));
    let charts = [
        ("loss", Some(4), curves::losses(&report.curves, facts.best_step)),
        ("rate", None, curves::learning_rate(&report.curves)),
    ];
    if let Some(curves) = sections::curves(&charts) {
        page = page.section("Curves", curves);
    }
    if let Some(samples) = sections::samples(&report.samples, &report.curves) {
        page = page.section("What it wrote", samples);
    }
    if let Some(inside) = &report.inside {
        page = page.section("What each head does", sections::heads(inside.step, &inside.heads));
    }
    if let Some(forming) = &report.forming {
        page = page.section("How its heads formed", sections::forming(forming));
    }
    if let Some(details) = report.inside.as_ref().and_then(|inside| inside.attention.as_ref()) {
        page = page.section("Who looks at whom", render::attention_fragment(details));
    }
    page.section("Config", sections::settings(&report.settings))
}
