//! A text in its tokens, and how well each was predicted.

use crate::format::{counted, fixed, grouped, signed};
use crate::inspect::Prompt;
use crate::view::sheet::{ColorScale, Content, Figure, Piece, Pieces, Sheet};

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

    fn figure(&self, title: String, scale: ColorScale, value: impl Fn(usize) -> Option<(f64, String)>) -> Figure {
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
        Figure::new(title, Content::Pieces(Pieces { tokens: (0..ids.len()).map(piece).collect(), scale }))
    }

    /// The text, coloured by bits.
    fn own(&self, title: String) -> Figure {
        let bits = |at: usize| {
            let bits = self.bits.get(at).copied().flatten()?;
            Some((bits, format!("{} bits, a probability of {:.2} %", fixed(bits, 2), 100.0 * (-bits).exp2())))
        };
        self.figure(title, ColorScale::UpTo(FULL_BITS), bits)
    }
}

/// A text in its tokens, and how many bits a model needs for each, if there is one.
pub fn tokens_sheet(read: &ReadText<'_>) -> Sheet {
    let title = match read.bits.is_empty() {
        true => "Every other token is shaded",
        false => "Bits per token: the stronger the colour, the less expected",
    };
    Sheet {
        heading: format!("The tokens of {}", read.name),
        lead: read.summary(),
        figures: vec![read.own(title.to_owned())],
    }
}

/// Records as a model reads them: a title, the tokens, and whether each counts in the loss.
pub fn records_sheet(summary: &str, records: &[(String, Prompt, Vec<bool>)]) -> Sheet {
    let record = |(title, prompt, counts): &(String, Prompt, Vec<bool>)| {
        let counts = |at: usize| counts[at].then(|| (1.0, "counts in the loss".to_owned()));
        ReadText { name: String::new(), prompt, bits: Vec::new() }.figure(title.clone(), ColorScale::Marked, counts)
    };
    let numbers = Figure::new("Numbers", Content::Lines(summary.lines().map(str::to_owned).collect()));
    Sheet {
        heading: "Records".to_owned(),
        lead: "Tokens that count in the loss are coloured; the others are only read.".to_owned(),
        figures: records.iter().map(record).chain([numbers]).collect(),
    }
}

/// One text under two models, and the difference of their bits if their tokens are the same.
pub fn compared_sheet(reads: &[ReadText<'_>; 2]) -> Sheet {
    let [one, other] = reads;
    let mut figures: Vec<Figure> =
        reads.iter().map(|read| read.own(format!("Bits per token under {}", read.name))).collect();
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
        let saved: f64 = all.clone().sum();
        let verb = if saved < 0.0 { "needs" } else { "saves" };
        let more = if saved < 0.0 { " more" } else { "" };
        lead += &format!(
            " {} {verb} {} bits{more}, and expects {better} of {n} tokens better than {}.",
            other.name,
            fixed(saved.abs(), 1),
            one.name
        );
        let title = format!("Bits that {} saves against {}", other.name, one.name);
        figures.push(one.figure(title, ColorScale::signed(all), difference));
    } else {
        lead += " Their tokens differ: compare the bits in all.";
    }
    Sheet { heading: one.prompt.whole_pieces().concat(), lead, figures }
}
