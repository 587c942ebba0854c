//! Attention for a terminal, as maps of characters or coloured cells.
//!
//! A single head has a line per query and one or two columns per key; keys that do not fit continue below, in blocks of
//! columns. Several heads are thumbnails side by side, two rows of cells per line.

use unicode_width::UnicodeWidthChar;

use crate::format::counted;
use crate::inspect::{Prompt, PromptAttention, strongest};
use crate::view::sheet::ColorScale;
use crate::view::sheet::text::legend as colors_legend;
use crate::view::terminal::columns::{fit, flow, numbered, width};
use crate::view::terminal::palette::Palette;
use crate::view::theme::Theme;

/// The scale from 0 to 1, in ASCII, which every font has.
const CHARACTERS: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];

/// The most columns of a token's name next to a row, and lines above a column.
const LONGEST_NAME: usize = 12;
/// The minimum width of a thumbnail; if columns are scarce, there are fewer side by side.
const SMALLEST_THUMBNAIL: usize = 16;
/// The width in columns up to which thumbnails of short prompts are enlarged.
const SMALL_THUMBNAIL: usize = 24;
/// The most tokens that are named for each that looks.
const N_TOP: usize = 3;
const GAP: usize = 2;

/// The heads of `attention` in at most `n_columns` columns. Every line ends with a line break.
pub fn attention_text(attention: &PromptAttention, palette: Palette, n_columns: usize) -> String {
    let caption = counted(attention.prompt.len() as u64, "token") + "  ";
    let lines = flow(&attention.prompt.whole_pieces(), n_columns.saturating_sub(caption.len()).max(1));
    let lines = lines.join(&format!("\n{}", " ".repeat(caption.len())));
    let maps = match attention.selection.single() {
        Some(head) => large(attention, head, palette, n_columns),
        None => thumbnails(attention, palette, n_columns),
    };
    format!("{caption}{lines}\n\n{maps}\n{}", legend(palette))
}

/// Thumbnails of all heads: one row of them per layer, or several if they do not fit.
fn thumbnails(attention: &PromptAttention, palette: Palette, n_columns: usize) -> String {
    let mut text = String::new();
    let t = attention.prompt.len();
    let heads: Vec<usize> = attention.selection.heads.clone().collect();
    let (side, per_row) = thumbnail_size(t, heads.len(), n_columns);
    let column = side.max(SMALLEST_THUMBNAIL) + GAP;
    for layer in attention.selection.layers.clone() {
        for heads in heads.chunks(per_row) {
            let captions = heads.iter().map(|head| fit(&format!("layer {layer} head {head}"), column));
            text += captions.collect::<String>().trim_end();
            text.push('\n');
            for line in 0..side.div_ceil(2) {
                let mut painter = Painter::new(palette);
                for (index, &head) in heads.iter().enumerate() {
                    if index > 0 {
                        painter.text(&" ".repeat(column - side));
                    }
                    let map = attention.recording.map(layer, head);
                    for x in 0..side {
                        let at = |y| (y < side).then(|| largest_weight(map, t, side, [y, x])).flatten();
                        painter.pair(at(2 * line), at(2 * line + 1));
                    }
                }
                text += &painter.finish();
            }
            text.push('\n');
        }
    }
    text + "down: the token that looks; across: the one it looks at, from the first to itself\n"
}

/// The columns of a thumbnail, and the number side by side.
fn thumbnail_size(n_tokens: usize, n_heads: usize, n_columns: usize) -> (usize, usize) {
    let column_for = |n: usize| (n_columns + GAP) / n;
    let widest = column_for(n_heads).saturating_sub(GAP);
    let per_row = match widest >= SMALLEST_THUMBNAIL {
        true => n_heads,
        false => column_for(SMALLEST_THUMBNAIL + GAP).clamp(1, n_heads),
    };
    let widest = column_for(per_row).saturating_sub(GAP).max(1);
    // By an even factor, so that no line mixes two rows.
    let enlarged = n_tokens * (SMALL_THUMBNAIL.min(widest) / n_tokens / 2 * 2);
    (enlarged.max(n_tokens.min(widest)), per_row)
}

