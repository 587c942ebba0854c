//! How strong a weight looks: as a character, or as a colour of a terminal.

use std::fmt::Write as _;

/// What a terminal, or a file in its place, can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Palette {
    /// No colours: characters of growing density.
    Characters,
    /// The 256 colours that nearly every terminal has.
    Ansi256,
    /// 24-bit colours.
    TrueColor,
}

/// From nothing to everything. ASCII, so that every font has them.
const CHARACTERS: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];

/// The inferno colour map of matplotlib (S. van der Walt, N. Smith; CC0) at even distances: its lightness
/// grows steadily, so that it reads the same to people who see colours differently.
const COLORS: [[u8; 3]; 10] = [
    [0, 0, 4],
    [27, 12, 65],
    [74, 12, 107],
    [120, 28, 109],
    [165, 44, 96],
    [207, 68, 70],
    [237, 105, 37],
    [251, 155, 6],
    [247, 209, 61],
    [252, 255, 164],
];

/// The nearest to [`COLORS`] among the 256.
const COLORS_256: [u8; 10] = [16, 17, 53, 90, 125, 167, 202, 214, 221, 229];

/// How strong a weight in 0..=1 looks, in 0..=1: its square root, so that among a hundred tokens a weight of
/// a few percent, several times the average, can still be seen.
pub(super) fn strength(weight: f32) -> f32 {
    weight.clamp(0.0, 1.0).sqrt()
}

/// The step of the scale for a weight, 0..=9.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the strength is in 0..=1"
)]
pub(super) fn step(weight: f32) -> usize {
    (strength(weight) * 9.0).round() as usize
}

/// A colour, or none for the terminal's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    Indexed(u8),
    Rgb([u8; 3]),
}

/// What a line of cells is written with; ends each line in the terminal's own colours.
#[derive(Debug)]
pub(super) struct Painter {
    palette: Palette,
    line: String,
    colors: (Option<Ink>, Option<Ink>),
}

impl Painter {
    pub(super) fn new(palette: Palette) -> Self {
        Self { palette, line: String::new(), colors: (None, None) }
    }

    /// Adds text in the terminal's own colours.
    pub(super) fn text(&mut self, text: &str) {
        self.set(None, None);
        self.line.push_str(text);
    }

    /// Adds a cell `n` columns wide; none is what cannot be seen.
    pub(super) fn cell(&mut self, weight: Option<f32>, n: usize) {
        let ink = self.ink(weight);
        self.set(None, ink);
        let character = match (self.palette, weight) {
            (Palette::Characters, Some(weight)) => CHARACTERS[step(weight)],
            _ => ' ',
        };
        self.line.extend(std::iter::repeat_n(character, n));
    }

    /// Adds a cell of one column with one weight above another; characters show the larger.
    pub(super) fn pair(&mut self, upper: Option<f32>, lower: Option<f32>) {
        if self.palette == Palette::Characters {
            let larger = match (upper, lower) {
                (Some(upper), Some(lower)) => Some(upper.max(lower)),
                (upper, lower) => upper.or(lower),
            };
            return self.cell(larger, 1);
        }
        match (self.ink(upper), self.ink(lower)) {
            (None, None) => self.text(" "),
            (None, lower) => {
                self.set(lower, None);
                self.line.push('▄');
            }
            (upper, lower) => {
                self.set(upper, lower);
                self.line.push('▀');
            }
        }
    }

    /// The line, and an empty one to go on with.
    pub(super) fn finish(&mut self) -> String {
        self.set(None, None);
        let line = std::mem::take(&mut self.line);
        line.trim_end().to_owned()
    }

    fn ink(&self, weight: Option<f32>) -> Option<Ink> {
        match self.palette {
            Palette::Characters => None,
            Palette::Ansi256 => Some(Ink::Indexed(COLORS_256[step(weight?)])),
            Palette::TrueColor => Some(Ink::Rgb(blend(strength(weight?)))),
        }
    }

    /// Switches to a colour of the letters and one behind them.
    fn set(&mut self, front: Option<Ink>, back: Option<Ink>) {
        if self.colors == (front, back) {
            return;
        }
        self.colors = (front, back);
        self.line.push_str("\u{1b}[0");
        for (layer, ink) in [(38, front), (48, back)] {
            match ink {
                None => Ok(()),
                Some(Ink::Indexed(index)) => write!(self.line, ";{layer};5;{index}"),
                Some(Ink::Rgb([r, g, b])) => write!(self.line, ";{layer};2;{r};{g};{b}"),
            }
            .expect("a string takes everything");
        }
        self.line.push('m');
    }
}

/// The colour at `strength` in 0..=1, between its neighbours in the table.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "indices and colours are small"
)]
fn blend(strength: f32) -> [u8; 3] {
    let at = strength * (COLORS.len() - 1) as f32;
    let below = (at as usize).min(COLORS.len() - 2);
    let share = at - below as f32;
    let mix = |a: u8, b: u8| (f32::from(a) * (1.0 - share) + f32::from(b) * share).round() as u8;
    let (low, high) = (COLORS[below], COLORS[below + 1]);
    [mix(low[0], high[0]), mix(low[1], high[1]), mix(low[2], high[2])]
}

/// A line that says which weight looks how: the least weight of each step of the scale.
pub(super) fn legend(palette: Palette) -> String {
    let mut painter = Painter::new(palette);
    painter.text("weight  ");
    for (index, character) in (0_u8..).zip(CHARACTERS).skip(1) {
        let middle = (f32::from(index) / 9.0).powi(2);
        if palette == Palette::Characters {
            let least = ((f32::from(index) - 0.5) / 9.0).powi(2);
            painter.text(&format!("{character} {least:.3}   "));
        } else {
            painter.cell(Some(middle), 2);
            painter.text(&format!(" {middle:.2}  "));
        }
    }
    painter.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_reaches_from_nothing_to_everything() {
        assert_eq!((step(0.0), step(1.0), step(2.0)), (0, 9, 9));
        assert_eq!((blend(0.0), blend(1.0)), (COLORS[0], COLORS[9]));
        assert_eq!(blend(1.0 / 9.0), COLORS[1]);
        assert!((0..100).all(|i| step(i as f32 / 100.0) <= step((i + 1) as f32 / 100.0)));
    }

    #[test]
    fn the_legend_names_the_least_weight_of_each_character() {
        let legend = legend(Palette::Characters);
        let (_, at) = legend.split_once("* ").expect("a step");
        let least: f32 = at[..5].parse().expect("a number");
        assert_eq!(CHARACTERS[step(least + 1e-3)], '*');
        assert_eq!(CHARACTERS[step(least - 1e-3)], '+');
        assert!(legend.len() <= 100 && !legend.contains('\u{1b}'), "{legend}");
    }

    #[test]
    fn a_line_ends_in_the_terminals_own_colours() {
        let mut painter = Painter::new(Palette::TrueColor);
        painter.cell(Some(1.0), 2);
        assert_eq!(painter.finish(), "\u{1b}[0;48;2;252;255;164m  \u{1b}[0m");
        let mut painter = Painter::new(Palette::Ansi256);
        painter.pair(Some(0.0), Some(1.0));
        painter.pair(Some(0.0), None);
        painter.pair(None, None);
        let line = painter.finish();
        assert_eq!(line, "\u{1b}[0;38;5;16;48;5;229m▀\u{1b}[0;38;5;16m▀\u{1b}[0m");
        let mut painter = Painter::new(Palette::Characters);
        painter.pair(Some(0.0), Some(1.0));
        painter.cell(None, 3);
        assert_eq!(painter.finish(), "@");
    }
}
