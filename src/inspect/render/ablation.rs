//! The loss without each part of a model, as a table.

use std::fmt::Write as _;

use super::grid::{grid, signed};
use crate::inspect::Ablation;

/// The loss of the whole model, and without each part how much higher it is; `measured_on` says on what. Every line ends
/// with a line break.
#[must_use]
pub fn ablation(it: &Ablation, measured_on: &str) -> String {
    let mut text = format!(
        "loss {:.4} nats per token over {} tokens: {measured_on}\n\nWithout a part the loss is higher by\n",
        it.loss, it.tokens
    );
    let first = it.parts.first();
    let has_mean = first.is_some_and(|part| part.mean.is_some());
    let has_zero = first.is_some_and(|part| part.zero.is_some());
    let mut columns = Vec::new();
    columns.extend(has_mean.then(|| "mean instead".to_owned()));
    columns.extend(has_zero.then(|| "zeros instead".to_owned()));
    let rows: Vec<_> = it
        .parts
        .iter()
        .map(|part| {
            let losses = [part.mean, part.zero].into_iter().flatten();
            let rises = losses.map(|loss| signed(loss - it.loss));
            (part.part.to_string(), rises.collect())
        })
        .collect();
    grid(&mut text, &columns, &rows);
    if has_mean {
        writeln!(
            text,
            "mean instead: what the part writes on average over these tokens, everywhere"
        )
        .expect("a string");
    }
    text
}
