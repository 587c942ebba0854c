//! Sheets as text for a terminal, as wide as they are told. Cells have the colours of dark pages.

use crate::view::sheet::{Bars, Cell, ColorScale, ColumnKind, Content, Figure, Grid, Map, Piece, Pieces, Sheet};
use crate::view::terminal::columns::{fit, flow, folded, numbered, width};
use crate::view::terminal::palette::Palette;
use crate::view::terminal::sparkline::curve_table;
use crate::view::terminal::table::continued_table;
use crate::view::theme::{self, Theme};

/// The longest bar, and the shortest that the longest may be in a narrow terminal, in columns.
const BAR: usize = 20;
const LEAST_BAR: usize = 4;
const MAP_LINES: usize = 24;

/// A sheet in the colours of `palette`, and as many columns. Every line ends with a line break.
pub fn sheet_text(sheet: &Sheet, (palette, n_columns): (Palette, usize)) -> String {
    let mut text = paragraph(&sheet.heading, n_columns) + &paragraph(&sheet.lead, n_columns);
    let figures: Vec<&Figure> = sheet.shown_first().collect();
    for group in figures.chunk_by(|one, other| same_tokens(one, other)) {
        text.push('\n');
        text.extend(group.iter().map(|figure| paragraph(&figure.title, n_columns)));
        text += &match &group[0].content {
            Content::Grid(_) => {
                let grids = group.iter().filter_map(|figure| grid_of(figure)).collect::<Vec<_>>();
                table(&grids, palette, n_columns)
            }
            Content::Bars(it) => bars(it, palette, n_columns),
            Content::Pieces(it) => pieces(it, palette, n_columns),
            Content::Map(it) => map(it, n_columns),
            Content::Graph(it) => {
                let nodes = it.rows.iter().skip(1).flatten(); // the tokens are named where they are read
                folded(&nodes.map(|node| node.about.clone() + "\n").collect::<String>(), n_columns)
            }
            Content::Charts(it) => {
                let series = it.iter().flat_map(|chart| &chart.series);
                let curves: Vec<_> = series.map(|series| (&*series.name, &*series.points)).collect();
                curve_table("CURVE", &curves, n_columns)
            }
            Content::Lines(it) => folded(&(it.join("\n") + "\n"), n_columns),
        };
    }
    text
}

fn grid_of(figure: &Figure) -> Option<&Grid> {
    if let Content::Grid(grid) = &figure.content { Some(grid) } else { None }
}

/// Whether two figures are about the same tokens, and share a table.
fn same_tokens(one: &Figure, other: &Figure) -> bool {
    let tokens = |figure| grid_of(figure).map(|grid| (grid.kind, &grid.columns));
    matches!(tokens(one), Some((ColumnKind::TokensFrom(_), _))) && tokens(one) == tokens(other)
}

/// Lines broken after blanks and before visible spaces.
fn paragraph(text: &str, n_columns: usize) -> String {
    let words: Vec<String> = text
        .split_inclusive(' ')
        .flat_map(|words| {
            let starts = words.match_indices('·').map(|(at, _)| at).filter(|at| *at > 0);
            let ends: Vec<usize> = starts.chain([words.len()]).collect();
            let starts = std::iter::once(0).chain(ends.clone());
            starts.zip(ends.clone()).map(|(start, end)| words[start..end].to_owned()).collect::<Vec<_>>()
        })
        .collect();
    flow(&words, n_columns).iter().map(|line| line.trim_end_matches(' ').to_owned() + "\n").collect()
}

