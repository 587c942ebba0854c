//! Tables for a terminal: columns as wide as their cells, at most 100 characters in total.

use std::fmt::Write as _;

use crate::format::cut_in_the_middle;

/// The most characters per line, which most terminals can show.
pub(crate) const MAX_WIDTH: usize = 100;

/// The minimum width of the first column.
const MIN_FIRST: usize = 12;

const GAP: &str = "  ";

/// The heading of a column, and the alignment of its cells.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column<'a> {
    Left(&'a str),
    Right(&'a str),
}

/// Columns from headings separated by `|`; a leading `>` means right-aligned.
pub(crate) fn columns(headings: &str) -> Vec<Column<'_>> {
    let headings = headings.split('|').map(str::trim);
    headings.map(|heading| heading.strip_prefix('>').map_or(Column::Left(heading), Column::Right)).collect()
}

/// A table with a line per row below the headings. Cells of the first column are cut in the middle if the others leave
/// too little space.
pub(crate) fn table<'a>(columns: impl AsRef<[Column<'a>]>, rows: &[impl AsRef<[String]>]) -> String {
    let columns = columns.as_ref();
    let heading = |column: &Column<'_>| match column {
        Column::Left(name) | Column::Right(name) => (*name).to_owned(),
    };
    let headings: Vec<String> = columns.iter().map(heading).collect();
    let lines = || std::iter::once(&headings[..]).chain(rows.iter().map(AsRef::as_ref));
    let widest = |at: usize| lines().map(|line| width(&line[at])).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..columns.len()).map(widest).collect();
    let others: usize = widths[1..].iter().map(|width| width + GAP.len()).sum();
    widths[0] = widths[0].min(MAX_WIDTH.saturating_sub(others).max(MIN_FIRST));
    let mut text = String::new();
    for line in lines() {
        for ((cell, column), &width) in line.iter().zip(columns).zip(&widths) {
            let cell = cut_in_the_middle(cell, width);
            match column {
                Column::Left(_) => write!(text, "{cell:<width$}{GAP}"),
                Column::Right(_) => write!(text, "{cell:>width$}{GAP}"),
            }
            .expect("a string takes any text");
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_on_their_sides() {
        let row = |a: &str, b: &str, c: &str| [a, b, c].map(str::to_owned);
        assert_eq!(
            table(columns("NAME | >N | KIND"), &[row("a", "1", "x"), row("longer", "1,000", "")]),
            "NAME        N  KIND\n\
             a           1  x\n\
             longer  1,000\n"
        );
    }

    #[test]
    fn a_table_stays_within_its_width_by_cutting_names() {
        let name = "sweep-".to_owned() + &"x".repeat(100) + "-lr3e-4";
        let text = table(columns("NAME | >N"), &[[name, "1,000".to_owned()]]);
        let line = text.lines().nth(1).unwrap();
        assert_eq!(width(line), MAX_WIDTH);
        assert!(line.starts_with("sweep-") && line.contains("x-lr3e-4  1,000") && line.contains('\u{2026}'), "{line}");
    }
}
