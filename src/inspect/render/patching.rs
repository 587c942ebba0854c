//! Which part carries the difference between two texts, as tables.

use std::fmt::Write as _;

use super::columns::flow;
use super::grid::{PAGE, Row, grid, signed};
use super::lens::{n_named, short};
use crate::inspect::{Patched, Patching, Prompt};
use crate::tokenizer::visible;

/// A difference of differences, in nats, below which a share of it says little.
const LITTLE: f64 = 0.5;

/// The two texts, the parts that move the one's prediction towards the other's, and where in the residual stream the
/// difference is. Every line ends with a line break.
#[must_use]
pub fn patching(it: &Patching, [prompt, from]: [&Prompt; 2]) -> String {
    let mut text = String::new();
    for (name, prompt) in [("the prompt", prompt), ("patched from", from)] {
        for (index, line) in flow(&prompt.whole_pieces(), PAGE - 13).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            writeln!(text, "{name:<12} {line}").expect("a string");
        }
    }
    let [answer, against] = [&it.answer, &it.against].map(|answer| visible(&answer.token));
    writeln!(
        text,
        "\nAfter token {}, the logit of `{answer}` less that of `{against}` is {} in the prompt, {} in the other.\n\
         With a part's values of the other prompt it goes so far from the one to the other:",
        it.position,
        signed(it.difference),
        signed(it.from_difference),
    )
    .expect("a string");
    let row = |patched: &Patched| -> Row {
        let cells = vec![signed(patched.difference), percent(patched.share)];
        (patched.part.to_string(), cells)
    };
    let (named, rest) = it.parts.split_at(n_named(it.parts.len()));
    let rows: Vec<Row> = named.iter().map(row).collect();
    grid(&mut text, &["difference", "moved"].map(str::to_owned), &rows);
    if !rest.is_empty() {
        writeln!(text, "... and {} more that move it less", rest.len()).expect("a string");
    }
    let way = (it.from_difference - it.difference).abs();
    if way < LITTLE {
        writeln!(text, "The whole way is only {way:.4}: shares of so little say little.")
            .expect("a string");
    }
    text.push_str("\nAnd with the residual stream of the other prompt at one token:\n");
    positions(&mut text, it, prompt);
    text
}

fn positions(text: &mut String, it: &Patching, prompt: &Prompt) {
    let layers = (0..it.residual.len() - 1).map(|layer| format!("layer {layer}"));
    let columns: Vec<String> = std::iter::once("embedding".to_owned()).chain(layers).collect();
    let digits = it.position.to_string().len();
    let row = |at: usize| -> Row {
        let cells = it.residual.iter().map(|of_stage| percent(of_stage[at]));
        let name = format!("{at:>digits$} {}", short(&prompt.pieces[at]));
        (name, cells.collect())
    };
    let rows: Vec<Row> = (it.first_difference()..=it.position).map(row).collect();
    grid(text, &columns, &rows);
}

fn percent(share: f64) -> String {
    let shown = format!("{:.1} %", share * 100.0);
    match shown.as_str() {
        "-0.0 %" => "0.0 %".to_owned(),
        _ => shown,
    }
}
