//! The results of `inspect`, except attention, as pictures: grids of coloured cells and bars, as a page or as SVG.

pub(crate) mod embeddings;
pub(crate) mod explanation;
pub(crate) mod heads;
pub(crate) mod map;
pub(crate) mod measured;
pub(crate) mod pieces;
pub(crate) mod plan;

use crate::format::signed;
use crate::view::svg::plot;
use crate::view::svg::{self, Anchor};
use crate::view::terminal::columns::{fit, flow, width};
use crate::view::theme::{self, Heat, Theme, hex};
use crate::view::{Chart, Fragment, breakable, escape, page_about};
use map::Map;
use pieces::Pieces;

const STYLE: &str = include_str!("../assets/sheet.css");
const SCRIPT: &str = include_str!("../assets/sheet.js");

/// A heading, text and figures about one measured subject.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// Its subject, such as the prompt.
    pub heading: String,
    /// A sentence or two.
    pub lead: String,
    /// The figures, from top to bottom.
    pub figures: Vec<Figure>,
}

/// A picture of numbers.
#[derive(Clone, Debug)]
pub enum Figure {
    /// Cells in rows and columns.
    Grid(Grid),
    /// A bar per number, to the right or the left of 0.
    Bars(Bars),
    /// A text in coloured pieces.
    Pieces(Pieces),
    /// Names in a plane.
    Map(Map),
    /// Curves.
    #[allow(private_interfaces, reason = "only drawn, and made here")]
    Chart(Chart),
}

/// Cells in rows and columns, coloured by value.
#[derive(Clone, Debug)]
pub struct Grid {
    /// The meaning of the cells.
    pub title: String,
    /// The row names, from top to bottom.
    pub rows: Vec<String>,
    /// The column names, from left to right.
    pub columns: Vec<String>,
    /// `[rows][columns]`; `None` for an empty cell.
    pub cells: Vec<Vec<Option<Cell>>>,
    /// The meaning of the colours.
    pub scale: ColorScale,
}

/// A value in a grid.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The value.
    pub value: f64,
    /// The text in the cell; may be empty.
    pub label: String,
    /// A second, smaller line of text; may be empty.
    pub note: String,
    /// The tooltip.
    pub about: String,
}

/// The mapping of values to colours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ColorScale {
    /// From 0 to 1, by square root, like weights.
    Fraction,
    /// From 0 up to the number that has full strength, evenly: bits.
    UpTo(f64),
    /// Below and above 0; the given number has full strength.
    Signed(f64),
}

/// Numbers with names.
#[derive(Clone, Debug)]
pub struct Bars {
    /// The meaning of the numbers.
    pub title: String,
    /// The names and numbers, from top to bottom.
    pub rows: Vec<(String, f64)>,
    /// The column of the sheet's first grid that they are about, if the reader can choose another; of these only the one
    /// that is shown first is in a picture.
    pub choice: Option<Choice>,
    /// A number as text.
    pub label: fn(f64) -> String,
}

/// One of several bars, by the column that a reader clicks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The column, counted from 0.
    pub column: usize,
    /// Whether these bars are shown first.
    pub is_first: bool,
}

impl ColorScale {
    /// The scale on which the largest absolute value has full strength.
    #[must_use]
    pub fn signed(values: impl IntoIterator<Item = f64>) -> Self {
        Self::Signed(values.into_iter().map(f64::abs).fold(f64::MIN_POSITIVE, f64::max))
    }

    /// The strength of a value, in 0..=1, by square root, and the name of its colour token.
    #[allow(clippy::cast_possible_truncation, reason = "a colour")]
    fn strength(self, value: f64) -> f32 {
        match self {
            Self::Fraction => value.clamp(0.0, 1.0).sqrt() as f32,
            Self::UpTo(full) => (value / full).clamp(0.0, 1.0) as f32,
            Self::Signed(full) => (value.abs() / full).clamp(0.0, 1.0).sqrt() as f32,
        }
    }

    /// Values across the scale, with their labels: a legend.
    fn legend(self) -> Vec<(f64, String)> {
        match self {
            Self::Fraction => [0.0, 0.01, 0.05, 0.2, 0.5, 1.0].map(|x| (x, format!("{:.0} %", 100.0 * x))).to_vec(),
            Self::UpTo(full) => [0.0, 0.25, 0.5, 0.75, 1.0].map(|x| (x * full, (x * full).to_string())).to_vec(),
            Self::Signed(full) => {
                let decimals = if full < 0.1 { 4 } else { 2 };
                let label = |x: f64| if x == 0.0 { "0".to_owned() } else { signed(x, decimals) };
                [-1.0, -0.25, 0.0, 0.25, 1.0].map(|x| (x * full, label(x * full))).to_vec()
            }
        }
    }

