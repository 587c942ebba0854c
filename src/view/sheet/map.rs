//! Points with names in a plane: tokens whose vectors are similar are near each other.

use crate::format::{fixed, grouped, percent};
use crate::inspect::EmbeddingMap;
use crate::view::escape;
use crate::view::sheet::{ADVANCE, Figure, MARGIN, SIZE, Sheet};
use crate::view::svg::{self, Anchor};
use crate::view::terminal::columns::width;

/// Points with names.
#[derive(Clone, Debug)]
pub struct Map {
    /// The meaning of the plane.
    pub title: String,
    /// The points, the most important first: its name is drawn where another would cover it.
    pub points: Vec<MapPoint>,
}

/// A point with a name.
#[derive(Clone, Debug)]
pub struct MapPoint {
    /// The name.
    pub name: String,
    /// Its place; any range.
    pub at: [f64; 2],
    /// The tooltip.
    pub about: String,
}

/// The token embedding in the plane in which it varies most.
#[must_use]
pub fn embedding_map_sheet(map: &EmbeddingMap) -> Sheet {
    let [across, up] = map.explained;
    let points = map.tokens.iter().map(|token| {
        let near = token.nearest.iter().map(|(name, cosine)| format!("“{name}” {}", fixed(*cosine, 2)));
        let near = near.collect::<Vec<_>>().join(", ");
        MapPoint {
            name: token.text.clone(),
            at: [token.x, token.y],
            about: format!("“{}”, {} in the text. Most similar: {near}", token.text, grouped(token.count)),
        }
    });
    Sheet {
        heading: "The token embedding".to_owned(),
        lead: format!(
            "The {} most frequent tokens of the text, where similar vectors are near: the plane in which the vectors differ \
             most (principal components). It has {} of their variance, so look at the most similar by cosine, too.",
            map.tokens.len(),
            percent(across + up)
        ),
        figures: vec![Figure::Map(Map {
            title: format!("Across {} of the variance, up {}", percent(across), percent(up)),
            points: points.collect(),
        })],
    }
}

/// The size of the picture, in pixels.
const SIDES: [f64; 2] = [880.0, 640.0];

impl Map {
    /// Every point from 0 to 1, with up as positive.
    fn placed(&self) -> Vec<[f64; 2]> {
        let ends = [0, 1].map(|axis| {
            let ends = |[low, high]: [f64; 2], x: f64| [low.min(x), high.max(x)];
            self.points.iter().map(|point| point.at[axis]).fold([f64::INFINITY, f64::NEG_INFINITY], ends)
        });
        let part = |axis: usize, x: f64| {
            let [low, high] = ends[axis];
            if high > low { (x - low) / (high - low) } else { 0.5 }
        };
        self.points.iter().map(|point| [part(0, point.at[0]), part(1, point.at[1])]).collect()
    }

    /// The dots and as many names as have room, with the origin at the upper left.
    fn drawn(&self, has_titles: bool) -> String {
        let [across, down] = SIDES;
        let room = [60.0, 16.0];
        let frame = format!("<rect class=\"frame\" width=\"{across}\" height=\"{down}\" rx=\"6\"/>\n");
        let (mut dots, mut names) = (String::new(), String::new());
        let mut taken: Vec<[f64; 4]> = Vec::new();
        for (MapPoint { name, about, .. }, [x, y]) in self.points.iter().zip(self.placed()) {
            let x = room[0] + x * (across - 2.0 * room[0]);
            let y = down - room[1] - y * (down - 2.0 * room[1]);
            let half = ADVANCE * width(name) as f64 / 2.0;
            let own = [x - half, y - 8.0, x + half, y + 8.0];
            let has_room = taken.iter().all(|it| own[2] < it[0] || it[2] < own[0] || own[3] < it[1] || it[3] < own[1]);
            let about = escape(about);
            // In a page the line above the map says it.
            let title = if has_titles { format!("<title>{about}</title>") } else { String::new() };
            if has_room {
                taken.push(own);
                let name = svg::text("i", [x, y + 4.5], Some(SIZE), Anchor::Middle, name);
                names += &format!("<g data-about=\"{about}\">{title}{}</g>\n", name.trim_end());
            } else {
                dots += &format!(
                    "<circle class=\"point\" data-about=\"{about}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\">{title}</circle>\n"
                );
            }
        }
        [frame, dots, names].concat() // names lie above dots
    }

    pub(super) fn html(&self) -> String {
        let [across, down] = SIDES;
        let title = escape(&self.title);
        format!(
            "<figure>\n<figcaption>{title}</figcaption>\n<output></output>\n<div class=\"scrolls\">\n\
             <svg class=\"map\" viewBox=\"0 0 {across} {down}\" width=\"{across}\" height=\"{down}\" data-walk tabindex=\"0\" \
             role=\"img\" aria-label=\"{title}: arrow keys move from token to token\">\n{}</svg>\n</div>\n</figure>\n",
            self.drawn(false)
        )
    }

    pub(super) fn svg(&self, svg: &mut String, y: f64) -> [f64; 2] {
        *svg += &svg::text("i", [MARGIN, y + 14.0], Some(SIZE), Anchor::Start, &self.title);
        let top = y + 24.0;
        *svg += &format!("<g transform=\"translate({MARGIN} {top})\">\n{}</g>\n", self.drawn(true));
        [MARGIN + SIDES[0], top + SIDES[1]]
    }

    /// As many names as have room in so many columns and lines.
    pub(super) fn text(&self, n_columns: usize, n_lines: usize) -> String {
        let mut lines = vec![vec![" ".to_owned(); n_columns]; n_lines];
        for (point, [x, y]) in self.points.iter().zip(self.placed()) {
            let name = &point.name;
            let n = width(name);
            if n == 0 || n + 2 > n_columns {
                continue;
            }
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the lines")]
            let (column, line) =
                ((x * (n_columns - n) as f64).round() as usize, ((1.0 - y) * (n_lines - 1) as f64).round() as usize);
            let around = column.saturating_sub(1)..(column + n + 1).min(n_columns);
            if lines[line][around].iter().all(|cell| cell == " ") {
                lines[line][column].clone_from(name);
                lines[line][column + 1..column + n].fill(String::new());
            }
        }
        lines.iter().map(|line| line.concat().trim_end().to_owned() + "\n").collect()
    }
}

/// The map for a terminal, and the tokens most similar to the most frequent.
#[must_use]
pub fn embedding_map_text(map: &EmbeddingMap, n_columns: usize) -> String {
    const N_LINES: usize = 24;
    const N_NAMED: usize = 12;
    let sheet = embedding_map_sheet(map);
    let mut text = format!("{}\n\n", sheet.lead);
    if let [Figure::Map(drawn)] = &sheet.figures[..] {
        text += &drawn.text(n_columns, N_LINES);
        text += "\nMost similar\n";
        for token in map.tokens.iter().take(N_NAMED) {
            let near = token.nearest.iter().map(|(name, cosine)| format!("{name} {}", fixed(*cosine, 2)));
            text += &format!("  {}: {}\n", token.text, near.collect::<Vec<_>>().join("  "));
        }
    }
    text
}
