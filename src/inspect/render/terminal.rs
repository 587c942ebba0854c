//! Attention as a heatmap of characters or coloured cells.
//!
//! A single head is drawn large, a line for each token that looks and a column or two for each that is looked
//! at; what is wider than the terminal goes on below, in blocks of columns. Several heads are thumbnails side by
//! side, two rows of cells in a line.

use std::fmt::Write as _;

use super::columns::{fit, flow, width};
use super::shade::{Painter, Palette, legend};
use crate::inspect::{AttentionView, Prompt, strongest};

/// The most columns that a token's name takes beside a row, and lines above a column.
const LONGEST_NAME: usize = 12;
/// Fewer columns than this make no useful thumbnail: rather fewer of them side by side.
const SMALLEST_THUMBNAIL: usize = 16;
/// Small prompts are drawn larger, up to this many columns.
const SMALL_THUMBNAIL: usize = 24;
/// Columns between two thumbnails.
const GAP: usize = 2;

/// The heads of `view` in at most `n_columns` columns. Every line ends with a line break.
#[must_use]
pub fn attention(view: &AttentionView<'_>, palette: Palette, n_columns: usize) -> String {
    let mut text = String::new();
    let n = view.prompt.len();
    let noun = if n == 1 { "token" } else { "tokens" };
    let caption = format!("{n} {noun}  ");
    let lines = flow(&view.prompt.whole_pieces(), n_columns.saturating_sub(caption.len()).max(1));
    text.push_str(&caption);
    text.push_str(&lines.join(&format!("\n{}", " ".repeat(caption.len()))));
    text.push('\n');
    text.push('\n');
    match view.selection.single() {
        Some((layer, head)) => large(&mut text, view, [layer, head], palette, n_columns),
        None => thumbnails(&mut text, view, palette, n_columns),
    }
    text.push('\n');
    text.push_str(&legend(palette));
    text.push('\n');
    text
}

/// Every head small, a row of them for each layer, more where they do not fit.
fn thumbnails(text: &mut String, view: &AttentionView<'_>, palette: Palette, n_columns: usize) {
    let t = view.maps.n_tokens;
    let heads: Vec<usize> = view.selection.heads.clone().collect();
    let (side, per_row) = thumbnail_size(t, heads.len(), n_columns);
    for layer in view.selection.layers.clone() {
        for heads in heads.chunks(per_row) {
            let column = side.max(SMALLEST_THUMBNAIL) + GAP;
            let captions =
                heads.iter().map(|head| fit(&format!("layer {layer} head {head}"), column));
            writeln!(text, "{}", captions.collect::<String>().trim_end()).expect("a string");
            for line in 0..side.div_ceil(2) {
                let mut painter = Painter::new(palette);
                for (index, &head) in heads.iter().enumerate() {
                    if index > 0 {
                        painter.text(&" ".repeat(column - side));
                    }
                    let map = view.maps.map(layer, head);
                    for x in 0..side {
                        let at = |y| (y < side).then(|| pixel(map, t, side, [y, x])).flatten();
                        painter.pair(at(2 * line), at(2 * line + 1));
                    }
                }
                writeln!(text, "{}", painter.finish()).expect("a string");
            }
            text.push('\n');
        }
    }
    text.push_str(
        "down: the token that looks; across: the one it looks at, from the first to itself\n",
    );
}

/// The columns of a thumbnail, and how many stand side by side.
fn thumbnail_size(n_tokens: usize, n_heads: usize, n_columns: usize) -> (usize, usize) {
    let column_for = |n: usize| (n_columns + GAP) / n;
    let share = column_for(n_heads).saturating_sub(GAP);
    let per_row = match share >= SMALLEST_THUMBNAIL {
        true => n_heads,
        false => column_for(SMALLEST_THUMBNAIL + GAP).clamp(1, n_heads),
    };
    let share = column_for(per_row).saturating_sub(GAP).max(1);
    // By an even number, so that a line never holds parts of two rows.
    let enlarged = n_tokens * (SMALL_THUMBNAIL.min(share) / n_tokens / 2 * 2);
    (enlarged.max(n_tokens.min(share)), per_row)
}