    /// The colour of a value, and black or white for text on it.
    pub(crate) fn colors(self, value: f64, theme: Theme) -> [[u8; 3]; 2] {
        let strength = self.strength(value);
        let ground = match self {
            Self::Fraction | Self::UpTo(_) => Heat::new(theme).at(strength),
            Self::Signed(_) => {
                let full = theme::rgb(if value < 0.0 { "negative" } else { "positive" }, theme);
                theme::between(theme::rgb("panel", theme), full, strength)
            }
        };
        [ground, theme::letters_on(ground)]
    }
}

/// Several sheets as a page; `about` names a run and its step.
#[must_use]
pub fn sheets_html(title: &str, about: &str, sheets: &[Sheet]) -> String {
    let section = |sheet: &Sheet| (breakable(&sheet.heading), sheet_fragment(sheet));
    page_about(title, about, "", &sheets.iter().map(section).collect::<Vec<_>>())
}

/// An empty section of this kind.
pub(crate) const EMPTY: Fragment = Fragment::empty("sheet", &[plot::STYLE, STYLE], &[SCRIPT]);

/// A sheet as a section of any page.
pub(crate) fn sheet_fragment(sheet: &Sheet) -> Fragment {
    let figures = sheet.figures.iter().map(|figure| match figure {
        Figure::Grid(grid) => grid.html(),
        Figure::Bars(bars) => bars.html(),
        Figure::Pieces(pieces) => pieces.html(),
        Figure::Map(map) => map.html(),
        Figure::Chart(chart) => chart.still(),
    });
    Fragment {
        body: format!("<p class=\"lead\">{}</p>\n{}", breakable(&escape(&sheet.lead)), figures.collect::<String>()),
        ..EMPTY
    }
}

/// The colours of a cell and of the text in it, in both themes, in CSS.
fn css_colors(scale: ColorScale, value: f64) -> [String; 2] {
    let [light, dark] = [Theme::Light, Theme::Dark].map(|theme| scale.colors(value, theme).map(hex));
    [0, 1].map(|at| format!("light-dark({}, {})", light[at], dark[at]))
}

/// The colours of a scale and their values, as a line of a page.
fn legend_html(scale: ColorScale) -> String {
    let entry = |(value, label): (f64, String)| {
        let [ground, _] = css_colors(scale, value);
        format!("<span><i style=\"background:{ground}\"></i>{}</span>", escape(&label))
    };
    format!("<p class=\"scale\">{}</p>\n", scale.legend().into_iter().map(entry).collect::<String>())
}

/// The same in a picture, below `y`.
fn legend_svg(scale: ColorScale, svg: &mut String, y: f64) {
    let mut x = MARGIN;
    for (value, label) in scale.legend() {
        let (class, _) = scale.classes(value);
        *svg += &format!("<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\"/>\n");
        *svg += &svg::text("i", [x + 18.0, y + 10.0], Some(SIZE), Anchor::Start, &label);
        x += 18.0 + ADVANCE * (width(&label) as f64 + 2.0);
    }
}

impl Grid {
    fn html(&self) -> String {
        let columns: String =
            self.columns.iter().map(|name| format!("<th scope=\"col\">{}</th>", escape(name))).collect();
        let mut rows = String::new();
        for (name, cells) in self.rows.iter().zip(&self.cells) {
            rows += &format!("<tr><th scope=\"row\">{}</th>", escape(name));
            for cell in cells {
                rows += &match cell {
                    None => "<td></td>".to_owned(),
                    Some(Cell { value, label, note, about }) => {
                        let ([ground, letters], about, label) =
                            (css_colors(self.scale, *value), escape(about), escape(label));
                        let note =
                            if note.is_empty() { String::new() } else { format!("<small>{}</small>", escape(note)) };
                        format!(
                            "<td style=\"background:{ground};color:{letters}\" data-about=\"{about}\">{label}{note}</td>"
                        )
                    }
                };
            }
            rows += "</tr>\n";
        }
        let legend = legend_html(self.scale);
        format!(
            "<figure>\n<figcaption>{}</figcaption>\n{legend}<output></output>\n\
             <div class=\"scrolls\">\n<table class=\"cells\" tabindex=\"0\" aria-label=\"{}\">\n\
             <thead><tr><td></td>{columns}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n</figure>\n",
            escape(&self.title),
            escape(&format!("{}: arrow keys move from cell to cell", self.title)),
        )
    }

