//! Sheets as SVG: every kind of figure is drawn here, for files and, by `html`, for pages.
//!
//! The words of an element are its `<title>`. Rows of cells have the roles of a table.

use crate::view::escape::escape;
use crate::view::sheet::{
    Bars, Cell, ColorScale, Content, Figure, Graph, GraphNode, Grid, Map, MapPoint, Piece, Pieces, Sheet,
};
use crate::view::svg::chart::Chart;
use crate::view::svg::{self, ADVANCE, Anchor, Drawing, SIZE, Stack, plot};
use crate::view::terminal::columns::{fit, flow, folded, width};
use crate::view::theme::{self, Theme, hex};

const FIGURE_GAP: f64 = 24.0;
/// The height of a row of cells with one line of text.
const ROW: f64 = 22.0;
const N_SHADES: usize = 16;
/// The characters of a line.
pub(crate) const COLUMNS: usize = 100;
/// The room for a figure.
pub(crate) const WIDE: f64 = COLUMNS as f64 * ADVANCE;
pub(crate) const NARROW: f64 = 340.0;
const MAP: [f64; 2] = [880.0, 640.0];

/// Several sheets as a picture, stacked vertically; `about` names a run and its step.
pub fn sheets_svg(title: &str, about: &str, sheets: &[Sheet]) -> String {
    let mut stack = Stack::new(560.0, SIZE, about);
    let paragraph = |stack: &mut Stack, class: &str, text: &str| {
        let words: Vec<String> = text.split_inclusive(' ').map(str::to_owned).collect();
        for line in flow(&words, COLUMNS).iter().filter(|line| !line.is_empty()) {
            stack.line(class, line.trim_end());
        }
    };
    for sheet in sheets {
        stack.line("i", fit(&sheet.heading, COLUMNS).trim_end());
        paragraph(&mut stack, "m", &sheet.lead);
        for Figure { title, content, .. } in sheet.shown_first() {
            stack.y += FIGURE_GAP / 2.0;
            paragraph(&mut stack, "i", title);
            stack.drawing(drawn(content, WIDE));
            stack.y += FIGURE_GAP / 2.0;
        }
        stack.y += FIGURE_GAP;
    }
    let style = theme::in_file(&[svg::STYLE, plot::STYLE, &style()].concat());
    stack.finish(title, &style)
}

pub(crate) fn charts_svg(heading: &str, charts: Vec<Chart>, about: &str) -> String {
    let figures = vec![Figure::new("", Content::Charts(charts))];
    sheets_svg(heading, about, &[Sheet { heading: heading.to_owned(), lead: String::new(), figures }])
}

/// The figure, as far as possible within a width of `room`.
pub(crate) fn drawn(content: &Content, room: f64) -> Drawing {
    match content {
        Content::Grid(it) => below_legend(it.scale, room, grid(it)),
        Content::Bars(it) => bars(it, room),
        Content::Pieces(it) if it.has_legend() => below_legend(it.scale, room, pieces(it, room)),
        Content::Pieces(it) => pieces(it, room),
        Content::Map(it) => map(it),
        Content::Graph(it) => graph(it, room),
        Content::Charts(it) => charts(it, room),
        Content::Lines(it) => lines(it, room),
    }
}

/// The classes of shades: a colour per shade, and one for text on it.
pub(crate) fn style() -> String {
    let mut style = "\
.positive{fill:var(--positive)}.negative{fill:var(--negative)}.paper{fill:var(--paper)}
.odd,.frame,.track{fill:var(--panel)}.even-piece{fill:var(--edge)}.point{fill:var(--plain)}.pre{white-space:pre}
"
    .to_owned();
    for shade in 0..=N_SHADES {
        let value = (shade as f64 / N_SHADES as f64).powi(2);
        for (kind, scale, value) in [
            ('s', ColorScale::Fraction, value),
            ('p', ColorScale::Signed(1.0), value),
            ('n', ColorScale::Signed(1.0), -value),
        ] {
            let [light, dark] = [Theme::Light, Theme::Dark].map(|theme| scale.colors(value, theme).map(hex));
            let [ground, letters] = [0, 1].map(|at| format!("light-dark({}, {})", light[at], dark[at]));
            style += &format!(".{kind}{shade}{{fill:{ground}}}.{kind}{shade}-text{{fill:{letters}}}\n");
        }
    }
    style
        + ".marked{fill:none;stroke:var(--ink);stroke-width:2}.piece,.node{stroke:var(--edge)}\n\
             .link{fill:none;opacity:0.6}.link-positive{stroke:var(--positive)}.link-negative{stroke:var(--negative)}\n"
}