/// The largest weight of those that share a cell, or the weight that is spread over several; none where all
/// of them are of tokens that come later.
fn pixel(map: &[f32], n_tokens: usize, side: usize, [y, x]: [usize; 2]) -> Option<f32> {
    let range = |at: usize| {
        let start = at * n_tokens / side;
        start..((at + 1) * n_tokens / side).max(start + 1)
    };
    let visible = range(y).flat_map(|query| {
        range(x).filter(move |&key| key <= query).map(move |key| map[query * n_tokens + key])
    });
    visible.max_by(f32::total_cmp)
}

/// One head, with the names of its tokens, and whom each looks at most.
fn large(
    text: &mut String,
    view: &AttentionView<'_>,
    [layer, head]: [usize; 2],
    palette: Palette,
    n_columns: usize,
) {
    let AttentionView { prompt, maps, .. } = view;
    let t = prompt.len();
    let names = Names::new(prompt);
    let wide_enough = |cell: usize| names.width + 1 + cell * t <= n_columns;
    let has_wide = prompt.pieces.iter().any(|piece| widest_character(piece) > 1);
    let cell = if has_wide || wide_enough(2) { 2 } else { 1 };
    let per_block = (n_columns.saturating_sub(names.width + 1) / cell).clamp(1, t);
    let top = |query| names.top(maps.row(layer, head, query));
    let longest = (0..t).map(|query| width(&top(query))).max().unwrap_or(0);
    let beside = names.width + 1 + cell * t + 3 + longest <= n_columns;

    let so = if beside { "; right: the top three" } else { "" };
    writeln!(
        text,
        "layer {layer} head {head}, down: the token that looks; across: the one it looks at{so}\n"
    )
    .expect("a string");
    for start in (0..t).step_by(per_block) {
        let keys = start..(start + per_block).min(t);
        if start > 0 {
            text.push('\n');
        }
        for line in names.above(prompt, keys.clone(), cell) {
            writeln!(text, "{line}").expect("a string");
        }
        // What comes earlier sees none of these.
        for query in start..t {
            let mut painter = Painter::new(palette);
            painter.text(&names.beside(query));
            painter.text(" ");
            let row = maps.row(layer, head, query);
            for key in keys.clone() {
                painter.cell((key <= query).then(|| row[key]), cell);
            }
            if beside {
                painter.text("   ");
                painter.text(&top(query));
            }
            writeln!(text, "{}", painter.finish()).expect("a string");
        }
    }
    if !beside {
        text.push_str("\nwhom each token looks at most\n\n");
        for query in 0..t {
            writeln!(text, "{}   {}", names.beside(query), top(query).trim_end())
                .expect("a string");
        }
    }
}

/// The tokens' names and positions, as they stand beside and above a map.
struct Names {
    beside: Vec<String>,
    width: usize,
    name_width: usize,
}

impl Names {
    fn new(prompt: &Prompt) -> Self {
        let longest = prompt.pieces.iter().map(|piece| width(piece)).max();
        let name_width = longest.unwrap_or(0).min(LONGEST_NAME);
        let digits = (prompt.len() - 1).to_string().len();
        let beside = prompt.pieces.iter().enumerate();
        let beside = beside.map(|(at, piece)| format!("{at:>digits$} {}", fit(piece, name_width)));
        Self { beside: beside.collect(), width: digits + 1 + name_width, name_width }
    }

    fn beside(&self, at: usize) -> String {
        self.beside[at].clone()
    }

    /// The three tokens with the largest weights.
    fn top(&self, row: &[f32]) -> String {
        let top = strongest(row, 3);
        let top = top.iter().map(|&(at, weight)| format!("{} {weight:.3}", self.beside[at]));
        top.collect::<Vec<_>>().join("   ")
    }

