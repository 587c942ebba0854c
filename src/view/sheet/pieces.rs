//! A text in coloured pieces: where its tokens begin, and how well each was predicted.

use crate::format::{counted, fixed, grouped, signed};
use crate::inspect::Prompt;
use crate::view::escape;
use crate::view::sheet::{ADVANCE, ColorScale, Figure, MARGIN, SIZE, Sheet, css_colors, legend_html, legend_svg};
use crate::view::svg::{self, Anchor};
use crate::view::terminal::attention::Palette;
use crate::view::terminal::columns::width;
use crate::view::theme::{self, Theme};

/// A text as its tokens, in lines.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// The meaning of the colours.
    pub title: String,
    /// The tokens, in order.
    pub tokens: Vec<Piece>,
    /// The meaning of the values.
    pub scale: ColorScale,
}

/// A token of a text.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Its readable form.
    pub text: String,
    /// Whether a line ends after it.
    pub ends_line: bool,
    /// `None` for a token without a value: every other one is then shaded.
    pub value: Option<f64>,
    /// The tooltip.
    pub about: String,
}

/// A text as one model reads it.
#[derive(Clone, Debug)]
pub struct ReadText<'a> {
    /// The name of the tokenizer or of the checkpoint.
    pub name: String,
    /// The tokens.
    pub prompt: &'a Prompt,
    /// The bits of each token, `[T]`, `None` for one that was not predicted; empty without a model.
    pub bits: Vec<Option<f64>>,
}

/// Bits from which a token has the full colour: less than one in a thousand.
const FULL_BITS: f64 = 10.0;

impl ReadText<'_> {
    /// Their number, and how many there are on average per token and per byte of the predicted text.
    fn summary(&self) -> String {
        let n_bytes: usize = self.prompt.n_bytes();
        let n = counted(self.prompt.len() as u64, "token");
        let per_token = n_bytes as f64 / self.prompt.len() as f64;
        let start = format!("{n} of {} bytes, {per_token:.2} bytes per token", grouped(n_bytes as u64));
        let known: Vec<f64> = self.bits.iter().flatten().copied().collect();
        if known.is_empty() {
            return start + ".";
        }
        let sum: f64 = known.iter().sum();
        format!("{start}; {} bits per token, {} in all.", fixed(sum / known.len() as f64, 2), fixed(sum, 1))
    }

    fn figure(&self, title: String, scale: ColorScale, value: impl Fn(usize) -> Option<(f64, String)>) -> Pieces {
        let Prompt { ids, texts, pieces, .. } = self.prompt;
        let piece = |at: usize| {
            let value = value(at);
            let what = value.as_ref().map_or(String::new(), |(_, what)| format!(": {what}"));
            Piece {
                text: pieces[at].clone(),
                ends_line: texts[at].ends_with('\n'),
                value: value.map(|(value, _)| value),
                about: format!("token {at} “{}”, id {}{what}", pieces[at], ids[at]),
            }
        };
        Pieces { title, tokens: (0..ids.len()).map(piece).collect(), scale }
    }

    /// The text, coloured by bits.
    fn own(&self, title: String) -> Pieces {
        let bits = |at: usize| {
            let bits = self.bits.get(at).copied().flatten()?;
            Some((bits, format!("{} bits, a probability of {:.2} %", fixed(bits, 2), 100.0 * (-bits).exp2())))
        };
        self.figure(title, ColorScale::UpTo(FULL_BITS), bits)
    }
}

/// A text in its tokens, and how many bits a model needs for each, if there is one.
#[must_use]
pub fn tokens_sheet(read: &ReadText<'_>) -> Sheet {
    let has_bits = !read.bits.is_empty();
    let title = if has_bits {
        "Bits per token: the stronger the colour, the less expected"
    } else {
        "Every other token is shaded"
    };
    Sheet {
        heading: format!("The tokens of {}", read.name),
        lead: read.summary(),
        figures: vec![Figure::Pieces(read.own(title.to_owned()))],
    }
}