/// The largest weight among those that share a cell of a map of `side` cells; `None` if all are of later tokens.
pub(crate) fn largest_weight(map: &[f32], n_tokens: usize, side: usize, [y, x]: [usize; 2]) -> Option<f32> {
    let range = |at: usize| {
        let start = at * n_tokens / side;
        start..((at + 1) * n_tokens / side).max(start + 1)
    };
    let visible = range(y)
        .flat_map(|query| range(x).filter(move |&key| key <= query).map(move |key| map[query * n_tokens + key]));
    visible.max_by(f32::total_cmp)
}

/// One head, with the names of its tokens and the largest weights of each.
fn large(attention: &PromptAttention, (layer, head): (usize, usize), palette: Palette, n_columns: usize) -> String {
    let PromptAttention { prompt, recording, .. } = attention;
    let t = prompt.len();
    let names = Names::new(prompt);
    let left = names.width + 1;
    let has_wide = prompt.pieces.iter().any(|piece| piece.contains(|c: char| c.width() > Some(1)));
    let cell = if has_wide || left + 2 * t <= n_columns { 2 } else { 1 };
    let per_block = (n_columns.saturating_sub(left) / cell).clamp(1, t);
    let tops = |n| (0..t).map(|query| names.top(recording.row(layer, head, query), n)).collect::<Vec<String>>();
    let longest = |top: &[String]| top.iter().map(|top| width(top)).max().unwrap_or(0);
    let fitting = (1..=N_TOP).rev().map(tops).find(|top| left + 2 + longest(top) <= n_columns);
    let top = fitting.unwrap_or_else(|| tops(N_TOP));
    let has_top_beside = left + cell * t + 3 + longest(&top) <= n_columns;

    let right = if has_top_beside { "; right: the top three" } else { "" };
    let mut text =
        format!("layer {layer} head {head}, down: the token that looks; across: the one it looks at{right}\n\n");
    for start in (0..t).step_by(per_block) {
        let keys = start..(start + per_block).min(t);
        if start > 0 {
            text.push('\n');
        }
        text += &names.above(prompt, keys.clone(), cell);
        // Earlier queries see none of these keys.
        for (query, top) in top.iter().enumerate().skip(start) {
            let mut painter = Painter::new(palette);
            painter.text(&format!("{} ", names.beside[query]));
            let row = recording.row(layer, head, query);
            for key in keys.clone() {
                painter.cell((key <= query).then(|| row[key]), cell);
            }
            if has_top_beside {
                painter.text(&format!("   {top}"));
            }
            text += &painter.finish();
        }
    }
    if !has_top_beside {
        text += "\nthe tokens that each token attends to most\n\n";
        for (name, top) in names.beside.iter().zip(&top) {
            text += &format!("{name}   {}\n", top.trim_end());
        }
    }
    text
}

/// The names and positions of tokens, beside and above a map.
struct Names {
    beside: Vec<String>,
    width: usize,
    name_width: usize,
}

impl Names {
    fn new(prompt: &Prompt) -> Self {
        let longest = prompt.pieces.iter().map(|piece| width(piece)).max();
        let name_width = longest.unwrap_or(0).min(LONGEST_NAME);
        let last = prompt.len() - 1;
        let beside = prompt.pieces.iter().enumerate();
        let beside = beside.map(|(at, piece)| numbered(at, last, &fit(piece, name_width)));
        Self { beside: beside.collect(), width: last.to_string().len() + 1 + name_width, name_width }
    }

    /// The `n` tokens with the largest weights.
    fn top(&self, row: &[f32], n: usize) -> String {
        let top = strongest(row, n);
        let top = top.iter().map(|&(at, weight)| format!("{} {weight:.3}", self.beside[at]));
        top.collect::<Vec<_>>().join("   ")
    }

    /// The lines above the columns of `keys`: positions, and names from top to bottom.
    fn above(&self, prompt: &Prompt, keys: std::ops::Range<usize>, cell: usize) -> String {
        let indent = " ".repeat(self.width + 1);
        let mut text = indent.clone();
        for key in keys.clone().filter(|key| key % 5 == 0) {
            let column = indent.len() + (key - keys.start) * cell;
            text += &" ".repeat(column.saturating_sub(text.len()));
            text += &key.to_string();
        }
        text.push('\n');
        let visible = |piece: &String| piece.chars().filter(|c| c.width() > Some(0)).take(self.name_width).collect();
        let names: Vec<Vec<char>> = prompt.pieces[keys].iter().map(visible).collect();
        let height = names.iter().map(Vec::len).max().unwrap_or(0);
        for y in 0..height {
            let characters = names.iter().map(|name| {
                // Names end directly above their column.
                let at = (y + name.len()).checked_sub(height);
                fit(&at.map_or(String::new(), |at| name[at].to_string()), cell)
            });
            text += format!("{indent}{}", characters.collect::<String>()).trim_end();
            text.push('\n');
        }
        text
    }
}

