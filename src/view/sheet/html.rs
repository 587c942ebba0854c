//! Sheets as pages: the figures of `svg`, whose parts a reader can point at or walk through with the arrow keys.

use std::sync::LazyLock;

use crate::view::escape::{breakable, escape};
use crate::view::html::{Fragment, page};
use crate::view::sheet::svg::{self, NARROW, WIDE};
use crate::view::sheet::{Choice, ColumnKind, Content, Figure, Grid, Sheet};
use crate::view::svg::plot;

static STYLES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| vec![plot::STYLE, svg::style().leak(), include_str!("../assets/sheet.css")]);
const SCRIPT: &str = include_str!("../assets/sheet.js");

/// Several sheets as a page; `about` names a run and its step.
pub fn sheets_html(title: &str, about: &str, sheets: &[Sheet]) -> String {
    let section = |sheet: &Sheet| (breakable(&sheet.heading), sheet_fragment(sheet));
    page(title, about, "", &sheets.iter().map(section).collect::<Vec<_>>())
}

pub(crate) fn empty() -> Fragment {
    Fragment::empty("sheet", &STYLES, &[SCRIPT])
}

/// A sheet as a section of any page.
pub(crate) fn sheet_fragment(sheet: &Sheet) -> Fragment {
    let figures: String = sheet.figures.iter().map(figure).collect();
    Fragment { body: format!("<p class=\"lead\">{}</p>\n{figures}", breakable(&escape(&sheet.lead))), ..empty() }
}

fn figure(Figure { title, choice, content }: &Figure) -> String {
    let (kind, role, parts) = match content {
        Content::Grid(_) => ("cells", "table", Some("cell")),
        Content::Bars(_) => ("bars", "table", None),
        Content::Pieces(_) => ("pieces", "group", Some("token")),
        Content::Map(_) => ("map", "img", Some("token")),
        Content::Graph(_) => ("graph", "group", Some("part")),
        Content::Charts(_) => ("chart", "img", None),
        Content::Lines(_) => ("lines", "group", None),
    };
    // Some scroll sideways on narrow screens, beginning with the names and numbers; the others are drawn for both.
    let rooms = match content {
        Content::Grid(_) | Content::Map(_) => &[("", WIDE)][..],
        _ => &[(" wide", WIDE), (" narrow", NARROW)],
    };
    let title = escape(title);
    let (output, label, walk) = match parts {
        Some(part) => (
            format!("<output><span>Point at a {part}, or walk with the arrow keys.</span></output>\n"),
            format!("{title}: arrow keys move from {part} to {part}"),
            " data-walk tabindex=\"0\"",
        ),
        None if kind == "bars" => (String::new(), title.clone(), " tabindex=\"0\""), // so that keys can scroll
        None => (String::new(), title.clone(), ""),
    };
    let first = match content {
        Content::Grid(Grid { kind: ColumnKind::TokensFrom(first), chosen, .. }) => {
            let chosen = chosen.map_or(String::new(), |column| format!(" data-chosen=\"{column}\""));
            format!(" data-first=\"{first}\"{chosen}")
        }
        Content::Grid(Grid { kind: ColumnKind::Heads, .. }) => " data-heads".to_owned(),
        _ => String::new(),
    };
    let picture = |(class, room): &(&str, f64)| {
        let (body, [width, height]) = svg::drawn(content, *room);
        format!(
            "<svg class=\"{kind}{class}\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" role=\"{role}\" aria-label=\"{label}\"{walk}{first}>\n{body}</svg>\n"
        )
    };
    let pictures: String = rooms.iter().map(picture).collect();
    let choice = choice.map_or(String::new(), |Choice { column, is_first }| {
        format!(" data-column=\"{column}\"{}", if is_first { "" } else { " hidden" })
    });
    format!(
        "<figure{choice}>\n<figcaption>{title}</figcaption>\n{output}<div class=\"scrolls\">\n{pictures}</div>\n</figure>\n"
    )
}
