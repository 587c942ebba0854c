//! Measured subjects as sheets: a heading, text and figures, without a drawing. `text`, `svg` and `html` each draw
//! every kind of figure once.

pub(crate) mod embeddings;
pub(crate) mod explanation;
pub(crate) mod graph;
pub(crate) mod heads;
pub(crate) mod html;
pub(crate) mod map;
pub(crate) mod measured;
pub(crate) mod pieces;
pub(crate) mod plan;
pub(crate) mod svg;
pub(crate) mod text;

use crate::format::{percent, signed};
use crate::view::svg::chart::Chart;
use crate::view::svg::plot::ends;
use crate::view::theme::{self, Theme};

/// A heading, text and figures about one measured subject.
#[derive(Clone, Debug)]
pub struct Sheet {
    pub(crate) heading: String,
    pub(crate) lead: String,
    pub(crate) figures: Vec<Figure>,
}

#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub title: String,
    /// The column of the sheet's first grid that the figure is about, if a page lets the reader choose another.
    pub choice: Option<Choice>,
    pub content: Content,
}

/// One of several figures, by the column that a reader clicks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The column, counted from 0.
    pub column: usize,
    /// Whether this figure is shown first. Only such a figure is in a picture and in a terminal.
    pub is_first: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Cells in rows and columns.
    Grid(Grid),
    /// A bar per number, to the right or the left of 0.
    Bars(Bars),
    /// A text in coloured pieces.
    Pieces(Pieces),
    /// Names in a plane.
    Map(Map),
    /// Parts in rows, and links between them.
    Graph(Graph),
    /// Curves: one chart, or several small ones with one legend.
    Charts(Vec<Chart>),
    /// Lines of monospaced text.
    Lines(Vec<String>),
}

/// Cells in rows and columns, coloured by value.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub rows: Vec<String>,
    pub columns: Vec<String>,
    pub kind: ColumnKind,
    /// `[rows][columns]`; `None` for an empty cell.
    pub cells: Vec<Vec<Option<Cell>>>,
    pub scale: ColorScale,
    /// The column that the sheet is about, which a page shows first.
    pub chosen: Option<usize>,
}

/// The subject of a column of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Named,
    /// The heads of the layers that are the rows. A click opens a head's maps, if they are on the page.
    Heads,
    /// The tokens of a text from this position on. There may be many: a terminal lists them from top to bottom.
    TokensFrom(usize),
    /// The elements of a vector: a terminal shows as many as fit.
    Elements,
}

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub value: f64,
    /// The text in the cell; may be empty.
    pub label: String,
    /// A second, smaller line of text; may be empty.
    pub note: String,
    pub about: String,
    /// Whether it is outlined, or followed by a star in a terminal; the title says what for.
    pub is_marked: bool,
}

/// The mapping of values to colours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ColorScale {
    /// From 0 to 1, by square root, like weights.
    Fraction,
    /// From 0 up to the number that has full strength, evenly: bits.
    UpTo(f64),
    /// Below and above 0; the given number has full strength.
    Signed(f64),
    /// The same for shares, in percent.
    Shares(f64),
    /// One colour, for what has a value at all.
    Marked,
}

#[derive(Clone, Debug)]
pub(crate) struct Bars {
    pub rows: Vec<(String, f64)>,
    pub label: fn(f64) -> String,
}

/// A text as its tokens, in lines.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    pub tokens: Vec<Piece>,
    pub scale: ColorScale,
}

#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub text: String,
    /// Whether a line ends after it.
    pub ends_line: bool,
    /// `None` for a token without a value: every other one is then shaded.
    pub value: Option<f64>,
    pub about: String,
}

/// Points with names; the title of the figure is the meaning of the plane.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    /// The points, the most important first: its name is drawn where another would cover it.
    pub points: Vec<MapPoint>,
}

#[derive(Clone, Debug)]
pub(crate) struct MapPoint {
    pub name: String,
    /// Its place; any range.
    pub at: [f64; 2],
    pub about: String,
    /// The points most similar to it, by index.
    pub near: Vec<usize>,
}

/// Parts in rows, from the bottom to the top, and weighted links between them.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub rows: Vec<Vec<GraphNode>>,
    /// From and to, each a row and a place in it, and the weight.
    pub links: Vec<([usize; 2], [usize; 2], f64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct GraphNode {
    pub name: String,
    /// A second, smaller line of text; may be empty.
    pub note: String,
    pub about: String,
}

impl Sheet {
    /// The figures that are shown before a reader chooses others.
    pub(crate) fn shown_first(&self) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(|figure| figure.choice.is_none_or(|choice| choice.is_first))
    }
}

impl Figure {
    fn new(title: impl Into<String>, content: Content) -> Self {
        Self { title: title.into(), choice: None, content }
    }

