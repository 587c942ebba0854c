//! Text in terminal columns: cut, wrapped, and aligned in tables.

use unicode_width::UnicodeWidthChar;

pub(crate) use crate::view::terminal::table::MAX_WIDTH;

/// The number of columns of a text: 2 for characters of East Asian scripts and most emoji, 0 for combining marks.
pub(crate) fn width(text: &str) -> usize {
    text.chars().filter_map(UnicodeWidthChar::width).sum()
}

/// The text in exactly `n` columns: cut with a `…`, or padded with spaces.
pub(crate) fn fit(text: &str, n: usize) -> String {
    let mut fitted = String::new();
    if width(text) <= n {
        fitted.push_str(text);
    } else if n > 0 {
        for character in text.chars() {
            if width(&fitted) + character.width().unwrap_or(0) >= n {
                break;
            }
            fitted.push(character);
        }
        fitted.push('…');
    }
    let blanks = n - width(&fitted);
    fitted + &" ".repeat(blanks)
}

/// Joins pieces into lines of at most `n` columns, broken between pieces.
pub(crate) fn flow(pieces: &[String], n: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for piece in pieces {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() || width(line) + width(piece) <= n {
            line.push_str(piece);
        } else {
            lines.push(piece.clone());
        }
    }
    lines
}

/// Pieces in lines of `n` columns, the first line after `name`, the others aligned below it.
pub(crate) fn named_flow(name: &str, name_width: usize, pieces: &[String], n: usize) -> String {
    let mut text = String::new();
    for (index, line) in flow(pieces, n).iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        text += &format!("{name:<name_width$} {line}\n");
    }
    text
}

/// A row's name and its cells.
pub(crate) type Row = (String, Vec<String>);

/// A table with names on the left and cells right-aligned. Columns that do not fit continue below, with the names
/// repeated.
pub(crate) fn table(columns: &[String], rows: &[Row]) -> String {
    painted_table(columns, rows, |_, _, cell| cell)
}

/// The same with colours: `paint(row, column, cell)` adds escape codes to a cell that is as wide as its column.
pub(crate) fn painted_table(
    columns: &[String],
    rows: &[Row],
    paint: impl Fn(usize, usize, String) -> String,
) -> String {
    const GAP: usize = 2;
    let names = rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let width_of = |column: usize| {
        let cells = rows.iter().map(|(_, cells)| width(&cells[column]));
        cells.max().unwrap_or(0).max(width(&columns[column]))
    };
    let widths: Vec<usize> = (0..columns.len()).map(width_of).collect();
    let mut text = String::new();
    let mut start = 0;
    while start < columns.len() {
        let mut used = names;
        let fitting = widths[start..].iter().take_while(|width| {
            used += **width + GAP;
            used <= MAX_WIDTH
        });
        let end = start + fitting.count().max(1);
        if start > 0 {
            text.push('\n');
        }
        let mut line = |name: &str, cells: &[String], paint: &dyn Fn(usize, String) -> String| {
            let mut line = fit(name, names);
            for column in start..end {
                let blanks = " ".repeat(widths[column] - width(&cells[column]));
                line += &" ".repeat(GAP);
                line += &paint(column, blanks + &cells[column]);
            }
            text += line.trim_end();
            text.push('\n');
        };
        line("", columns, &|_, heading| heading);
        for (row, (name, cells)) in rows.iter().enumerate() {
            line(name, cells, &|column, cell| paint(row, column, cell));
        }
        start = end;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_their_columns() {
        assert_eq!(fit("ab", 4), "ab  ");
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("猫の川", 6), "猫の川");
        assert_eq!(fit("猫の川", 5), "猫の…");
        assert_eq!(fit("猫の川", 4), "猫… ");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(width("e\u{301}"), 1);
    }

    #[test]
    fn pieces_flow_into_lines() {
        let pieces = ["the", "·cat", "·sat"].map(str::to_owned);
        assert_eq!(flow(&pieces, 8), ["the·cat", "·sat"]);
        assert_eq!(flow(&pieces, 1), ["the", "·cat", "·sat"]);
    }

    #[test]
    fn a_cell_is_painted_as_wide_as_its_column() {
        let rows = [("x", "1"), ("y", "10")].map(|(name, cell)| (name.to_owned(), vec![cell.to_owned(); 2]));
        let columns = ["a", "bbb"].map(str::to_owned);
        let text = painted_table(&columns, &rows, |row, column, cell| match (row, column) {
            (0, 1) => format!("<{cell}>"),
            _ => cell,
        });
        assert_eq!(text, "    a  bbb\nx   1  <  1>\ny  10   10\n");
    }

    #[test]
    fn columns_line_up_and_go_on_below() {
        let row = |name: &str, cells: &[&str]| {
            let cells = cells.iter().map(ToString::to_string).collect();
            (name.to_owned(), cells)
        };
        let columns = ["a", "bb"].map(str::to_owned);
        let text = table(&columns, &[row("x", &["1", "2"]), row("long", &["10", "猫"])]);
        assert_eq!(text, "       a  bb\nx      1   2\nlong  10  猫\n");

        let columns: Vec<String> = (0..30).map(|i| format!("column {i}")).collect();
        let text = table(&columns, &[row("name", &["1"; 30])]);
        assert!(text.lines().all(|line| line.len() <= MAX_WIDTH));
        assert_eq!(text.matches("name").count(), 4);
        assert_eq!(text.matches('1').count(), 30 + 11 + 1 + 1);
    }
}
