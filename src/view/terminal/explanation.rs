//! The text of `inspect explain`: one token in one head, step by step.

use crate::inspect::{Explanation, Projection, Prompt, strongest};
use crate::view::terminal::columns::{fit, flow, numbered, width};

/// The most elements of a vector that are shown, and the fewest, however narrow the terminal is.
const SHOWN: usize = 6;
const LEAST_SHOWN: usize = 2;
/// The width of an element with its gap, and of the length with its gap.
const ELEMENT: usize = 9;
const LENGTH: usize = 12;
/// The width of the name before a vector, in columns.
const NAME: usize = 30;
/// The longest bar, in columns.
const BAR: usize = 20;
/// The most tokens named in the sum.
pub(crate) const NAMED: usize = 5;
/// The number of later tokens that are listed: enough to see the effect of the mask.
pub(crate) const LATER: usize = 4;

/// The six steps in `n_columns`, 60 at least. Every line ends with a line break.
#[must_use]
pub fn explanation(it: &Explanation, prompt: &Prompt, n_columns: usize) -> String {
    let piece_width = prompt.pieces.iter().map(|piece| width(piece)).max().unwrap_or(0).min(12);
    let n_shown = (n_columns.saturating_sub(3 + NAME + LENGTH) / ELEMENT).clamp(LEAST_SHOWN, SHOWN);
    let mut writer = Writer { text: String::new(), it, prompt, piece_width, n_columns, n_shown };
    writer.opening();
    writer.vectors();
    writer.projections();
    writer.keys();
    writer.sum();
    writer.text
}

struct Writer<'a> {
    text: String,
    it: &'a Explanation,
    prompt: &'a Prompt,
    piece_width: usize,
    n_columns: usize,
    /// The number of elements of a vector that are shown.
    n_shown: usize,
}

