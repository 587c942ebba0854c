//! Attention as a standalone picture: maps of weights, with the tokens beside and above them.
//!
//! Cells of about the same weight form one path, and a map of many tokens has fewer cells than pairs, so that even long
//! prompts make small files.

use std::collections::BTreeMap;

use crate::inspect::PromptAttention;
use crate::view::sheet::ColorScale;
use crate::view::sheet::svg::{COLUMNS, below_legend, class, style};
use crate::view::svg::{self, ADVANCE, Anchor, Drawing, SIZE, Stack};
use crate::view::terminal::attention::largest_weight;
use crate::view::terminal::columns::{flow, width};
use crate::view::theme;

/// Side of a token's cell in the map of a single head, and of several, in pixels.
const LARGE_CELL: f64 = 20.0;
const SMALL_CELL: f64 = 10.0;
const MOST_ACROSS: usize = 200;
const GAP: f64 = 18.0;

/// The heads of each prompt, with the prompts stacked vertically; `about` names a run and its step.
pub fn attention_svg(prompts: &[PromptAttention], about: &str) -> String {
    let mut stack = Stack::new(430.0, SIZE, about);
    for attention in prompts {
        for line in flow(&attention.prompt.whole_pieces(), COLUMNS) {
            stack.line("i", &line);
        }
        stack.line("m", "down: the token that looks; across: the one it looks at");
        let width = stack.width;
        stack.drawing(below_legend(ColorScale::Fraction, width, drawing(attention)));
        stack.y += GAP;
    }
    stack.finish("Attention", &theme::in_file(&[svg::STYLE, &style()].concat()))
}

/// The heads in a row per layer, with the tokens left of the first one and above the first row.
fn drawing(PromptAttention { prompt, recording, selection, .. }: &PromptAttention) -> Drawing {
    let is_single = selection.single().is_some();
    let cell = if is_single { LARGE_CELL } else { SMALL_CELL };
    let font = (cell * 0.85).min(SIZE);
    let longest = prompt.pieces.iter().map(|piece| width(piece)).max().unwrap_or(1);
    // Names of one character need not be rotated.
    let (angle, anchor) = if longest <= 1 { (0, Anchor::Middle) } else { (-90, Anchor::Start) };
    let room = ADVANCE / SIZE * font * (longest as f64 + 1.0);
    // The rows of a single head are also numbered.
    let left = room + if is_single { 4.0 * ADVANCE } else { 0.0 };
    let above = if longest <= 1 { cell * 1.2 } else { room };
    let side = cell * prompt.len() as f64;
    let (mut svg, mut y) = (String::new(), 0.0);
    for layer in selection.layers.clone() {
        y += SIZE + GAP;
        let top = y + 8.0 + if layer == selection.layers.start { above } else { 0.0 };
        for (index, head) in selection.heads.clone().enumerate() {
            let x = left + index as f64 * (side + GAP);
            svg += &svg::text("m", [x, y], Some(SIZE), Anchor::Start, &format!("layer {layer} head {head}"));
            for (at, piece) in prompt.pieces.iter().enumerate() {
                let middle = (at as f64 + 0.5) * cell + font * 0.35;
                if layer == selection.layers.start {
                    let across = x + middle - if longest <= 1 { font * 0.35 } else { 0.0 };
                    let place = format!("translate({across:.1} {:.1}) rotate({angle})", top - 4.0);
                    let name = svg::text("i", [0.0, 0.0], Some(font), anchor, piece);
                    svg += &format!("<g transform=\"{place}\">{name}</g>\n");
                }
                if index == 0 {
                    svg += &svg::text("i", [left - font * 0.4, top + middle], Some(font), Anchor::End, piece);
                }
                if is_single {
                    svg += &svg::text("m", [0.0, top + middle], Some(font), Anchor::Start, &at.to_string());
                }
            }
            svg += &map(recording.map(layer, head), prompt.len(), [x, top], side);
        }
        y = top + side;
    }
    let n = selection.heads.len() as f64;
    (svg, [left + n * side + (n - 1.0) * GAP, y])
}

/// A map of weights: all cells of one shade as one path, with horizontally adjacent cells merged into one rectangle.
fn map(weights: &[f32], n_tokens: usize, [x, top]: [f64; 2], side: f64) -> String {
    let n = n_tokens.min(MOST_ACROSS);
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    for y in 0..n {
        let cells = (0..=y).filter_map(|x| largest_weight(weights, n_tokens, n, [y, x]));
        let shades: Vec<String> = cells.map(|weight| class(ColorScale::Fraction, weight.into())).collect();
        let mut start = 0;
        for run in shades.chunk_by(|a, b| a == b) {
            *paths.entry(run[0].clone()).or_default() += &format!("M{start} {y}h{}v1H{start}z", run.len());
            start += run.len();
        }
    }
    let paths = paths.iter().map(|(class, path)| format!("<path class=\"{class}\" d=\"{path}\"/>\n"));
    format!(
        "<g transform=\"translate({x:.1} {top:.1}) scale({:.3})\" shape-rendering=\"crispEdges\">\n{}</g>\n",
        side / n as f64,
        paths.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::testing::attention;

    #[test]
    fn equal_neighbours_are_one_run() {
        let weights = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0];
        let svg = map(&weights, 3, [0.0; 2], 3.0);
        assert!(svg.contains("<path class=\"s16\" d=\"M0 0h1v1H0zM0 1h2v1H0zM0 2h1v1H0zM2 2h1v1H2z\"/>\n"), "{svg}");
        assert!(svg.contains("<path class=\"s0\" d=\"M1 2h1v1H1z\"/>\n"), "{svg}");
    }

    #[test]
    fn long_prompts_make_small_files() {
        let svg = attention_svg(&[attention(&"a".repeat(400), [1, 1], [None, None], |_, _, _| 0.3)], "mine");
        assert!(svg.contains("scale(20.000)") || svg.contains("scale(40.000)"), "two tokens a cell");
        assert!(svg.contains("M0 199h200v1H0z") && !svg.contains("M0 200h"));
    }
}