/// A grid, or several side by side whose tokens are listed from top to bottom. Columns that do not fit continue below,
/// except those of vectors.
fn table(grids: &[&Grid], palette: Palette, n_columns: usize) -> String {
    let first = grids[0];
    let (mut rows, mut columns) = (first.rows.clone(), first.columns.clone());
    let scaled = |grid: &Grid, cell: &Option<Cell>| cell.clone().map(|cell| (cell, grid.scale));
    let mut cells: Vec<Vec<_>> =
        first.cells.iter().map(|row| row.iter().map(|cell| scaled(first, cell)).collect()).collect();
    if let ColumnKind::TokensFrom(start) = first.kind {
        let last = start + columns.len().saturating_sub(1);
        rows = columns.iter().enumerate().map(|(at, name)| numbered(start + at, last, name)).collect();
        let of_token = |at: usize| {
            grids.iter().flat_map(|grid| grid.cells.iter().map(|row| scaled(grid, &row[at]))).collect::<Vec<_>>()
        };
        cells = (0..columns.len()).map(of_token).collect();
        columns = grids.iter().flat_map(|grid| grid.rows.clone()).collect();
    }
    let label = |cell: &Option<(Cell, ColorScale)>| {
        let mark = |cell: &Cell| if cell.is_marked { "*" } else { "" };
        let text = |cell: &Cell| format!("{} {}{}", cell.label, cell.note, mark(cell)).trim_end().to_owned();
        cell.as_ref().map_or(String::new(), |(cell, _)| text(cell))
    };
    if first.kind == ColumnKind::Elements {
        let names = rows.iter().map(|name| width(name)).max().unwrap_or(0);
        let widest = cells.iter().flatten().map(|cell| width(&label(cell))).max().unwrap_or(1);
        columns.truncate((n_columns.saturating_sub(names) / (widest + 2)).max(1));
    }
    let labels = cells.iter().map(|row| row.iter().take(columns.len()).map(label).collect::<Vec<String>>());
    let named: Vec<_> = rows.into_iter().zip(labels).collect();
    continued_table(&columns, &named, n_columns, |row, column, text| match &cells[row][column] {
        Some((cell, scale)) => palette.on(scale.colors(cell.value, Theme::Dark), &text),
        None => text,
    })
}

fn bars(bars: &Bars, palette: Palette, n_columns: usize) -> String {
    let scale = ColorScale::signed(bars.rows.iter().map(|(_, value)| *value));
    let names = bars.rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let numbers = bars.rows.iter().map(|(_, value)| width(&(bars.label)(*value))).max().unwrap_or(0);
    let longest = n_columns.saturating_sub(names + numbers + 4).clamp(LEAST_BAR, BAR);
    let line = |(name, value): &(String, f64)| {
        let number = palette.on(scale.colors(*value, Theme::Dark), &format!("{:>numbers$}", (bars.label)(*value)));
        let line = format!("{}  {number}  {}", fit(name, names), bar(bars.length(*value), longest));
        line.trim_end().to_owned() + "\n"
    };
    bars.rows.iter().map(line).collect()
}

/// A bar, to an eighth of a column; that of 1 has `n_columns`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length is in 0..=1")]
fn bar(length: f64, n_columns: usize) -> String {
    let eighths = (length * 8.0 * n_columns as f64).round() as usize;
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + part
}

/// The text, coloured and with a legend, or with a bar between tokens.
fn pieces(pieces: &Pieces, palette: Palette, n_columns: usize) -> String {
    let mut text = String::new();
    let mut used = 0;
    let mut last = None; // the colour before
    let is_plain = palette == Palette::Characters;
    for (at, Piece { text: piece, ends_line, value, .. }) in pieces.tokens.iter().enumerate() {
        let length = width(piece) + usize::from(is_plain);
        if used > 0 && used + length > n_columns {
            text.push('\n');
            used = 0;
        }
        let shade = || {
            let ground = theme::rgb(if at % 2 == 0 { "panel" } else { "edge" }, Theme::Dark);
            [ground, theme::letters_on(ground)]
        };
        let [mut ground, mut letters] = value.map_or_else(shade, |value| pieces.scale.colors(value, Theme::Dark));
        if last == Some(ground) {
            ground = theme::between(ground, letters, 0.2); // two tokens of one colour would be one
            letters = theme::letters_on(ground);
        }
        last = Some(ground);
        let colors = [ground, letters];
        text += &palette.on(colors, piece);
        if is_plain {
            text.push('|');
        }
        used += length;
        if *ends_line {
            text.push('\n');
            used = 0;
        }
    }
    if used > 0 {
        text.push('\n');
    }
    if pieces.has_legend() && !is_plain {
        text += &legend(pieces.scale, palette);
    }
    text
}