    /// Draws the grid below `y`; returns its right and lower ends.
    fn svg(&self, svg: &mut String, y: f64) -> [f64; 2] {
        let has_notes = self.cells.iter().flatten().flatten().any(|cell| !cell.note.is_empty());
        let height = if has_notes { 36.0 } else { ROW };
        let chars = |names: &mut dyn Iterator<Item = &String>| names.map(|name| width(name)).max().unwrap_or(0) as f64;
        let left = MARGIN + ADVANCE * (chars(&mut self.rows.iter()) + 1.5);
        let mut labels = self.cells.iter().flatten().flatten().flat_map(|cell| [&cell.label, &cell.note]);
        let widest = chars(&mut labels).max(chars(&mut self.columns.iter())).max(2.0);
        let column = ADVANCE * (widest + 1.0);
        let top = y + 3.2 * ROW;
        *svg += &svg::text("i", [MARGIN, y + 14.0], Some(SIZE), Anchor::Start, &self.title);
        legend_svg(self.scale, svg, y + 24.0);
        for (at, name) in self.columns.iter().enumerate() {
            let x = left + (at as f64 + 0.5) * column;
            *svg += &svg::text("m", [x, top - 6.0], Some(SIZE), Anchor::Middle, name);
        }
        for (row, (name, cells)) in self.rows.iter().zip(&self.cells).enumerate() {
            let y = top + row as f64 * height;
            *svg += &svg::text("m", [left - 8.0, y + 15.0], Some(SIZE), Anchor::End, name);
            for (at, cell) in cells.iter().enumerate() {
                let Some(Cell { value, label, note, about }) = cell else { continue };
                let x = left + at as f64 * column;
                let (class, letters) = self.scale.classes(*value);
                *svg += &format!(
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>\n",
                    column - 1.0,
                    height - 1.0,
                    escape(about)
                );
                for (text, size, below) in [(label, SIZE, 15.0), (note, SIZE - 2.0, 30.0)] {
                    if !text.is_empty() {
                        *svg += &svg::text(&letters, [x + column / 2.0, y + below], Some(size), Anchor::Middle, text);
                    }
                }
            }
        }
        [left + self.columns.len() as f64 * column, top + self.rows.len() as f64 * height]
    }
}

impl Bars {
    /// Whether there are bars to the left of 0, which is then in the middle.
    fn is_signed(&self) -> bool {
        self.rows.iter().any(|(_, value)| *value < 0.0)
    }

    /// The CSS class, the left end and the length of a value's bar within `width`, which the largest fills.
    fn bar(&self, value: f64, width: f64) -> (&'static str, f64, f64) {
        let zero = if self.is_signed() { width / 2.0 } else { 0.0 };
        let full = self.rows.iter().map(|(_, value)| value.abs()).fold(f64::MIN_POSITIVE, f64::max);
        let length = (width - zero) * value.abs() / full;
        if value < 0.0 { ("negative", zero - length, length) } else { ("positive", zero, length) }
    }

    fn html(&self) -> String {
        let choice = self.choice.map_or(String::new(), |Choice { column, is_first }| {
            format!(" data-column=\"{column}\"{}", if is_first { "" } else { " hidden" })
        });
        let mut rows = String::new();
        for (name, value) in &self.rows {
            let (class, left, width) = self.bar(*value, 100.0); // percent
            rows += &format!(
                "<dt>{}</dt><dd><span class=\"track\"><i class=\"{class}\" style=\"left:{left:.2}%;width:{width:.2}%\"></i>\
                 </span><span class=\"number\">{}</span></dd>\n",
                escape(name),
                escape(&(self.label)(*value))
            );
        }
        format!(
            "<figure{choice}>\n<figcaption>{}</figcaption>\n<dl class=\"terms{}\">\n{rows}</dl>\n</figure>\n",
            escape(&self.title),
            if self.is_signed() { "" } else { " from-zero" }
        )
    }

