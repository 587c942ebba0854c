//! Attention as a standalone picture: no scripts or embedded fonts, light or dark like the reader's system.
//!
//! The colour of a cell shows its weight. A single head has a cell with a tooltip for every pair; with several heads,
//! cells of about the same weight form one path, and a map of many cells is an image, so that even long prompts make
//! small files.

use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::inspect::PromptAttention;
use crate::view::escape::escape;
use crate::view::svg::png;
use crate::view::svg::{self, Anchor, SIZE, Stack};
use crate::view::terminal::attention::strength;
use crate::view::terminal::columns::{flow, width};
use crate::view::theme::{self, Heat, Theme};

/// Side of a cell of a single head, and of several, in pixels.
const LARGE_CELL: f64 = 20.0;
const SMALL_CELL: f64 = 10.0;
/// The width of a character in monospaced fonts, as a generous fraction of the font size.
const ADVANCE: f64 = 0.62;
const SCREEN: f64 = 1000.0;
/// The line height, relative to the text size.
const LINE: f64 = 1.5;
/// The gap between heads, and between prompts.
const GAP: f64 = 18.0;
/// The width of the legend, and so the minimum width of a picture.
const LEAST_WIDTH: f64 = 430.0;
/// The number of shades for several heads: a divisor of 255.
const N_SHADES: usize = 15;
/// The most cells of a map that is drawn as paths; larger maps are images.
const MOST_CELLS: usize = 20_000;