/// The colours of a scale and their values, as a line.
pub(crate) fn legend(scale: ColorScale, palette: Palette) -> String {
    let entry =
        |(value, label): (f64, String)| format!("{} {label}", palette.on(scale.colors(value, Theme::Dark), "  "));
    scale.legend().into_iter().map(entry).collect::<Vec<_>>().join("  ") + "\n"
}

/// As many names as have room.
fn map(map: &Map, n_columns: usize) -> String {
    let mut lines = vec![vec![" ".to_owned(); n_columns]; MAP_LINES];
    for (point, [x, y]) in map.points.iter().zip(map.placed()) {
        let name = &point.name;
        let n = width(name);
        if n == 0 || n + 2 > n_columns {
            continue;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the lines")]
        let (column, line) =
            ((x * (n_columns - n) as f64).round() as usize, ((1.0 - y) * (MAP_LINES - 1) as f64).round() as usize);
        let around = column.saturating_sub(1)..(column + n + 1).min(n_columns);
        if lines[line][around].iter().all(|cell| cell == " ") {
            lines[line][column].clone_from(name);
            lines[line][column + 1..column + n].fill(String::new());
        }
    }
    lines.iter().map(|line| line.concat().trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_colour_can_be_told_apart() {
        let piece =
            |text: &str| Piece { text: text.to_owned(), ends_line: false, value: Some(1.0), about: String::new() };
        let tokens = ["one", "two", "six"].map(piece).to_vec();
        let text = pieces(&Pieces { tokens, scale: ColorScale::Fraction }, Palette::TrueColor, 80);
        let grounds: Vec<&str> =
            text.split("48;2;").skip(1).take(3).filter_map(|rest| rest.split('m').next()).collect();
        assert!(grounds[0] != grounds[1] && grounds[1] != grounds[2], "{grounds:?}");
    }

    #[test]
    fn sheets_have_text_of_given_width() {
        let cell =
            |value: f64| Some(Cell { note: "x".to_owned(), ..Cell::new(value, format!("{value:.1}"), String::new()) });
        let tokens = Grid {
            rows: vec!["layer 0".to_owned(), "layer 1".to_owned()],
            columns: ["The", "·cat"].map(str::to_owned).to_vec(),
            kind: ColumnKind::TokensFrom(9),
            cells: vec![vec![cell(0.0), cell(0.5)], vec![None, cell(1.0)]],
            scale: ColorScale::Fraction,
            chosen: None,
        };
        let vector = Grid {
            columns: (0..9).map(|at| at.to_string()).collect(),
            cells: vec![vec![cell(0.5); 9]; 2],
            kind: ColumnKind::Elements,
            ..tokens.clone()
        };
        let bars = vec![("attention".to_owned(), 2.0), ("mlp".to_owned(), -1.0)];
        let sheet = Sheet {
            heading: "The·cat·sat·on·the·mat·and·slept".to_owned(),
            lead: "A lead of several words.".to_owned(),
            figures: vec![
                Figure::grid("Tokens", tokens),
                Figure::grid("A vector", vector),
                Figure::bars("Parts", bars, |x| format!("{x:+.1}")),
                Figure::new("Lines", Content::Lines(vec!["1.00   one two three four five".to_owned()])),
            ],
        };
        insta::assert_snapshot!(sheet_text(&sheet, (Palette::Characters, 26)), @r"
        The·cat·sat·on·the·mat·and
        ·slept
        A lead of several words.

        Tokens
                 layer 0  layer 1
         9 The     0.0 x
        10 ·cat    0.5 x    1.0 x

        A vector
                     0      1
        layer 0  0.5 x  0.5 x
        layer 1  0.5 x  0.5 x

        Parts
        attention  +2.0  █████████
        mlp        -1.0  ████▌

        Lines
        1.00   one two three four
               five
        ");
    }
}
