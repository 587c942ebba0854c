//! Tables: columns as wide as their cells, and as many of them side by side as fit.

use std::iter;
use std::ops::Range;
use std::slice;

use super::columns::width;
use crate::format::cut_in_the_middle;

/// The minimum width of the first column.
const MIN_FIRST: usize = 12;

const GAP: &str = "  ";

/// The heading of a column, and whether its cells are right-aligned.
pub(crate) type Column<'a> = (&'a str, bool);

/// A table with a line per row below the headings, which are separated by `|`; a leading `>` means right-aligned. It is
/// at most `n_columns` wide: see [`cut_table`].
pub(crate) fn table(headings: &str, rows: &[impl AsRef<[String]>], n_columns: usize) -> String {
    let headings = headings.split('|').map(str::trim);
    let columns = headings.map(|heading| (heading.trim_start_matches('>'), heading.starts_with('>')));
    cut_table(&columns.collect::<Vec<_>>(), rows, n_columns)
}

/// A table without those of the `least` columns, from the first on, without which all others are side by side.
pub(crate) fn narrowed_table(
    headings: &str,
    rows: &[impl AsRef<[String]>],
    n_columns: usize,
    least: &[&str],
) -> String {
    let names: Vec<&str> = headings.split('|').map(str::trim).collect();
    let mut kept: Vec<usize> = (0..names.len()).collect();
    let mut least = least.iter();
    loop {
        let headings: Vec<&str> = kept.iter().map(|at| names[*at]).collect();
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| kept.iter().map(|at| row.as_ref()[*at].clone()).collect()).collect();
        let text = table(&headings.join("|"), &rows, n_columns);
        let is_whole = text.lines().count() == rows.len() + 1;
        match least.next() {
            Some(least) if !is_whole => kept.retain(|at| names[*at].trim_start_matches('>') != *least),
            _ => return text,
        }
    }
}

/// A table whose first column is cut in the middle of its cells if the others leave too little space. Columns that do
/// not fit even then go on below.
pub(crate) fn cut_table(columns: &[Column<'_>], rows: &[impl AsRef<[String]>], n_columns: usize) -> String {
    let mut widths = widths(columns, rows);
    let others: usize = widths[1..].iter().map(|width| width + GAP.len()).sum();
    widths[0] = widths[0].min(n_columns.saturating_sub(others).max(MIN_FIRST));
    blocks(columns, rows, &widths, n_columns, &|_, _, cell| cell)
}

/// A row's name and its cells.
pub(crate) type NamedRow = (String, Vec<String>);

/// A table with names on the left, and these right-aligned columns. Columns that do not fit continue below, with
/// the names repeated. `paint(row, column, cell)` adds escape codes to a cell that is as wide as its column.
pub(crate) fn continued_table(
    columns: &[String],
    rows: &[NamedRow],
    n_columns: usize,
    paint: impl Fn(usize, usize, String) -> String,
) -> String {
    let columns: Vec<Column<'_>> =
        iter::once(("", false)).chain(columns.iter().map(|heading| (&**heading, true))).collect();
    let rows: Vec<_> = rows.iter().map(|(name, cells)| [slice::from_ref(name), cells].concat()).collect();
    let widths = widths(&columns, &rows);
    blocks(&columns, &rows, &widths, n_columns, &paint)
}

/// The columns that fit, then those that do not, each time with the first.
fn blocks(
    columns: &[Column<'_>],
    rows: &[impl AsRef<[String]>],
    widths: &[usize],
    n_columns: usize,
    paint: &dyn Fn(usize, usize, String) -> String,
) -> String {
    let mut blocks = Vec::new();
    let mut start = 1;
    while start < columns.len() {
        let mut used = widths[0];
        let fitting = widths[start..].iter().take_while(|width| {
            used += **width + GAP.len();
            used <= n_columns
        });
        let end = start + fitting.count().max(1);
        blocks.push(lines(columns, rows, widths, start..end, paint));
        start = end;
    }
    blocks.join("\n")
}

fn widths(columns: &[Column<'_>], rows: &[impl AsRef<[String]>]) -> Vec<usize> {
    let widest = |(at, (heading, _)): (usize, &Column<'_>)| {
        let cells = rows.iter().map(|row| width(&row.as_ref()[at]));
        cells.chain([width(heading)]).max().unwrap_or(0)
    };
    columns.iter().enumerate().map(widest).collect()
}

/// The headings and the rows, of the first column and of those in `shown`.
fn lines(
    columns: &[Column<'_>],
    rows: &[impl AsRef<[String]>],
    widths: &[usize],
    shown: Range<usize>,
    paint: &dyn Fn(usize, usize, String) -> String,
) -> String {
    let aligned = |at: usize, cell: &str| {
        let cell = cut_in_the_middle(cell, widths[at]);
        let blanks = " ".repeat(widths[at].saturating_sub(width(&cell)));
        if columns[at].1 { blanks + &cell } else { cell + &blanks }
    };
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells: Vec<String> = iter::once(0).chain(shown.clone()).map(cell).collect();
        cells.join(GAP).trim_end().to_owned() + "\n"
    };
    let headings = line(&|at| aligned(at, columns[at].0));
    let rows = rows.iter().enumerate().map(|(row, cells)| {
        line(&|at| match aligned(at, &cells.as_ref()[at]) {
            name if at == 0 => name,
            cell => paint(row, at - 1, cell),
        })
    });
    iter::once(headings).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn narrow_table_drops_least_columns() {
        let rows = [row(["a-rather-long-name", "1,000", "x", "2"])];
        let at = |n_columns| narrowed_table("NAME | >TOKENS | KIND | >N", &rows, n_columns, &["TOKENS", "KIND"]);
        let heading = |n_columns| {
            at(n_columns).lines().next().expect("a table has headings").split_whitespace().collect::<String>()
        };
        assert_eq!(heading(30), "NAMETOKENSKINDN");
        assert_eq!(heading(28), "NAMEKINDN");
        assert_eq!(at(15), "NAME          N\na-rat…g-name  2\n");
    }

    #[test]
    fn paint_covers_whole_cell() {
        let rows = [("x".to_owned(), row(["1", "1"])), ("long".to_owned(), row(["10", "猫"]))];
        let text = continued_table(&row(["a", "bbb"]), &rows, 80, |row, column, cell| match (row, column) {
            (0, 1) => format!("<{cell}>"),
            _ => cell,
        });
        assert_eq!(text, "       a  bbb\nx      1  <  1>\nlong  10   猫\n");
    }

    #[test]
    fn columns_continue_below() {
        let columns: Vec<String> = (0..30).map(|i| format!("column {i}")).collect();
        let rows = [("name".to_owned(), vec!["1".to_owned(); 30])];
        let text = continued_table(&columns, &rows, 100, |_, _, cell| cell);
        assert!(text.lines().all(|line| line.len() <= 100));
        assert_eq!(text.matches("name").count(), 4);
        assert_eq!(text.matches('1').count(), 30 + 11 + 1 + 1);
    }
}