/// The class of a value's colour; text on it has the class with `-text`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in 0..=N_SHADES")]
pub(crate) fn class(scale: ColorScale, value: f64) -> String {
    let shade = (scale.strength(value) * N_SHADES as f32).round() as usize;
    let kind = match scale {
        ColorScale::Fraction | ColorScale::UpTo(_) => 's',
        ColorScale::Signed(_) | ColorScale::Shares(_) if value < 0.0 => 'n',
        ColorScale::Signed(_) | ColorScale::Shares(_) | ColorScale::Marked => 'p',
    };
    format!("{kind}{shade}")
}

fn title(about: &str) -> String {
    format!("<title>{}</title>", escape(about))
}

fn rect(class: &str, [x, y]: [f64; 2], [width, height]: [f64; 2]) -> String {
    format!("<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>\n")
}

fn text(class: &str, place: [f64; 2], anchor: Anchor, line: &str) -> String {
    svg::text(class, place, None, anchor, line)
}

/// The most columns of these texts.
fn columns<'a>(texts: impl Iterator<Item = &'a String>) -> f64 {
    texts.map(|text| width(text)).max().unwrap_or(0) as f64
}

/// A drawing below the colours of its scale and their values.
pub(crate) fn below_legend(scale: ColorScale, room: f64, (body, [width_below, height]): Drawing) -> Drawing {
    let (mut svg, mut x, mut y, mut right) = (String::new(), 0.0, 4.0, width_below);
    for (value, label) in scale.legend() {
        let advance = 18.0 + ADVANCE * (width(&label) as f64 + 2.0);
        if x > 0.0 && x + advance > room + 2.0 * ADVANCE {
            (x, y) = (0.0, y + 18.0);
        }
        svg += &rect(&class(scale, value), [x, y], [12.0, 12.0]);
        svg += &text("m", [x + 18.0, y + 10.0], Anchor::Start, &label);
        x += advance;
        right = f64::max(right, x);
    }
    let top = y + 24.0;
    svg = format!("<g class=\"scale\">\n{svg}</g>\n<g transform=\"translate(0 {top})\">\n{body}</g>\n");
    (svg, [right, top + height])
}

fn grid(grid: &Grid) -> Drawing {
    let cells = || grid.cells.iter().flatten().flatten();
    let height = if cells().any(|cell| !cell.note.is_empty()) { 36.0 } else { ROW };
    let left = ADVANCE * (columns(grid.rows.iter()) + 1.5);
    let labels = cells().flat_map(|cell| [&cell.label, &cell.note]);
    let column = ADVANCE * (columns(labels.chain(&grid.columns)).max(2.0) + 1.0);
    let middle = |at: usize| left + (at as f64 + 0.5) * column;
    let mut svg = "<g role=\"row\">\n".to_owned();
    for (at, name) in grid.columns.iter().enumerate() {
        let (chosen, class) = if grid.chosen == Some(at) { (" class=\"chosen\"", "i") } else { ("", "m") };
        let name = text(class, [middle(at), 15.0], Anchor::Middle, name);
        svg += &format!("<g role=\"columnheader\"{chosen}>{name}</g>\n");
    }
    for (row, (name, cells)) in grid.rows.iter().zip(&grid.cells).enumerate() {
        let y = ROW + row as f64 * height;
        svg += &format!(
            "</g>\n<g role=\"row\">\n<g role=\"rowheader\">{}{}</g>\n",
            rect("paper", [0.0, y], [left - 4.0, height]),
            text("m", [left - 8.0, y + height / 2.0 + 4.0], Anchor::End, name)
        );
        for (at, cell) in cells.iter().enumerate() {
            svg += "<g role=\"cell\">";
            if let Some(Cell { value, label, note, about, is_marked }) = cell {
                let class = class(grid.scale, *value);
                let [x, size] = [left + at as f64 * column, column - 1.0];
                svg += &(title(about) + &rect(&class, [x, y], [size, height - 1.0]));
                if *is_marked {
                    svg += &rect("marked", [x + 1.0, y + 1.0], [size - 2.0, height - 3.0]);
                }
                for (line, size, below) in [(label, None, 15.0), (note, Some(SIZE - 2.0), 30.0)] {
                    if !line.is_empty() {
                        let letters = format!("{class}-text");
                        svg += &svg::text(&letters, [middle(at), y + below], size, Anchor::Middle, line);
                    }
                }
            }
            svg += "</g>\n";
        }
    }
    svg += "</g>\n";
    (svg, [left + grid.columns.len() as f64 * column, ROW + grid.rows.len() as f64 * height])
}

