//! What each layer would have predicted, and which parts speak for it, as tables.

use std::fmt::Write as _;

use super::columns::{fit, flow};
use super::grid::{PAGE, Row, grid, signed};
use crate::inspect::{Attribution, Guess, Lens, Prediction, Predictions, Prompt};
use crate::tokenizer::visible;

/// The most columns of a token in a table.
const LONGEST: usize = 12;
/// The most parts that are named.
const NAMED: usize = 20;

/// What each layer would have predicted: after every token the likeliest, if `all_positions`, and after the one that
/// `attribution` is about more of them, with the parts that speak for it. Every line ends with a line break.
#[must_use]
pub fn lens(
    lens: &Lens,
    attribution: &Attribution,
    prompt: &Prompt,
    all_positions: bool,
) -> String {
    let mut text = String::new();
    for (index, line) in flow(&prompt.whole_pieces(), PAGE - 13).iter().enumerate() {
        let name = match index {
            0 => format!("{} tokens", prompt.len()),
            _ => String::new(),
        };
        writeln!(text, "{name:<12} {line}").expect("a string");
    }
    if all_positions {
        text.push_str(
            "\nThe likeliest next token by each layer, and its probability; `came` with the model's own\n",
        );
        every_position(&mut text, lens, prompt);
    }
    let position = attribution.position;
    writeln!(
        text,
        "\nAfter `{}`, token {position}: the likeliest next tokens by each layer",
        prompt.pieces[position]
    )
    .expect("a string");
    one_position(&mut text, &lens.positions[position].stages);
    text.push('\n');
    parts(&mut text, attribution);
    text
}

fn shown(guess: &Guess) -> String {
    let token = visible(&guess.token);
    format!("{} {:.2}", short(&token), guess.probability)
}

/// How many of `n` parts are named: all of them where only one would be left.
pub(super) fn n_named(n: usize) -> usize {
    if n <= NAMED + 1 { n } else { NAMED }
}

/// A token as it fits a table.
pub(super) fn short(token: &str) -> String {
    fit(token, LONGEST).trim_end().to_owned()
}

fn stage_name(layer: Option<usize>) -> String {
    layer.map_or("embedding".to_owned(), |layer| format!("layer {layer}"))
}

fn every_position(text: &mut String, lens: &Lens, prompt: &Prompt) {
    let stages = lens.positions.first().map_or(&[][..], |at| &at.stages);
    let mut columns: Vec<String> = stages.iter().map(|stage| stage_name(stage.layer)).collect();
    columns.push("came".to_owned());
    let digits = (prompt.len() - 1).to_string().len();
    let row = |(at, piece): (&Predictions, &String)| -> Row {
        let likeliest = at.stages.iter().map(|stage| shown(&stage.top[0]));
        let mut cells: Vec<String> = likeliest.collect();
        let last = at.stages.last().and_then(|stage| stage.came.as_ref());
        cells.push(last.map_or(String::new(), |came| shown(&came.guess)));
        (format!("{:>digits$} {}", at.position, short(piece)), cells)
    };
    let rows: Vec<Row> = lens.positions.iter().zip(&prompt.pieces).map(row).collect();
    grid(text, &columns, &rows);
}

fn one_position(text: &mut String, stages: &[Prediction]) {
    let n_top = stages.first().map_or(0, |stage| stage.top.len());
    let mut columns: Vec<String> = (1..=n_top).map(|rank| format!("{rank}.")).collect();
    let came = stages.first().and_then(|stage| stage.came.as_ref());
    if let Some(came) = came {
        let token = short(&visible(&came.guess.token));
        columns.push(format!("came: {token}"));
        columns.push("rank".to_owned());
    }
    let row = |stage: &Prediction| -> Row {
        let mut cells: Vec<String> = stage.top.iter().map(shown).collect();
        if let Some(came) = &stage.came {
            cells.push(format!("{:.4}", came.guess.probability));
            cells.push(came.rank.to_string());
        }
        (stage_name(stage.layer), cells)
    };
    let rows: Vec<Row> = stages.iter().map(row).collect();
    grid(text, &columns, &rows);
}

fn parts(text: &mut String, it: &Attribution) {
    let answer = visible(&it.answer.token);
    let other = match &it.against {
        Some(against) => format!("that of `{}`", visible(&against.token)),
        None => "the mean of all tokens'".to_owned(),
    };
    writeln!(
        text,
        "Which parts speak for `{answer}`: its logit less {other} is {}, the sum of",
        signed(it.difference)
    )
    .expect("a string");
    let ranked = it.ranked();
    let (named, rest) = ranked.split_at(n_named(ranked.len()));
    let mut rows: Vec<Row> =
        named.iter().map(|term| (term.source.to_string(), vec![signed(term.logit)])).collect();
    if !rest.is_empty() {
        let sum = rest.iter().map(|term| term.logit).sum();
        rows.push((format!("{} others", rest.len()), vec![signed(sum)]));
    }
    rows.push(("together".to_owned(), vec![signed(it.sum())]));
    grid(text, &["logit".to_owned()], &rows);
}