/// One text under two models, and the difference of their bits if their tokens are the same.
#[must_use]
pub fn compared_sheet(reads: &[ReadText<'_>; 2]) -> Sheet {
    let [one, other] = reads;
    let mut figures: Vec<Figure> =
        reads.iter().map(|read| Figure::Pieces(read.own(format!("Bits per token under {}", read.name)))).collect();
    let summaries = reads.each_ref().map(|read| format!("{}: {}", read.name, read.summary()));
    let mut lead = summaries.join(" ");
    if one.prompt.ids == other.prompt.ids {
        let difference = |at: usize| {
            let [a, b] = reads.each_ref().map(|read| read.bits.get(at).copied().flatten());
            let (a, b) = (a?, b?);
            Some((a - b, format!("{} bits, then {}: {} saved", fixed(a, 2), fixed(b, 2), signed(a - b, 2))))
        };
        let all = (0..one.prompt.len()).filter_map(|at| Some(difference(at)?.0));
        let (n, better) = all.clone().fold((0, 0), |(n, better), x| (n + 1, better + usize::from(x > 0.0)));
        lead += &format!(" {} expects {better} of {n} tokens better than {}.", other.name, one.name);
        let title = format!("Bits that {} saves against {}", other.name, one.name);
        figures.push(Figure::Pieces(one.figure(title, ColorScale::signed(all), difference)));
    } else {
        lead += " Their tokens differ: compare the bits in all.";
    }
    Sheet { heading: one.prompt.whole_pieces().concat(), lead, figures }
}

impl Pieces {
    pub(super) fn html(&self) -> String {
        let mut text = String::new();
        for Piece { text: piece, ends_line, value, about } in &self.tokens {
            let style = value.map_or(String::new(), |value| {
                let [ground, letters] = css_colors(self.scale, value);
                format!(" style=\"background:{ground};color:{letters}\"")
            });
            text += &format!("<span{style} data-about=\"{}\">{}</span>", escape(about), escape(piece));
            text += if *ends_line { "<br>\n" } else { "<wbr>" };
        }
        let legend = if self.has_values() { legend_html(self.scale) } else { String::new() };
        format!(
            "<figure>\n<figcaption>{}</figcaption>\n{legend}<output></output>\n\
             <p class=\"pieces{}\" data-walk tabindex=\"0\" role=\"group\" aria-label=\"{}\">{text}</p>\n</figure>\n",
            escape(&self.title),
            if self.has_values() { "" } else { " plain" },
            escape(&format!("{}: arrow keys move from token to token", self.title)),
        )
    }

    /// Draws the text below `y`; returns its right and lower ends.
    pub(super) fn svg(&self, svg: &mut String, y: f64) -> [f64; 2] {
        const LINE: f64 = 22.0;
        const WIDTH: f64 = 100.0 * ADVANCE;
        *svg += &svg::text("i", [MARGIN, y + 14.0], Some(SIZE), Anchor::Start, &self.title);
        let mut y = y + 24.0;
        if self.has_values() {
            legend_svg(self.scale, svg, y);
            y += LINE;
        }
        let (mut x, mut end) = (MARGIN, MARGIN);
        for (at, Piece { text, ends_line, value, about }) in self.tokens.iter().enumerate() {
            let length = ADVANCE * width(text) as f64;
            if x > MARGIN && x + length > MARGIN + WIDTH {
                (x, y) = (MARGIN, y + LINE);
            }
            let (class, letters) = match value {
                Some(value) => self.scale.classes(*value),
                None => (if at % 2 == 0 { "odd" } else { "even" }.to_owned(), "i".to_owned()),
            };
            *svg += &format!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{}\"><title>{}</title></rect>\n",
                length + 1.0,
                LINE - 2.0,
                escape(about)
            );
            *svg += &svg::text(&letters, [x + 1.0, y + 15.0], Some(SIZE), Anchor::Start, text);
            x += length + 2.0;
            end = f64::max(end, x);
            if *ends_line {
                (x, y) = (MARGIN, y + LINE);
            }
        }
        [end, y + LINE]
    }

    fn has_values(&self) -> bool {
        self.tokens.iter().any(|piece| piece.value.is_some())
    }

    /// The text for a terminal: coloured, or with a bar between tokens.
    fn text(&self, palette: Palette, n_columns: usize) -> String {
        let mut text = String::new();
        let mut used = 0;
        for (at, Piece { text: piece, ends_line, value, .. }) in self.tokens.iter().enumerate() {
            let is_plain = palette == Palette::Characters;
            let length = width(piece) + usize::from(is_plain);
            if used > 0 && used + length > n_columns {
                text.push('\n');
                used = 0;
            }
            let shade = || {
                let ground = theme::rgb(if at % 2 == 0 { "panel" } else { "edge" }, Theme::Dark);
                [ground, theme::letters_on(ground)]
            };
            let colors = value.map_or_else(shade, |value| self.scale.colors(value, Theme::Dark));
            text += &palette.on(colors, piece);
            if is_plain {
                text.push('|');
            }
            used += length;
            if *ends_line {
                text.push('\n');
                used = 0;
            }
        }
        if used > 0 {
            text.push('\n');
        }
        text
    }
}

/// A sheet of texts for a terminal.
#[must_use]
pub fn pieces_text(sheet: &Sheet, (palette, n_columns): (Palette, usize)) -> String {
    let mut text = format!("{}\n", sheet.lead);
    for figure in &sheet.figures {
        let Figure::Pieces(pieces) = figure else { continue };
        text += &format!("\n{}\n{}", pieces.title, pieces.text(palette, n_columns));
        if pieces.has_values() {
            let entry = |(value, label): (f64, String)| {
                format!("{} {label}", palette.on(pieces.scale.colors(value, Theme::Dark), "  "))
            };
            let legend: Vec<String> = pieces.scale.legend().into_iter().map(entry).collect();
            if palette != Palette::Characters {
                text += &format!("{}\n", legend.join("  "));
            }
        }
    }
    text
}