    /// Positions, and names from top to bottom, above the columns of `keys`.
    fn above(&self, prompt: &Prompt, keys: std::ops::Range<usize>, cell: usize) -> Vec<String> {
        let indent = " ".repeat(self.width + 1);
        let mut positions = indent.clone();
        for key in keys.clone().filter(|key| key % 5 == 0) {
            let column = self.width + 1 + (key - keys.start) * cell;
            positions.extend(std::iter::repeat_n(' ', column.saturating_sub(width(&positions))));
            positions.push_str(&key.to_string());
        }
        let names: Vec<Vec<char>> = prompt.pieces[keys]
            .iter()
            .map(|piece| {
                piece.chars().filter(|c| width(&c.to_string()) > 0).take(self.name_width).collect()
            })
            .collect();
        let height = names.iter().map(Vec::len).max().unwrap_or(0);
        let mut lines = vec![positions];
        for y in 0..height {
            let characters = names.iter().map(|name| {
                // Names end right above their column.
                let at = (y + name.len()).checked_sub(height);
                fit(&at.map_or(String::new(), |at| name[at].to_string()), cell)
            });
            lines.push(format!("{indent}{}", characters.collect::<String>()).trim_end().to_owned());
        }
        lines
    }
}

fn widest_character(text: &str) -> usize {
    text.chars().map(|c| width(&c.to_string())).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::inspect::{AttentionMaps, Selection};
    use crate::tokenizer::Tokenizer;

    /// Two layers of two heads: each token looks at itself; at the one before; at all alike; at the first.
    fn shown(text: &str, place: [Option<usize>; 2], palette: Palette, n_columns: usize) -> String {
        let prompt = Prompt::read(text, &Tokenizer::byte(), 200).expect("bytes");
        let t = prompt.len();
        let weight = |head: usize, query: usize, key: usize| match head {
            _ if key > query => 0.0,
            0 => f32::from(u8::from(key == query)),
            1 => f32::from(u8::from(key == query.saturating_sub(1))),
            2 => 1.0 / (query + 1) as f32,
            _ => f32::from(u8::from(key == 0)),
        };
        let cells = (0..4 * t * t).map(|at| weight(at / (t * t), at / t % t, at % t));
        let maps = AttentionMaps::new(2, 2, t, cells.collect());
        let selection = Selection::new(place[0], place[1], 2, 2).expect("is there");
        let view = AttentionView { prompt: &prompt, maps: &maps, selection: &selection };
        attention(&view, palette, n_columns)
    }

    #[test]
    fn several_heads_are_small() {
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
    fn a_head_is_large_with_whom_each_token_looks_at() {
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
    fn what_is_too_wide_goes_on_below() {
        let text = shown("abcdefgh", [Some(0), Some(1)], Palette::Characters, 9);
        let (_, maps) = text.split_once("\n\n").expect("a heading");
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

        whom each token looks at most

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
    fn a_long_text_is_drawn_smaller_and_loses_no_strong_weight() {
        let text = shown(&"ab".repeat(64), [Some(0), None], Palette::Characters, 60);
        let is_map = |line: &&str| line.contains('@') && !line.starts_with("weight");
        let diagonal: Vec<&str> = text.lines().filter(is_map).collect();
        assert_eq!(diagonal.len(), 15, "{text}"); // of 29 cells, two in a line
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn colours_draw_the_same_cells() {
        let plain = shown("abcdef", [Some(0), Some(0)], Palette::Characters, 40);
        let colored = shown("abcdef", [Some(0), Some(0)], Palette::TrueColor, 40);
        assert_eq!(plain.lines().count(), colored.lines().count());
        assert_eq!(plain.matches("@@").count(), 6);
        assert_eq!(
            colored.matches("\u{1b}[0;48;2;252;255;164m  ").count(),
            6 + 1,
            "and the legend's"
        );
    }
}