/// Rows of a name, a number, and a bar from 0 to the right, or to the left if it is below 0.
fn bars(bars: &Bars, room: f64) -> Drawing {
    let labels: Vec<String> = bars.rows.iter().map(|(_, value)| (bars.label)(*value)).collect();
    let names = ADVANCE * (columns(bars.rows.iter().map(|(name, _)| name)) + 1.0);
    let left = names + ADVANCE * (columns(labels.iter()) + 1.0);
    let track = (room - left).clamp(80.0, 320.0);
    let is_signed = bars.rows.iter().any(|(_, value)| *value < 0.0);
    let zero = if is_signed { track / 2.0 } else { 0.0 };
    let mut svg = String::new();
    for (row, ((name, value), label)) in bars.rows.iter().zip(&labels).enumerate() {
        let y = row as f64 * ROW;
        let length = (track - zero) * bars.length(*value);
        let (class, start) = if *value < 0.0 { ("negative", zero - length) } else { ("positive", zero) };
        svg += &format!(
            "<g role=\"row\">\n<g role=\"rowheader\">{}</g>\n<g role=\"cell\">{}</g>\n{}{}</g>\n",
            text("m", [names - 8.0, y + 14.0], Anchor::End, name),
            text("i", [left - 8.0, y + 14.0], Anchor::End, label),
            rect("track", [left, y + 4.0], [track, 12.0]),
            rect(class, [left + start, y + 4.0], [length, 12.0])
        );
    }
    (svg, [left + track, bars.rows.len() as f64 * ROW])
}

fn pieces(pieces: &Pieces, room: f64) -> Drawing {
    let (mut svg, mut x, mut y, mut end) = (String::new(), 0.0, 0.0, 0.0);
    for (at, Piece { text: piece, ends_line, value, about }) in pieces.tokens.iter().enumerate() {
        let length = ADVANCE * width(piece) as f64;
        if x > 0.0 && x + length > room {
            (x, y) = (0.0, y + ROW);
        }
        let (class, letters) = match value {
            Some(value) => (class(pieces.scale, *value), class(pieces.scale, *value) + "-text"),
            None => (if at % 2 == 0 { "odd" } else { "even-piece" }.to_owned(), "i".to_owned()),
        };
        svg += &format!(
            "<g>{}{}{}</g>\n",
            title(about),
            rect(&format!("{class} piece"), [x, y], [length + 1.0, ROW - 2.0]),
            text(&letters, [x + 1.0, y + 15.0], Anchor::Start, piece)
        );
        x += length + 3.0;
        end = f64::max(end, x);
        if *ends_line {
            (x, y) = (0.0, y + ROW);
        }
    }
    (svg, [end, if x > 0.0 { y + ROW } else { y }])
}

/// The dots and as many names as have room.
fn map(map: &Map) -> Drawing {
    const ROOM: [f64; 2] = [60.0, 16.0]; // around the points
    let [across, down] = MAP;
    let frame = rect("frame", [0.0, 0.0], MAP);
    let (mut dots, mut names) = (String::new(), String::new());
    let mut taken: Vec<[f64; 4]> = Vec::new();
    for (at, (MapPoint { name, about, near, .. }, [x, y])) in map.points.iter().zip(map.placed()).enumerate() {
        let x = ROOM[0] + x * (across - 2.0 * ROOM[0]);
        let y = down - ROOM[1] - y * (down - 2.0 * ROOM[1]);
        let half = ADVANCE * width(name) as f64 / 2.0;
        let own = [x - half, y - 8.0, x + half, y + 8.0];
        let about = title(about);
        let near: Vec<String> = near.iter().map(ToString::to_string).collect();
        let data = format!("data-at=\"{at}\" data-name=\"{}\" data-near=\"{}\"", escape(name), near.join(" "));
        if taken.iter().all(|it| own[2] < it[0] || it[2] < own[0] || own[3] < it[1] || it[3] < own[1]) {
            taken.push(own);
            names += &format!("<g {data}>{about}{}</g>\n", text("i", [x, y + 4.5], Anchor::Middle, name));
        } else {
            dots += &format!("<circle {data} class=\"point\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\">{about}</circle>\n");
        }
    }
    ([frame, dots, names].concat(), MAP) // names lie above dots
}

