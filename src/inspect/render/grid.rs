//! Rows of numbers with names: a table in blocks of columns.

use std::fmt::Write as _;

use super::columns::{fit, width};

/// The columns of a page.
pub(super) const PAGE: usize = 100;
/// Between two columns.
const GAP: usize = 2;

/// A row's name, and its cells.
pub(super) type Row = (String, Vec<String>);

/// Writes the table below `text`: names to the left, cells to the right of their columns. What is wider than the page
/// goes on below, each block with the names again.
pub(super) fn grid(text: &mut String, columns: &[String], rows: &[Row]) {
    let names = rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let width_of = |column: usize| {
        let cells = rows.iter().map(|(_, cells)| width(&cells[column]));
        cells.max().unwrap_or(0).max(width(&columns[column]))
    };
    let widths: Vec<usize> = (0..columns.len()).map(width_of).collect();
    let mut start = 0;
    while start < columns.len() {
        let mut used = names;
        let fitting = widths[start..].iter().take_while(|width| {
            used += **width + GAP;
            used <= PAGE
        });
        let end = start + fitting.count().max(1);
        if start > 0 {
            text.push('\n');
        }
        let mut line = |name: &str, cells: &[String]| {
            let mut line = fit(name, names);
            for (cell, width) in cells[start..end].iter().zip(&widths[start..end]) {
                let blanks = " ".repeat(GAP + width - self::width(cell));
                write!(line, "{blanks}{cell}").expect("a string");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        };
        line("", columns);
        for (name, cells) in rows {
            line(name, cells);
        }
        start = end;
    }
}

/// A cosine, or another number of one digit.
pub(super) fn three_digits(x: f64) -> String {
    let shown = format!("{x:.3}");
    match shown.as_str() {
        "-0.000" => "0.000".to_owned(),
        _ => shown,
    }
}

/// A number with its sign.
pub(super) fn signed(x: f64) -> String {
    let shown = format!("{x:+.4}");
    match shown.as_str() {
        "-0.0000" => "+0.0000".to_owned(),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_go_on_below() {
        let row = |name: &str, cells: &[&str]| {
            let cells = cells.iter().map(ToString::to_string).collect();
            (name.to_owned(), cells)
        };
        let columns = ["a", "bb"].map(str::to_owned);
        let mut text = String::new();
        grid(&mut text, &columns, &[row("x", &["1", "2"]), row("long", &["10", "猫"])]);
        assert_eq!(text, "       a  bb\nx      1   2\nlong  10  猫\n");

        let columns: Vec<String> = (0..30).map(|i| format!("column {i}")).collect();
        let cells = vec!["1"; 30];
        let mut text = String::new();
        grid(&mut text, &columns, &[row("name", &cells)]);
        assert!(text.lines().all(|line| line.len() <= PAGE));
        assert_eq!(text.matches("name").count(), 4);
        assert_eq!(text.matches('1').count(), 30 + 11 + 1 + 1);
    }

    #[test]
    fn nothing_has_no_sign() {
        assert_eq!(three_digits(-0.0001), "0.000");
        assert_eq!(signed(-0.000_01), "+0.0000");
        assert_eq!(signed(0.5), "+0.5000");
    }
}
