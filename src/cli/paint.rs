//! Terminal colours for messages, tables and texts.
//!
//! Callers remove control characters before colouring, so that no escape code comes from a model or a name.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use ratatui::crossterm::terminal;

/// Colours from the terminal's palette, which suit light and dark backgrounds.
const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const HEADING: Style = Style::new().bold();
const QUIET: Style = Style::new().dimmed();

/// The labels at the start of a line that are coloured.
const LABELS: [(&str, Style); 6] = [
    ("error:", ERROR),
    ("warning:", WARNING),
    ("note:", HINT),
    ("done:", GOOD),
    ("best checkpoint:", GOOD),
    ("report:", HEADING),
];
/// The endings of a line that are coloured.
const ENDS: [&str; 2] = ["(best so far)", "(best)"];
/// The margin of a quoted sample.
pub(super) const MARGIN: &str = "    |";

/// Whether a stream shows colours: it is a terminal, and neither `NO_COLOR`, `CLICOLOR=0` nor `TERM=dumb` is set.
pub(super) fn has_colors(stream: &impl RawStream) -> bool {
    stream.is_terminal() && AutoStream::choice(stream) != ColorChoice::Never
}

/// The width of results in columns without COLUMNS and without a terminal.
const DEFAULT_COLUMNS: usize = 100;
/// The minimum width that tables are fitted to.
const LEAST_COLUMNS: usize = 20;

/// The width of results: the environment variable COLUMNS, else the terminal's, else 100.
pub(super) fn n_columns() -> usize {
    given_columns().unwrap_or(DEFAULT_COLUMNS)
}

/// The width of results; `None` without COLUMNS and without a terminal.
pub(super) fn given_columns() -> Option<usize> {
    let given = || std::env::var("COLUMNS").ok()?.parse().ok();
    let of_terminal = || std::io::stdout().is_terminal().then(|| terminal::size().ok().map(|size| size.0.into()))?;
    given().or_else(of_terminal).map(|n: usize| n.max(LEAST_COLUMNS))
}

/// Colours a message of several lines: labels, hints, best values and the margins of samples.
pub(super) fn message(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn line(line: &str) -> String {
    if let Some(sample) = line.strip_prefix(MARGIN) {
        return quiet(MARGIN) + sample;
    }
    for (label, style) in LABELS {
        if let Some(rest) = line.strip_prefix(label) {
            return painted(style, label) + rest;
        }
    }
    if let Some((blanks, rest)) = line.split_once("hint:").filter(|(blanks, _)| blanks.trim().is_empty()) {
        return format!("{blanks}{}{rest}", painted(HINT, "hint:"));
    }
    for end in ENDS {
        if let Some(rest) = line.strip_suffix(end) {
            return rest.to_owned() + &painted(GOOD, end);
        }
    }
    line.to_owned()
}

/// Colours a table: the first line is its heading, and cells that say `best` are highlighted.
pub(super) fn table(text: &str) -> String {
    let Some((heading, rows)) = text.split_once('\n') else { return text.to_owned() };
    let best = format!("  {}", painted(GOOD, "best"));
    let row = |row: &str| match row.trim_end().strip_suffix("  best") {
        Some(rest) => rest.to_owned() + &best,
        None => row.replace("  best  ", &format!("{best}  ")),
    };
    let rows: Vec<String> = rows.split('\n').map(row).collect();
    format!("{}\n{}", painted(HEADING, heading), rows.join("\n"))
}

pub(super) fn quiet(text: &str) -> String {
    painted(QUIET, text)
}

pub(super) fn good(text: &str) -> String {
    painted(GOOD, text)
}

/// Styles text, and resets the style at the end of each line, since pagers may carry it on.
fn painted(style: Style, text: &str) -> String {
    let mut painted = String::new();
    for piece in text.split_inclusive('\n') {
        let words = piece.trim_end_matches('\n');
        match words {
            "" => {}
            words => write!(painted, "{style}{words}{style:#}").expect("strings take any text"),
        }
        painted.push_str(&piece[words.len()..]);
    }
    painted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_dims_only_margin_of_samples() {
        assert_eq!(message("sample:\n    | error: a (best)"), "sample:\n\u{1b}[2m    |\u{1b}[0m error: a (best)");
    }

    #[test]
    fn table_colours_heading_and_best_row() {
        let table = table("STEP  LOSS\n   1  2.0\n   2  1.0  best\n   3  1.5  best  9\n");
        assert_eq!(
            table,
            "\u{1b}[1mSTEP  LOSS\u{1b}[0m\n   1  2.0\n   2  1.0  \u{1b}[1m\u{1b}[32mbest\u{1b}[0m\n   3  1.5  \
             \u{1b}[1m\u{1b}[32mbest\u{1b}[0m  9\n"
        );
    }

    #[test]
    fn styles_end_at_line_breaks() {
        assert_eq!(quiet("a\n\nb\n"), "\u{1b}[2ma\u{1b}[0m\n\n\u{1b}[2mb\u{1b}[0m\n");
        assert_eq!(quiet(""), "");
    }
}
