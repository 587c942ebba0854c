//! The whole config.

use std::fmt::Write as _;

use crate::page::{Fragment, escape};
use crate::report::settings::{Origin, Section};

const STYLE: &str = include_str!("../assets/settings.css");

/// Every key of the config, with what was chosen marked.
pub(in crate::report) fn settings(sections: &[Section]) -> Fragment {
    let mut settings = sections.iter().flat_map(|section| &section.settings);
    let is_known = settings.all(|setting| setting.origin != Origin::Unknown);
    let mut body = match is_known {
        true => "<p>What this run chose has a dot; everything else is at its default.</p>\n",
        false => "<p>This version does not know all of these keys, and so not their defaults either.</p>\n",
    }
    .to_owned();
    body.push_str("<div class=\"sections\">\n");
    for section in sections {
        write!(body, "<div>\n<h3>[{}]</h3>\n<table>\n", escape(&section.name)).expect("a string");
        for setting in &section.settings {
            let (class, default) = match &setting.origin {
                Origin::Default => ("default", None),
                Origin::Chosen(default) => ("chosen", default.as_ref()),
                Origin::Unknown => ("unknown", None),
            };
            let default =
                default.map(|default| format!("<small>default {}</small>", escape(default)));
            writeln!(
                body,
                "<tr class=\"{class}\"><th scope=\"row\">{}</th><td>{}{}</td></tr>",
                escape(&setting.key),
                escape(&setting.value),
                default.unwrap_or_default()
            )
            .expect("a string");
        }
        body.push_str("</table>\n</div>\n");
    }
    body.push_str("</div>");
    Fragment { kind: "settings", styles: &[STYLE], scripts: &[], body, data: None }
}