/// The heads of each prompt, with the prompts stacked vertically; `about` names a run and its step.
#[must_use]
pub fn attention_svg(prompts: &[PromptAttention], about: &str) -> String {
    let pictures: Vec<Picture<'_>> = prompts.iter().map(Picture::new).collect();
    let content_width = pictures.iter().map(|picture| picture.width).fold(LEAST_WIDTH, f64::max);
    // A picture wider than a screen is scaled down, so its text has to be larger.
    let size = SIZE * (content_width / SCREEN).max(1.0);
    let mut stack = Stack::new(content_width, size, about);
    if prompts.iter().any(|it| it.prompt.len() * (it.prompt.len() + 1) / 2 > MOST_CELLS) {
        stack.body.insert_str(0, &filters());
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of columns")]
    let columns = (stack.width / (size * ADVANCE)) as usize;
    for picture in &pictures {
        for line in flow(&picture.attention.prompt.whole_pieces(), columns) {
            stack.line("i", &line);
        }
        stack.drawing(picture.drawing(size));
        stack.y += GAP;
    }
    stack.drawing(legend(size));
    stack.finish("Attention", &style())
}

/// The styles, with a class for each shade: `s0`, `s1` and so on.
fn style() -> String {
    let [light, dark] = [Theme::Light, Theme::Dark].map(Heat::new);
    let shade = |shade: usize| {
        let strength = shade as f32 / N_SHADES as f32;
        let [light, dark] = [&light, &dark].map(|heat| theme::hex(heat.at(strength)));
        format!(".s{shade}{{fill:light-dark({light}, {dark})}}\n")
    };
    let images = "\
.map{image-rendering:pixelated;filter:url(#light)}
@media (prefers-color-scheme:dark){.map{filter:url(#dark)}}
";
    theme::in_file(&format!("{}\n{}", svg::STYLE, (0..=N_SHADES).map(shade).collect::<String>())) + images
}

/// The layout of one prompt's picture.
struct Picture<'a> {
    attention: &'a PromptAttention,
    is_single: bool,
    cell: f64,
    /// The font size of labels.
    font: f64,
    /// Room for the queries' labels on the left, and the keys' above.
    left: f64,
    above: f64,
    /// Whether the keys' labels are single characters, which need not be rotated.
    is_upright: bool,
    /// Side of one head's map.
    side: f64,
    width: f64,
}

impl<'a> Picture<'a> {
    fn new(attention: &'a PromptAttention) -> Self {
        let is_single = attention.selection.single().is_some();
        let cell = if is_single { LARGE_CELL } else { SMALL_CELL };
        let font = (cell * 0.85).min(SIZE);
        let longest = attention.prompt.pieces.iter().map(|piece| width(piece)).max().unwrap_or(1);
        let is_upright = longest <= 1;
        let digits = (attention.prompt.len() - 1).to_string().len();
        let advance = font * ADVANCE;
        // The rows of a single head are also numbered.
        let left = advance * (longest as f64 + if is_single { digits as f64 + 2.0 } else { 1.0 });
        let above = if is_upright { cell * 1.2 } else { advance * (longest as f64 + 1.0) };
        let side = cell * attention.prompt.len() as f64;
        let n = attention.selection.heads.len() as f64;
        let width = left + n * side + (n - 1.0) * GAP;
        Self { attention, is_single, cell, font, left, above, is_upright, side, width }
    }

    /// The heads, in rows of a layer, with captions of this font size.
    fn drawing(&self, size: f64) -> svg::Drawing {
        let PromptAttention { recording, selection, .. } = self.attention;
        let (mut svg, mut y) = (String::new(), 0.0);
        for layer in selection.layers.clone() {
            let is_first = layer == selection.layers.start;
            y += LINE * size + 8.0;
            let top = y + 8.0 + if is_first { self.above } else { 0.0 };
            for (index, head) in selection.heads.clone().enumerate() {
                let x = self.left + index as f64 * (self.side + GAP);
                let caption = format!("layer {layer} head {head}");
                svg += &svg::text("m", [x, y], Some(size), Anchor::Start, &caption);
                if is_first {
                    self.keys(&mut svg, x, top);
                }
                if index == 0 {
                    self.queries(&mut svg, x, top);
                }
                self.map(&mut svg, recording.map(layer, head), x, top);
            }
            y = top + self.side;
        }
        (svg, [self.width, y])
    }

    /// The labels of the keys, above a map.
    fn keys(&self, svg: &mut String, x: f64, top: f64) {
        let size = self.font;
        for (at, piece) in self.attention.prompt.pieces.iter().enumerate() {
            let middle = x + (at as f64 + 0.5) * self.cell;
            if self.is_upright {
                *svg += &svg::text("i", [middle, top - self.cell * 0.3], Some(size), Anchor::Middle, piece);
                continue;
            }
            let transform = format!("translate({:.1} {:.1}) rotate(-90)", middle + size * 0.35, top - 4.0);
            let piece = escape(piece);
            *svg += &format!("<text class=\"i\" transform=\"{transform}\" font-size=\"{size:.1}\">{piece}</text>\n");
        }
    }

    /// The labels of the queries, left of a map.
    fn queries(&self, svg: &mut String, x: f64, top: f64) {
        let size = self.font;
        for (at, piece) in self.attention.prompt.pieces.iter().enumerate() {
            let y = top + (at as f64 + 0.5) * self.cell + size * 0.35;
            *svg += &svg::text("i", [x - size * 0.4, y], Some(size), Anchor::End, piece);
            if self.is_single {
                *svg += &svg::text("m", [0.0, y], Some(size), Anchor::Start, &at.to_string());
            }
        }
    }

    fn map(&self, svg: &mut String, map: &[f32], x: f64, top: f64) {
        let pieces = &self.attention.prompt.pieces;
        // The triangle of the keys that each query may attend to.
        let triangle = "h1v1".repeat(pieces.len());
        *svg += &format!(
            "<g transform=\"translate({x:.1} {top:.1}) scale({:.0})\" shape-rendering=\"crispEdges\">\n\
             <path class=\"s0\" d=\"M0 0{triangle}H0z\"/>\n{}</g>\n",
            self.cell,
            match pieces.len() * (pieces.len() + 1) / 2 {
                n if n > MOST_CELLS => image(map, pieces.len()),
                _ if self.is_single => pairs(map, pieces),
                _ => shades(map, pieces.len()),
            }
        );
    }
}

/// A map as a greyscale image of its weights, coloured by a filter, in both themes, and clipped to the causal triangle.
fn image(map: &[f32], t: usize) -> String {
    #[allow(clippy::cast_possible_truncation, reason = "255 at most")]
    let grey: Vec<u8> = map.iter().map(|weight| (shade_of(*weight) * 255 / N_SHADES) as u8).collect();
    let png = BASE64_STANDARD.encode(png::grey(t, &grey));
    let triangle = "h1v1".repeat(t);
    format!(
        "<clipPath id=\"seen-{t}\"><path d=\"M0 0{triangle}H0z\"/></clipPath>\
         <g clip-path=\"url(#seen-{t})\"><image class=\"map\" width=\"{t}\" height=\"{t}\" \
         href=\"data:image/png;base64,{png}\"/></g>\n"
    )
}

/// The colouring filters for images, one per theme.
fn filters() -> String {
    let filter = |(name, theme): (&str, Theme)| {
        let heat = Heat::new(theme);
        let channel = |channel: usize| {
            let values =
                (0..=N_SHADES).map(|shade| f32::from(heat.at(shade as f32 / N_SHADES as f32)[channel]) / 255.0);
            values.map(|value| format!("{value:.3}")).collect::<Vec<_>>().join(" ")
        };
        let [red, green, blue] = [0, 1, 2].map(channel);
        format!(
            "<filter id=\"{name}\" x=\"0\" y=\"0\" width=\"1\" height=\"1\" color-interpolation-filters=\"sRGB\">\
             <feComponentTransfer><feFuncR type=\"table\" tableValues=\"{red}\"/>\
             <feFuncG type=\"table\" tableValues=\"{green}\"/><feFuncB type=\"table\" tableValues=\"{blue}\"/>\
             </feComponentTransfer></filter>\n"
        )
    };
    [("light", Theme::Light), ("dark", Theme::Dark)].map(filter).concat()
}

/// A cell for every pair, with its weight as a tooltip.
fn pairs(map: &[f32], pieces: &[String]) -> String {
    let mut svg = String::new();
    for query in 0..pieces.len() {
        for key in 0..=query {
            let weight = map[query * pieces.len() + key];
            let (from, to) = (escape(&pieces[query]), escape(&pieces[key]));
            svg += &format!(
                "<rect class=\"s{}\" x=\"{key}\" y=\"{query}\" width=\"1\" height=\"1\">\
                 <title>{query} {from} looks at {key} {to}: {weight:.4}</title></rect>\n",
                shade_of(weight)
            );
        }
    }
    svg
}

/// All cells of about the same weight as one path, with horizontally adjacent cells merged into one rectangle.
fn shades(map: &[f32], t: usize) -> String {
    let mut paths = vec![String::new(); N_SHADES + 1];
    for query in 0..t {
        let mut start = 0;
        for run in map[query * t..=query * t + query].chunk_by(|a, b| shade_of(*a) == shade_of(*b)) {
            paths[shade_of(run[0])] += &format!("M{start} {query}h{}v1H{start}z", run.len());
            start += run.len();
        }
    }
    // Near-zero weights are not drawn.
    let drawn = paths.iter().enumerate().skip(1).filter(|(_, path)| !path.is_empty());
    let path = |(shade, path): (usize, &String)| format!("<path class=\"s{shade}\" d=\"{path}\"/>\n");
    drawn.map(path).collect()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in 0..=N_SHADES")]
fn shade_of(weight: f32) -> usize {
    (strength(weight) * N_SHADES as f32).round() as usize
}

/// The scale and the names of the axes.
fn legend(size: f64) -> svg::Drawing {
    let mut svg = svg::text("m", [0.0, size], Some(size), Anchor::Start, "weight");
    let square = 1.2 * size;
    for (index, weight) in [0.0, 0.01, 0.05, 0.2, 0.5, 1.0_f32].into_iter().enumerate() {
        let x = (5.0 + 4.7 * index as f64) * size;
        let shade = shade_of(weight);
        svg +=
            &format!("<rect class=\"s{shade}\" x=\"{x:.1}\" y=\"0\" width=\"{square:.1}\" height=\"{square:.1}\"/>\n");
        svg += &svg::text("m", [x + 1.6 * size, size], Some(size), Anchor::Start, &weight.to_string());
    }
    let axes = "down: the token that looks; across: the one it looks at";
    svg += &svg::text("m", [0.0, 2.5 * size + 4.0], Some(size), Anchor::Start, axes);
    (svg, [LEAST_WIDTH, 2.5 * size + 8.0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::testing::attention;

    #[test]
    fn equal_neighbours_are_one_run() {
        let map = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0];
        let path = "M0 0h1v1H0zM0 1h2v1H0zM0 2h1v1H0zM2 2h1v1H2z";
        assert_eq!(shades(&map, 3), format!("<path class=\"s15\" d=\"{path}\"/>\n"));
        assert_eq!(shades(&[0.0], 1), "");
        assert_eq!((shade_of(0.0), shade_of(1.0)), (0, N_SHADES));
    }

    #[test]
    fn long_prompts_have_images() {
        let picture =
            |n: usize| attention_svg(&[attention(&"a".repeat(n), [1, 2], [None, None], |_, _, _| 0.3)], "mine");
        let (short, long) = (picture(199), picture(200));
        assert!(!short.contains("<image") && !short.contains("<filter"));
        assert_eq!((long.matches("<image").count(), long.matches("<filter").count()), (2, 2));
        assert!(is_well_formed(&long));
    }

    /// Whether all elements of `xml` are closed, in the right order, with nothing outside.
    fn is_well_formed(xml: &str) -> bool {
        let mut open = Vec::new();
        for tag in xml.split('<').skip(1) {
            let Some((tag, _)) = tag.split_once('>') else { return false };
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
    fn any_text_makes_well_formed_pictures() {
        for head in [None, Some(1)] {
            let prompts = ["</svg><script>x&y\"'\u{1b}\u{0}", "b"];
            let svg =
                attention_svg(&prompts.map(|text| attention(text, [1, 2], [None, head], |_, _, _| 0.3)), "<mine>");
            assert!(is_well_formed(&svg), "{svg}");
            assert!(!svg.contains("<script") && !svg.contains('\u{1b}') && !svg.contains('\u{0}'));
            assert!(svg.contains("&lt;") && svg.contains("&amp;"));
        }
        assert!(!is_well_formed("<a><b></a></b>") && !is_well_formed("<a>"));
    }
}