/// The step of the scale for a weight, 0..=9.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the strength is in 0..=1")]
fn step(weight: f32) -> usize {
    (ColorScale::Fraction.strength(weight.into()) * 9.0).round() as usize
}

/// A line of cells being built.
struct Painter {
    palette: Palette,
    line: String,
    /// The escape sequence parameters of text and background colour; `None` for the terminal's default.
    colors: [Option<String>; 2],
}

impl Painter {
    fn new(palette: Palette) -> Self {
        Self { palette, line: String::new(), colors: [None, None] }
    }

    /// Adds text in the terminal's default colours.
    fn text(&mut self, text: &str) {
        self.put([None, None], text);
    }

    /// Adds a cell `n` columns wide; `None` is a weight that the query cannot see.
    fn cell(&mut self, weight: Option<f32>, n: usize) {
        let character = match (self.palette, weight) {
            (Palette::Characters, Some(weight)) => CHARACTERS[step(weight)],
            _ => ' ',
        };
        self.put([None, self.color(weight)], &character.to_string().repeat(n));
    }

    /// Adds a one-column cell with one weight above another; characters show the larger.
    fn pair(&mut self, upper: Option<f32>, lower: Option<f32>) {
        if self.palette == Palette::Characters {
            return self.cell([upper, lower].into_iter().flatten().max_by(f32::total_cmp), 1);
        }
        match (self.color(upper), self.color(lower)) {
            (None, None) => self.text(" "),
            (None, lower) => self.put([lower, None], "▄"),
            (upper, lower) => self.put([upper, lower], "▀"),
        }
    }

    /// The finished line: default colours restored, and a line break.
    fn finish(mut self) -> String {
        self.text("");
        self.line.trim_end().to_owned() + "\n"
    }

    fn color(&self, weight: Option<f32>) -> Option<String> {
        self.palette.code(ColorScale::Fraction.colors(weight?.into(), Theme::Dark)[0])
    }

    fn put(&mut self, colors: [Option<String>; 2], text: &str) {
        if self.colors != colors {
            self.line += "\u{1b}[0";
            for (layer, color) in [38, 48].into_iter().zip(&colors) {
                let color = color.iter().map(|color| format!(";{layer};{color}"));
                self.line.extend(color);
            }
            self.line.push('m');
            self.colors = colors;
        }
        self.line += text;
    }
}