impl Writer<'_> {
    fn line(&mut self, line: impl AsRef<str>) {
        self.text += line.as_ref().trim_end();
        self.text.push('\n');
    }

    /// A column heading for vectors of `n` numbers.
    fn columns(&mut self, heading: &str, n: usize) {
        self.line(format!("\n{heading}"));
        let numbers = format!("{n} numbers, the first {}", self.n_shown.min(n));
        let columns = ELEMENT * self.n_shown;
        self.line(format!("   {} {numbers:<columns$}     length", " ".repeat(NAME)));
    }

    /// A name, the first numbers of a vector, and its length.
    fn vector(&mut self, name: &str, vector: &[f64]) {
        let mut line = format!("   {}", fit(name, NAME));
        for x in vector.iter().take(self.n_shown) {
            line += &format!(" {x:>8.3}");
        }
        let dots = if vector.len() > self.n_shown { "…" } else { " " };
        let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
        self.line(format!("{line} {dots} {length:>9.3}"));
    }

    /// A token with its position, aligned.
    fn token(&self, at: usize) -> String {
        numbered(at, self.prompt.len() - 1, &fit(&self.prompt.pieces[at], self.piece_width))
    }

    fn opening(&mut self) {
        let Explanation { layer, head, token, .. } = *self.it;
        self.line(format!(
            "layer {layer} head {head}: what `{}`, the token at position {token}, gathers from the tokens it sees",
            self.prompt.pieces[token]
        ));
        for line in flow(&self.prompt.whole_pieces(), self.n_columns.saturating_sub(3).max(1)) {
            self.line(format!("   {line}"));
        }
    }

    fn vectors(&mut self) {
        let it = self.it;
        self.columns("1. The token's vector", it.embedding.len());
        let name = match it.query.rotated {
            Some(_) => "x, its embedding".to_owned(),
            None => format!("x, its embedding + position {}", it.token),
        };
        self.vector(&name, &wide(&it.embedding));
        if it.layer > 0 {
            let below = it.layer - 1;
            let name = if below == 0 { "layer 0".to_owned() } else { format!("layers 0 to {below}") };
            self.vector(&format!("x after {name}"), &wide(&it.residual));
        }
        self.vector("normed: what the layer reads", &wide(&it.normed));
    }

    fn projections(&mut self) {
        let it = self.it;
        self.columns("2. Three learned matrices make a query, a key and a value of it", it.head_dim);
        for (letter, Projection { projected, normed, rotated }) in [("q", &it.query), ("k", &it.key), ("v", &it.value)]
        {
            self.vector(&format!("{letter} = x W_{letter}"), &wide(projected));
            let normed = normed.as_ref().map(|vector| (format!("{letter} normed (qk_norm)"), vector));
            let rotated = rotated.as_ref().map(|vector| (format!("{letter} rotated by position {}", it.token), vector));
            for (name, vector) in normed.into_iter().chain(rotated) {
                self.vector(&name, &wide(vector));
            }
        }
        let shared = it.kv_shared_by.iter().filter(|head| **head != it.head);
        let shared: Vec<String> = shared.map(ToString::to_string).collect();
        if !shared.is_empty() {
            let noun = if shared.len() == 1 { "head" } else { "heads" };
            let (kv_head, shared) = (it.kv_head, shared.join(", "));
            self.line(format!("   k and v are those of key/value head {kv_head}, shared with {noun} {shared}"));
        }
    }

    fn keys(&mut self) {
        let it = self.it;
        let scaled = match it.scale {
            None => format!("Divided by sqrt({}) = {:.4}", it.head_dim, (it.head_dim as f64).sqrt()),
            Some(scale) => format!("Times {scale}, the model's attention_scale"),
        };
        let capped = it.softcap.map(|cap| format!(", then at most {cap} by its tanh (attention_softcap)"));
        let scaled = scaled + &capped.unwrap_or_default();
        self.line(format!("\n3. The query times every key: how well they match\n4. {scaled}"));
        let before = it.window.map_or(String::new(), |n| format!(" and those before the last {n}"));
        self.line(format!("5. Later tokens{before} are masked; softmax turns the rest into weights that sum to 1"));
        let token_width = width(&self.token(0)).max(5);
        self.line(format!(
            "   {:<token_width$}  {:>9}  {:>9}  {:>9}  {:>7}",
            "key", "3. q . k", "4. scaled", "5. masked", "weight"
        ));
        let n_shown = (it.token + 1 + LATER).min(self.prompt.len());
        for at in 0..n_shown {
            let masked = it.masked[at].map_or("-inf".to_owned(), |x| format!("{x:.3}"));
            let (score, scaled, weight) = (it.scores[at], it.scaled[at], it.weights[at]);
            let token = self.token(at);
            let token = fit(&token, token_width.max(width(&token)));
            let bar = bar(weight, self.n_columns.saturating_sub(token_width + 60).clamp(4, BAR));
            let me = if at == it.token { "  (itself)" } else { "" };
            self.line(format!("   {token}  {score:>9.3}  {scaled:>9.3}  {masked:>9}  {weight:>7.4}  {bar}{me}"));
        }
        if n_shown < self.prompt.len() {
            self.line(format!("   ... {} more that come later: masked too", self.prompt.len() - n_shown));
        }
        self.line(format!("   checked: the model's own weights differ by at most {:.0e}", it.largest_difference()));
    }

    fn sum(&mut self) {
        let it = self.it;
        self.columns("6. The sum of the values, each times its weight", it.head_dim);
        #[allow(clippy::cast_possible_truncation, reason = "only their order is asked for")]
        let weights: Vec<f32> = it.weights.iter().map(|weight| *weight as f32).collect();
        let all = strongest(&weights, weights.len());
        for &(at, _) in all.iter().take(NAMED) {
            let weight = it.weights[at];
            let value: Vec<f64> = it.values[at].iter().map(|v| weight * f64::from(*v)).collect();
            self.vector(&format!("{weight:.4} x v of {}", self.token(at)), &value);
        }
        if all.len() > NAMED {
            let others = || all[NAMED..].iter().map(|(at, _)| *at);
            let weight: f64 = others().fold(0.0, |sum, at| sum + it.weights[at]);
            self.vector(&format!("{weight:.4}   in {} others", all.len() - NAMED), &it.gathered_from(others()));
        }
        self.vector("= what the head gathers", &it.context);
        self.line("   All heads' sums, side by side, go through one more matrix and are added to x.");
    }
}

pub(crate) fn wide(vector: &[f32]) -> Vec<f64> {
    vector.iter().copied().map(f64::from).collect()
}

/// A bar of a weight's length, to an eighth of a column, of which a weight of 1 has `n_columns`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a weight is in 0..=1")]
fn bar(weight: f64, n_columns: usize) -> String {
    let eighths = (weight * 8.0 * n_columns as f64).round() as usize;
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + part
}