/// Rows of nodes, the first at the bottom, and curves between them, as wide as their weights.
fn graph(graph: &Graph, room: f64) -> Drawing {
    const SIZE: [f64; 2] = [104.0, 40.0]; // of a node
    const STEP: f64 = 84.0; // from row to row
    let most = graph.rows.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let width = f64::max(room.min(WIDE), most * (SIZE[0] + 6.0));
    let place = |[row, at]: [usize; 2]| {
        let x = width * (at as f64 + 0.5) / graph.rows[row].len() as f64;
        [x, (graph.rows.len() - 1 - row) as f64 * STEP]
    };
    let largest = graph.links.iter().map(|(_, _, weight)| weight.abs()).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = String::new();
    for (from, to, weight) in &graph.links {
        let ([x, y], [to_x, to_y]) = (place(*from), place(*to));
        let to_y = to_y + SIZE[1];
        let middle = f64::midpoint(y, to_y);
        let class = if *weight < 0.0 { "link-negative" } else { "link-positive" };
        svg += &format!(
            "<path class=\"link {class}\" data-from=\"{}-{}\" data-to=\"{}-{}\" stroke-width=\"{:.1}\" d=\"M{x:.1} {y:.1}C{x:.1} \
             {middle:.1} {to_x:.1} {middle:.1} {to_x:.1} {to_y:.1}\"/>\n",
            from[0],
            from[1],
            to[0],
            to[1],
            1.0 + 7.0 * weight.abs() / largest
        );
    }
    for (row, nodes) in graph.rows.iter().enumerate() {
        for (at, GraphNode { name, note, about }) in nodes.iter().enumerate() {
            let [x, y] = place([row, at]);
            svg += &format!(
                "<g data-node=\"{row}-{at}\">{}{}{}{}</g>\n",
                title(about),
                rect("frame node", [x - SIZE[0] / 2.0, y], SIZE),
                text("i", [x, y + 17.0], Anchor::Middle, name),
                svg::text("m", [x, y + 33.0], Some(self::SIZE - 2.0), Anchor::Middle, note)
            );
        }
    }
    (svg, [width, graph.rows.len() as f64 * STEP - STEP + SIZE[1]])
}

/// One chart, or several in rows below one legend, each below its title.
fn charts(charts: &[Chart], room: f64) -> Drawing {
    const SMALL: [f64; 2] = [250.0, 150.0];
    let [first, _, ..] = charts else {
        let size = [room, if room < WIDE { 230.0 } else { 300.0 }];
        return charts.first().map_or((String::new(), [0.0; 2]), |chart| chart.drawing(size));
    };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of columns")]
    let n_across = (room / SMALL[0]) as usize;
    let (mut svg, [_, top]) = plot::legend(&first.legend(), room);
    let row = SMALL[1] + 34.0;
    for (at, chart) in charts.iter().enumerate() {
        let [x, y] = [(at % n_across) as f64 * room / n_across as f64, top + (at / n_across) as f64 * row];
        svg += &format!("<g transform=\"translate({x:.1} {y:.1})\">\n");
        svg += &text("i", [0.0, 14.0], Anchor::Start, &chart.title[0]);
        svg += &format!("<g transform=\"translate(0 20)\">\n{}</g>\n</g>\n", chart.drawn(&chart.plot(SMALL)));
    }
    (svg, [room, top + charts.len().div_ceil(n_across) as f64 * row])
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of columns")]
fn lines(lines: &[String], room: f64) -> Drawing {
    let lines = folded(&lines.join("\n"), (room / ADVANCE) as usize);
    let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    let line = |(row, line): (usize, &String)| text("i pre", [0.0, row as f64 * 20.0 + 14.0], Anchor::Start, line);
    let svg: String = lines.iter().enumerate().map(line).collect();
    (svg, [ADVANCE * columns(lines.iter()), lines.len() as f64 * 20.0])
}