/// The legend of the scale: the smallest weight of each character, or the weight of each colour.
fn legend(palette: Palette) -> String {
    if palette != Palette::Characters {
        return format!("weight  {}", colors_legend(ColorScale::Fraction, palette));
    }
    let entry = |(step, character): (u8, char)| format!("{character} {:.3}", ((f32::from(step) - 0.5) / 9.0).powi(2));
    let entries: Vec<String> = (0_u8..).zip(CHARACTERS).skip(1).map(entry).collect();
    format!("weight  {}\n", entries.join("   "))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::inspect::testing::attention;

    /// Two layers of two heads, whose tokens attend to themselves; to the previous one; to all equally; to the first.
    fn shown(text: &str, place: [Option<usize>; 2], palette: Palette, n_columns: usize) -> String {
        let weight = |head: usize, query: usize, key: usize| match head {
            _ if key > query => 0.0,
            0 => f32::from(key == query),
            1 => f32::from(key == query.saturating_sub(1)),
            2 => 1.0 / (query + 1) as f32,
            _ => f32::from(key == 0),
        };
        attention_text(&attention(text, [2, 2], place, weight), palette, n_columns)
    }

    #[test]
    fn several_heads_are_thumbnails() {
        assert_snapshot!(shown("abcdef", [None, None], Palette::Characters, 40), @r"
        6 tokens  abcdef

        layer 0 head 0    layer 0 head 1
        @@                @@
          @@              @@
            @@              @@
              @@              @@
                @@              @@
                  @@              @@

        layer 1 head 0    layer 1 head 1
        @@                @@
        ****              @@
        ++++++            @@
        ++++++++          @@
        ==========        @@
        ============      @@

        down: the token that looks; across: the one it looks at, from the first to itself

        weight  . 0.003   : 0.028   - 0.077   = 0.151   + 0.250   * 0.373   # 0.522   % 0.694   @ 0.892
        ");
    }

    #[test]
    fn single_head_lists_top_tokens() {
        assert_snapshot!(shown("a cat\né", [Some(1), Some(0)], Palette::Characters, 80), @r"
        8 tokens  a·cat↵é

        layer 1 head 0, down: the token that looks; across: the one it looks at; right: the top three

               0         5
                           \ \
                           x x
                           c a
               a · c a t ↵ 3 9
        0 a    @@                 0 a    1.000
        1 ·    ****               0 a    0.500   1 ·    0.500
        2 c    ++++++             0 a    0.333   1 ·    0.333   2 c    0.333
        3 a    ++++++++           0 a    0.250   1 ·    0.250   2 c    0.250
        4 t    ==========         0 a    0.200   1 ·    0.200   2 c    0.200
        5 ↵    ============       0 a    0.167   1 ·    0.167   2 c    0.167
        6 \xc3 --------------     0 a    0.143   1 ·    0.143   2 c    0.143
        7 \xa9 ----------------   0 a    0.125   1 ·    0.125   2 c    0.125

        weight  . 0.003   : 0.028   - 0.077   = 0.151   + 0.250   * 0.373   # 0.522   % 0.694   @ 0.892
        ");
    }

    #[test]
    fn wide_map_continues_below() {
        let text = shown("abcdefgh", [Some(0), Some(1)], Palette::Characters, 9);
        let (_, maps) = text.split_once("\n\n").expect("the heading ends with a blank line");
        assert_snapshot!(maps, @r"
        layer 0 head 1, down: the token that looks; across: the one it looks at

            0
            abcde
        0 a @
        1 b @
        2 c  @
        3 d   @
        4 e    @
        5 f     @
        6 g
        7 h

            5
            fgh
        5 f
        6 g @
        7 h  @

        the tokens that each token attends to most

        0 a   0 a 1.000
        1 b   0 a 1.000
        2 c   1 b 1.000
        3 d   2 c 1.000
        4 e   3 d 1.000
        5 f   4 e 1.000
        6 g   5 f 1.000
        7 h   6 g 1.000

        weight  . 0.003   : 0.028   - 0.077   = 0.151   + 0.250   * 0.373   # 0.522   % 0.694   @ 0.892
        ");
    }

    #[test]
    fn long_text_keeps_strong_weights() {
        let text = shown(&"ab".repeat(64), [Some(0), None], Palette::Characters, 60);
        let is_map = |line: &&str| line.contains('@') && !line.starts_with("weight");
        let diagonal: Vec<&str> = text.lines().filter(is_map).collect();
        assert_eq!(diagonal.len(), 15, "{text}"); // 29 cells, two per line
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn legend_names_least_weights() {
        let legend = legend(Palette::Characters);
        let (_, at) = legend.split_once("* ").expect("the legend names this character");
        let least: f32 = at[..5].parse().expect("a formatted number parses");
        assert_eq!(CHARACTERS[step(least + 1e-3)], '*');
        assert_eq!(CHARACTERS[step(least - 1e-3)], '+');
        assert!(legend.len() <= 100 && !legend.contains('\u{1b}'), "{legend}");
    }

    #[test]
    fn line_resets_colours() {
        let mut painter = Painter::new(Palette::TrueColor);
        painter.cell(Some(1.0), 2);
        assert_eq!(painter.finish(), "\u{1b}[0;48;2;252;255;164m  \u{1b}[0m\n");
        let mut painter = Painter::new(Palette::Ansi256);
        painter.pair(Some(0.0), Some(1.0));
        painter.pair(Some(0.0), None);
        painter.pair(None, None);
        let line = painter.finish();
        assert_eq!(line, "\u{1b}[0;38;5;16;48;5;229m▀\u{1b}[0;38;5;16m▀\u{1b}[0m\n");
        let mut painter = Painter::new(Palette::Characters);
        painter.pair(Some(0.0), Some(1.0));
        painter.cell(None, 3);
        assert_eq!(painter.finish(), "@\n");
    }
}