    pub(crate) fn grid(title: impl Into<String>, grid: Grid) -> Self {
        Self::new(title, Content::Grid(grid))
    }

    pub(crate) fn bars(title: impl Into<String>, rows: Vec<(String, f64)>, label: fn(f64) -> String) -> Self {
        Self::new(title, Content::Bars(Bars { rows, label }))
    }
}

impl Grid {
    /// The grid of what `cell` gives for each row and column.
    pub(crate) fn new(
        rows: Vec<String>,
        columns: Vec<String>,
        kind: ColumnKind,
        scale: ColorScale,
        cell: impl Fn(usize, usize) -> Option<Cell>,
    ) -> Self {
        let cells = (0..rows.len()).map(|row| (0..columns.len()).map(|at| cell(row, at)).collect()).collect();
        Self { rows, columns, kind, cells, scale, chosen: None }
    }
}

impl Cell {
    /// A cell with one line of text.
    pub(crate) fn new(value: f64, label: String, about: String) -> Self {
        Self { value, label, note: String::new(), about, is_marked: false }
    }
}

impl Bars {
    /// The length of a value's bar, as a fraction of the longest.
    pub(crate) fn length(&self, value: f64) -> f64 {
        let longest = self.rows.iter().map(|(_, value)| value.abs()).fold(f64::MIN_POSITIVE, f64::max);
        value.abs() / longest
    }
}

impl Pieces {
    pub(crate) fn has_legend(&self) -> bool {
        self.tokens.iter().any(|piece| piece.value.is_some()) && !self.scale.legend().is_empty()
    }
}

impl Map {
    /// The place of each point, both coordinates in 0..=1, with up as positive.
    pub(crate) fn placed(&self) -> Vec<[f64; 2]> {
        let ends = [0, 1].map(|axis| ends(self.points.iter().map(|point| point.at[axis])).unwrap_or_default());
        let part = |axis: usize, x: f64| {
            let [low, high] = ends[axis];
            if high > low { (x - low) / (high - low) } else { 0.5 }
        };
        self.points.iter().map(|point| [part(0, point.at[0]), part(1, point.at[1])]).collect()
    }
}

/// The largest absolute value; above 0.
fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(f64::abs).fold(f64::MIN_POSITIVE, f64::max)
}

impl ColorScale {
    /// The scale on which the largest absolute value has full strength.
    pub fn signed(values: impl IntoIterator<Item = f64>) -> Self {
        Self::Signed(largest(values))
    }

    /// The same for shares.
    pub(crate) fn shares(values: impl IntoIterator<Item = f64>) -> Self {
        Self::Shares(largest(values))
    }

    /// The strength of a value's colour, in 0..=1.
    #[allow(clippy::cast_possible_truncation, reason = "a colour")]
    pub(crate) fn strength(self, value: f64) -> f32 {
        match self {
            Self::Fraction => value.clamp(0.0, 1.0).sqrt() as f32,
            Self::UpTo(full) => (value / full).clamp(0.0, 1.0) as f32,
            Self::Signed(full) | Self::Shares(full) => (value.abs() / full).clamp(0.0, 1.0).sqrt() as f32,
            Self::Marked => 1.0,
        }
    }

    /// Values across the scale, with their labels: a legend. None for one colour, which a title explains.
    pub(crate) fn legend(self) -> Vec<(f64, String)> {
        match self {
            Self::Fraction => [0.0, 0.01, 0.05, 0.2, 0.5, 1.0].map(|x| (x, format!("{:.0} %", 100.0 * x))).to_vec(),
            Self::UpTo(full) => [0.0, 0.25, 0.5, 0.75, 1.0].map(|x| (x * full, (x * full).to_string())).to_vec(),
            Self::Signed(full) => {
                let decimals = if full < 0.1 { 4 } else { 2 };
                let label = |x: f64| if x == 0.0 { "0".to_owned() } else { signed(x, decimals) };
                [-1.0, -0.25, 0.0, 0.25, 1.0].map(|x| (x * full, label(x * full))).to_vec()
            }
            Self::Shares(full) => [-1.0, -0.25, 0.0, 0.25, 1.0].map(|x| (x * full, percent(x * full))).to_vec(),
            Self::Marked => Vec::new(),
        }
    }

    /// The colour of a value, and black or white for text on it.
    pub(crate) fn colors(self, value: f64, theme: Theme) -> [[u8; 3]; 2] {
        let strength = self.strength(value);
        let ground = match self {
            Self::Fraction | Self::UpTo(_) => theme::heat(theme, strength),
            Self::Signed(_) | Self::Shares(_) | Self::Marked => {
                let full = theme::rgb(if value < 0.0 { "negative" } else { "positive" }, theme);
                theme::between(theme::rgb("panel", theme), full, strength)
            }
        };
        [ground, theme::letters_on(ground)]
    }
}
