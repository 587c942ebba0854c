//! Tables for a terminal: columns as wide as what stands in them, no wider than a hundred in all.

use std::fmt::Write as _;

/// How wide a table may be: what most terminals and pages have room for.
pub(super) const MOST_COLUMNS: usize = 100;

/// Between two columns.
const GAP: &str = "  ";

/// A column's heading, and on which side its cells line up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Column {
    Left(&'static str),
    Right(&'static str),
}

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Self::Left(heading) | Self::Right(heading) => heading,
        }
    }
}

/// The table, one line for each row below the headings. Cells of the first column are cut in the middle
/// where the others leave no room.
pub(super) fn table<const N: usize>(columns: [Column; N], rows: &[[String; N]]) -> String {
    let mut widths: [usize; N] = std::array::from_fn(|at| {
        let cells = rows.iter().map(|row| width(&row[at]));
        cells.max().unwrap_or(0).max(width(columns[at].heading()))
    });
    let others: usize = widths[1..].iter().map(|width| width + GAP.len()).sum();
    widths[0] = widths[0].min(MOST_COLUMNS.saturating_sub(others).max(LEAST_NAME));
    let headings = columns.map(|column| column.heading().to_owned());
    let mut text = String::new();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for ((cell, column), width) in row.iter().zip(columns).zip(widths) {
            let cell = cut_in_the_middle(cell, width);
            match column {
                Column::Left(_) => write!(line, "{cell:<width$}{GAP}"),
                Column::Right(_) => write!(line, "{cell:>width$}{GAP}"),
            }
            .expect("a string takes any text");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// What is always left of a name.
const LEAST_NAME: usize = 12;

/// The text in at most `most` characters: names of runs often differ at their ends.
pub(super) fn cut_in_the_middle(text: &str, most: usize) -> String {
    let n = width(text);
    if n <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(1);
    let head: String = text.chars().take(kept / 2).collect();
    let tail: String = text.chars().skip(n - (kept - kept / 2)).collect();
    format!("{head}\u{2026}{tail}")
}

pub(super) fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_on_their_sides() {
        let columns = [Column::Left("NAME"), Column::Right("N"), Column::Left("KIND")];
        let row = |a: &str, b: &str, c: &str| [a, b, c].map(str::to_owned);
        assert_eq!(
            table(columns, &[row("a", "1", "x"), row("longer", "1,000", "")]),
            "NAME        N  KIND\n\
             a           1  x\n\
             longer  1,000\n"
        );
    }

    #[test]
    fn a_table_stays_within_its_width_by_cutting_names() {
        let name = "sweep-".to_owned() + &"x".repeat(100) + "-lr3e-4";
        let columns = [Column::Left("NAME"), Column::Right("N")];
        let text = table(columns, &[[name, "1,000".to_owned()]]);
        let line = text.lines().nth(1).unwrap();
        assert_eq!(width(line), MOST_COLUMNS);
        assert!(
            line.starts_with("sweep-")
                && line.contains("x-lr3e-4  1,000")
                && line.contains('\u{2026}'),
            "{line}"
        );
    }

    #[test]
    fn a_cut_keeps_both_ends() {
        assert_eq!(cut_in_the_middle("abcdefgh", 8), "abcdefgh");
        assert_eq!(cut_in_the_middle("abcdefgh", 5), "ab\u{2026}gh");
        assert_eq!(cut_in_the_middle("\u{e4}\u{f6}\u{fc}\u{df}xyz", 4), "\u{e4}\u{2026}yz");
    }
}