    fn svg(&self, svg: &mut String, y: f64) -> [f64; 2] {
        const WIDTH: f64 = 320.0;
        let longest = self.rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0) as f64;
        let left = MARGIN + ADVANCE * (longest + 1.0);
        let labels: Vec<String> = self.rows.iter().map(|(_, value)| (self.label)(*value)).collect();
        let end = left + WIDTH + ADVANCE * (1 + labels.iter().map(|label| width(label)).max().unwrap_or(0)) as f64;
        *svg += &svg::text("i", [MARGIN, y + 14.0], Some(SIZE), Anchor::Start, &self.title);
        let top = y + 26.0;
        for (row, (name, value)) in self.rows.iter().enumerate() {
            let y = top + row as f64 * ROW;
            let (class, start, length) = self.bar(*value, WIDTH);
            let x = left + start;
            *svg += &svg::text("m", [left - 8.0, y + 14.0], Some(SIZE), Anchor::End, name);
            *svg += &format!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"12\"/>\n",
                y + 4.0
            );
            *svg += &svg::text("i", [end, y + 14.0], Some(SIZE), Anchor::End, &labels[row]);
        }
        [end, top + self.rows.len() as f64 * ROW]
    }
}

/// All sizes are in pixels.
const MARGIN: f64 = 24.0;
const SIZE: f64 = 13.0;
/// The width of a character in monospaced fonts.
const ADVANCE: f64 = 8.0;
const FIGURE_GAP: f64 = 24.0;
/// The height of a row of cells with one line of text.
const ROW: f64 = 22.0;
/// The number of shades per scale in SVG.
const N_SHADES: usize = 16;

impl ColorScale {
    /// The CSS classes of a cell and of text on it, in SVG.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in 0..=N_SHADES")]
    fn classes(self, value: f64) -> (String, String) {
        let shade = (self.strength(value) * N_SHADES as f32).round() as usize;
        let kind = match self {
            Self::Fraction | Self::UpTo(_) => 's',
            Self::Signed(_) if value < 0.0 => 'n',
            Self::Signed(_) => 'p',
        };
        (format!("{kind}{shade}"), format!("{kind}{shade}-text"))
    }
}

/// The styles of a picture: a class per shade, and one for text on it.
fn svg_style() -> String {
    let signed = ".positive{fill:var(--positive)}.negative{fill:var(--negative)}\n\
                  .odd,.frame{fill:var(--panel)}.even{fill:var(--edge)}.point{fill:var(--plain)}\n";
    let mut style = [svg::STYLE, plot::STYLE, signed].concat();
    for shade in 0..=N_SHADES {
        let value = (shade as f64 / N_SHADES as f64).powi(2);
        for (kind, scale, value) in [
            ('s', ColorScale::Fraction, value),
            ('p', ColorScale::Signed(1.0), value),
            ('n', ColorScale::Signed(1.0), -value),
        ] {
            let [ground, letters] = css_colors(scale, value);
            style += &format!(".{kind}{shade}{{fill:{ground}}}.{kind}{shade}-text{{fill:{letters}}}\n");
        }
    }
    theme::in_file(&style)
}

/// Several sheets as a picture, stacked vertically; `about` names a run and its step.
#[must_use]
pub fn sheets_svg(title: &str, about: &str, sheets: &[Sheet]) -> String {
    let (mut body, mut right, mut y) = (String::new(), 560.0_f64, MARGIN);
    let mut line = |body: &mut String, y: &mut f64, class: &str, text: &str| {
        *body += &svg::text(class, [MARGIN, *y + 14.0], Some(SIZE), Anchor::Start, text);
        right = right.max(MARGIN + ADVANCE * width(text) as f64);
        *y += 20.0;
    };
    line(&mut body, &mut y, "m", about);
    let mut ends = 0.0_f64;
    for sheet in sheets {
        line(&mut body, &mut y, "i", fit(&sheet.heading, 100).trim_end());
        let words: Vec<String> = sheet.lead.split_inclusive(' ').map(str::to_owned).collect();
        for text in flow(&words, 100) {
            line(&mut body, &mut y, "m", text.trim_end());
        }
        for figure in &sheet.figures {
            if matches!(figure, Figure::Bars(Bars { choice: Some(Choice { is_first: false, .. }), .. })) {
                continue;
            }
            y += FIGURE_GAP / 2.0;
            let [end, below] = match figure {
                Figure::Grid(grid) => grid.svg(&mut body, y),
                Figure::Bars(bars) => bars.svg(&mut body, y),
                Figure::Pieces(pieces) => pieces.svg(&mut body, y),
                Figure::Map(map) => map.svg(&mut body, y),
                Figure::Chart(chart) => chart.below(&mut body, [MARGIN, y]),
            };
            ends = ends.max(end);
            y = below + FIGURE_GAP / 2.0;
        }
        y += FIGURE_GAP;
    }
    svg::picture([right.max(ends) + MARGIN, y], title, &svg_style(), &body)
}
