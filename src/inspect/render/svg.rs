//! Attention as a standalone picture: no scripts, no fonts of its own, light or dark as the reader's system is.
//!
//! A weight is the opacity of its cell, on the scale that all forms share. A single head has a cell with a
//! tooltip for every pair; of several heads, cells of about the same weight are one path, so that a
//! long prompt is still a small file.

use std::fmt::{self, Write as _};
use std::ops::Range;

use super::columns::{flow, width};
use super::shade::strength;
use crate::inspect::AttentionView;

const STYLE: &str = "\
svg{background:#fff;max-width:100%;height:auto;font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace}
.i{fill:#1f2328}.m{fill:#59636e}.c{fill:#0b4f9e}.p{fill:#f3f5f8}
@media (prefers-color-scheme:dark){svg{background:#0d1117}.i{fill:#e6edf3}.m{fill:#9198a1}.c{fill:#ffb757}.p{fill:#1a212b}}";

/// The sizes are in pixels.
const MARGIN: f32 = 24.0;
/// Side of a cell of a single head, and of several.
const LARGE_CELL: f32 = 20.0;
const SMALL_CELL: f32 = 10.0;
/// How wide a character of the monospaced fonts is, as a share of the font's size, generously.
const ADVANCE: f32 = 0.62;
const TEXT_SIZE: f32 = 13.0;
const SCREEN: f32 = 1000.0;
/// From one line of words to the next, in sizes of the text.
const LINE: f32 = 1.5;
/// Between two heads.
const GAP: f32 = 18.0;
/// The least width of a picture: its legend's.
const LEAST_WIDTH: f32 = 430.0;
/// How many shades several heads are drawn in.
const N_SHADES: u8 = 16;

/// The heads of each view, one prompt below the other.
#[must_use]
pub fn attention(views: &[AttentionView<'_>]) -> String {
    let sheets: Vec<Sheet> = views.iter().map(|view| Sheet::new(view)).collect();
    let content_width = sheets.iter().map(|sheet| sheet.width).fold(LEAST_WIDTH, f32::max);
    // A picture wider than a screen is shown smaller: its words have to be larger.
    let text = TEXT_SIZE * (content_width / SCREEN).max(1.0);
    let mut body = String::new();
    let mut y = MARGIN;
    for (view, sheet) in views.iter().zip(&sheets) {
        y = sheet
            .draw(&mut body, view, y, [content_width, text])
            .expect("a string takes everything");
        y += MARGIN;
    }
    y = legend(&mut body, y, text).expect("a string takes everything");
    let (w, h) = (content_width + 2.0 * MARGIN, y + MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" \
         role=\"img\">\n<title>Attention: who looks at whom</title>\n<style>{STYLE}</style>\n{body}</svg>\n"
    )
}

/// Where the parts of one prompt's picture are.
struct Sheet {
    cell: f32,
    /// Room for the queries' names, left, and for the keys', above.
    left: f32,
    above: f32,
    /// Whether the keys' names are single characters, which need not be turned.
    is_upright: bool,
    /// Side of one head's map.
    side: f32,
    width: f32,
}

impl Sheet {
    fn new(view: &AttentionView<'_>) -> Self {
        let single = view.selection.single().is_some();
        let cell = if single { LARGE_CELL } else { SMALL_CELL };
        let longest = view.prompt.pieces.iter().map(|piece| width(piece)).max().unwrap_or(1);
        let is_upright = longest <= 1;
        let digits = (view.prompt.len() - 1).to_string().len();
        let advance = font(cell) * ADVANCE;
        // A single head's rows are numbered too.
        let left = advance * (real(longest) + if single { real(digits) + 2.0 } else { 1.0 });
        let above = if is_upright { cell * 1.2 } else { advance * (real(longest) + 1.0) };
        let side = cell * real(view.prompt.len());
        let n = real(view.selection.heads.len());
        Self { cell, left, above, is_upright, side, width: left + n * side + (n - 1.0) * GAP }
    }

    /// Draws the prompt and its heads below `y`, and returns where they end.
    fn draw(
        &self,
        svg: &mut String,
        view: &AttentionView<'_>,
        mut y: f32,
        [content_width, text]: [f32; 2],
    ) -> Result<f32, fmt::Error> {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of columns"
        )]
        let columns = (content_width / (text * ADVANCE)) as usize;
        for line in flow(&view.prompt.whole_pieces(), columns) {
            y += LINE * text;
            label(svg, "i", [MARGIN, y], text, "start", &line)?;
        }
        y += 6.0;
        for layer in view.selection.layers.clone() {
            let first = layer == view.selection.layers.start;
            y += LINE * text + 8.0;
            let above = if first { self.above } else { 0.0 };
            for (index, head) in view.selection.heads.clone().enumerate() {
                let x = MARGIN + self.left + real(index) * (self.side + GAP);
                let caption = format!("layer {layer} head {head}");
                label(svg, "m", [x, y], text, "start", &caption)?;
                let top = y + 8.0 + above;
                if first {
                    self.keys(svg, view, [x, top])?;
                }
                if index == 0 {
                    self.queries(svg, view, [x, top])?;
                }
                let map = view.maps.map(layer, head);
                self.map(svg, view, map, [x, top])?;
            }
            y += 8.0 + above + self.side;
        }
        Ok(y)
    }

    /// The names of the keys, above a map.
    fn keys(&self, svg: &mut String, view: &AttentionView<'_>, [x, top]: [f32; 2]) -> fmt::Result {
        let size = font(self.cell);
        for (at, piece) in view.prompt.pieces.iter().enumerate() {
            let middle = x + (real(at) + 0.5) * self.cell;
            if self.is_upright {
                label(svg, "i", [middle, top - self.cell * 0.3], size, "middle", piece)?;
            } else {
                let (x, y) = (middle + size * 0.35, top - 4.0);
                let piece = escaped(piece);
                writeln!(
                    svg,
                    "<text class=\"i\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\" font-size=\"{size:.1}\">\
                     {piece}</text>"
                )?;
            }
        }
        Ok(())
    }

    /// The names of the queries, left of a map.
    fn queries(
        &self,
        svg: &mut String,
        view: &AttentionView<'_>,
        [x, top]: [f32; 2],
    ) -> fmt::Result {
        let size = font(self.cell);
        let single = view.selection.single().is_some();
        for (at, piece) in view.prompt.pieces.iter().enumerate() {
            let y = top + (real(at) + 0.5) * self.cell + size * 0.35;
            label(svg, "i", [x - size * 0.4, y], size, "end", piece)?;
            if single {
                label(svg, "m", [MARGIN, y], size, "start", &at.to_string())?;
            }
        }
        Ok(())
    }

    fn map(
        &self,
        svg: &mut String,
        view: &AttentionView<'_>,
        map: &[f32],
        [x, top]: [f32; 2],
    ) -> fmt::Result {
        let cell = self.cell;
        let t = view.prompt.len();
        writeln!(
            svg,
            "<g transform=\"translate({x:.1} {top:.1}) scale({cell:.0})\" shape-rendering=\"crispEdges\">"
        )?;
        // What can be seen at all: the triangle up to each token itself.
        let mut triangle = String::from("M0 0");
        for _ in 0..t {
            triangle.push_str("h1v1");
        }
        writeln!(svg, "<path class=\"p\" d=\"{triangle}H0z\"/>")?;
        if view.selection.single().is_some() {
            pairs(svg, view, map)?;
        } else {
            shades(svg, map, t)?;
        }
        writeln!(svg, "</g>")
    }
}

/// A cell for every pair, with its weight as a tooltip.
fn pairs(svg: &mut String, view: &AttentionView<'_>, map: &[f32]) -> fmt::Result {
    let pieces = &view.prompt.pieces;
    for query in 0..pieces.len() {
        for key in 0..=query {
            let weight = map[query * pieces.len() + key];
            let (from, to) = (escaped(&pieces[query]), escaped(&pieces[key]));
            writeln!(
                svg,
                "<rect class=\"c\" x=\"{key}\" y=\"{query}\" width=\"1\" height=\"1\" fill-opacity=\"{:.3}\"><title>{query} \
                 {from} looks at {key} {to}: {weight:.4}</title></rect>",
                strength(weight)
            )?;
        }
    }
    Ok(())
}

/// All cells of about the same weight as one path.
fn shades(svg: &mut String, map: &[f32], t: usize) -> fmt::Result {
    for shade in 1..=N_SHADES {
        let mut path = String::new();
        for query in 0..t {
            let row = &map[query * t..=query * t + query];
            for Range { start, end } in runs(row, |weight| shade_of(weight) == shade) {
                write!(path, "M{start} {query}h{}v1H{start}z", end - start)?;
            }
        }
        if !path.is_empty() {
            let opacity = f32::from(shade) / f32::from(N_SHADES);
            writeln!(svg, "<path class=\"c\" fill-opacity=\"{opacity:.3}\" d=\"{path}\"/>")?;
        }
    }
    Ok(())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in 0..=N_SHADES")]
fn shade_of(weight: f32) -> u8 {
    (strength(weight) * f32::from(N_SHADES)).round() as u8
}

/// The stretches of `row` in which every weight is `wanted`.
fn runs(row: &[f32], wanted: impl Fn(f32) -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in row.iter().enumerate().filter(|(_, weight)| wanted(**weight)) {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// The scale, and what the axes are, below `y`, in letters of size `text`.
fn legend(svg: &mut String, y: f32, text: f32) -> Result<f32, fmt::Error> {
    let baseline = y + text;
    label(svg, "m", [MARGIN, baseline], text, "start", "weight")?;
    let mut x = MARGIN + 5.0 * text;
    let side = 1.2 * text;
    for weight in [0.0, 0.01, 0.05, 0.2, 0.5, 1.0_f32] {
        let opacity = strength(weight);
        for style in
            ["class=\"p\"".to_owned(), format!("class=\"c\" fill-opacity=\"{opacity:.3}\"")]
        {
            writeln!(
                svg,
                "<rect {style} x=\"{x:.1}\" y=\"{y:.1}\" width=\"{side:.1}\" height=\"{side:.1}\"/>"
            )?;
        }
        label(svg, "m", [x + 1.6 * text, baseline], text, "start", &weight.to_string())?;
        x += 4.7 * text;
    }
    let axes = "down: the token that looks; across: the one it looks at";
    let baseline = baseline + LINE * text + 4.0;
    label(svg, "m", [MARGIN, baseline], text, "start", axes)?;
    Ok(baseline + 4.0)
}

fn label(
    svg: &mut String,
    class: &str,
    [x, y]: [f32; 2],
    size: f32,
    anchor: &str,
    text: &str,
) -> fmt::Result {
    let text = escaped(text);
    let anchor = match anchor {
        "start" => String::new(),
        other => format!(" text-anchor=\"{other}\""),
    };
    writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size:.1}\"{anchor}>{text}</text>"
    )
}

/// The size of the letters beside cells.
fn font(cell: f32) -> f32 {
    (cell * 0.85).min(TEXT_SIZE)
}

/// Text within XML. [`crate::inspect::Prompt`]'s pieces have no control characters, which no XML may hold.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[allow(clippy::cast_precision_loss, reason = "numbers of tokens and heads are small")]
fn real(n: usize) -> f32 {
    n as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::{AttentionMaps, Prompt, Selection};
    use crate::tokenizer::Tokenizer;

    #[test]
    fn neighbours_of_one_shade_are_one_run() {
        assert_eq!(runs(&[1.0, 1.0, 0.0, 1.0], |w| w > 0.5), [0..2, 3..4]);
        assert!(runs(&[0.0], |w| w > 0.5).is_empty());
    }

    #[test]
    fn shades_reach_from_nothing_to_everything() {
        assert_eq!((shade_of(0.0), shade_of(1.0)), (0, N_SHADES));
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;'");
    }

    /// Whether every element of `xml` ends, in the right order, and nothing stands outside.
    fn is_well_formed(xml: &str) -> bool {
        let mut open = Vec::new();
        for tag in xml.split('<').skip(1) {
            let Some((tag, _)) = tag.split_once('>') else {
                return false;
            };
            let name = |tag: &str| tag.split_whitespace().next().unwrap_or("").to_owned();
            match tag.strip_prefix('/') {
                Some(end) if open.pop() != Some(name(end)) => return false,
                None if !tag.ends_with('/') => open.push(name(tag)),
                _ => {}
            }
        }
        open.is_empty() && xml.matches('"').count().is_multiple_of(2)
    }

    #[test]
    fn a_picture_is_well_formed_whatever_the_text_is() {
        let prompts = ["</svg><script>x&y\"'\u{1b}\u{0}", "b"];
        let prompts =
            prompts.map(|text| Prompt::read(text, &Tokenizer::byte(), 40).expect("bytes"));
        let maps = prompts.each_ref().map(|prompt| {
            let t = prompt.len();
            AttentionMaps::new(1, 2, t, vec![0.3; 2 * t * t])
        });
        for head in [None, Some(1)] {
            let selection = Selection::new(None, head, 1, 2).expect("is there");
            let views = [0, 1].map(|index| AttentionView {
                prompt: &prompts[index],
                maps: &maps[index],
                selection: &selection,
            });
            let svg = attention(&views);
            assert!(is_well_formed(&svg), "{svg}");
            assert!(!svg.contains("<script") && !svg.contains('\u{1b}') && !svg.contains('\u{0}'));
            assert!(svg.contains("&lt;") && svg.contains("&amp;"));
        }
        assert!(!is_well_formed("<a><b></a></b>") && !is_well_formed("<a>"));
    }
}
