//! Masks and patterns: why a mask comes before the softmax, and what typical attention maps look like.
//!
//! The numbers of "Self-Attention Mechanism", tutorial 3 of the Transformers course at `AITutorials.site`.

mod numbers;

use std::io::{self, Write};

use burn::tensor::{Bool, Device, Tensor};
use numbers::{list, matrix, table, values};
use tinderbox::inspect::strongest;
use tinderbox::model::attention::{causal_mask, steps};

const WORDS: [&str; 5] = ["The", "cat", "sat", "on", "mat"];

fn main() -> io::Result<()> {
    run(&mut io::stdout().lock())
}

/// The tutorial's examples, in its order.
pub(crate) fn run(out: &mut impl Write) -> io::Result<()> {
    let scores = steps::scores(matrix([[1.0, 0.0]]), matrix([[1.0, 0.0], [0.0, 1.0]]));
    let [matching, other] = [0, 1].map(|key| values(scores.clone())[key]);
    writeln!(out, "The query [1, 0] times [1, 0] and [0, 1]: {matching:.1}, {other:.1}")?;
    a_sample_map(out)?;
    patterns(out)?;
    who_may_see_whom(out)?;
    before_and_after(out)
}

/// Six words and a plausible map: whom does each attend to most?
fn a_sample_map(out: &mut impl Write) -> io::Result<()> {
    let words = ["The", "cat", "sat", "on", "the", "mat"];
    let map = [
        [0.40, 0.15, 0.10, 0.10, 0.15, 0.10],
        [0.10, 0.50, 0.25, 0.05, 0.05, 0.05],
        [0.08, 0.35, 0.40, 0.12, 0.03, 0.02],
        [0.05, 0.05, 0.10, 0.35, 0.15, 0.30],
        [0.40, 0.08, 0.07, 0.10, 0.25, 0.10],
        [0.05, 0.10, 0.05, 0.25, 0.15, 0.40],
    ];
    writeln!(out, "\nA sample map: whom each word attends to most")?;
    for (word, row) in words.iter().zip(&map) {
        let top = strongest(row, 2);
        let top: Vec<String> = top.iter().map(|&(at, weight)| format!("{} {weight:.2}", words[at])).collect();
        writeln!(out, "  {word} -> {}", top.join(", "))?;
    }
    Ok(())
}

/// Four maps, made by attention: their logarithms are scores that lead to them.
///
/// With positions as values, the output says where each token looks on average.
fn patterns(out: &mut impl Write) -> io::Result<()> {
    let diagonal = matrix([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]]);
    let uniform = matrix([[0.33; 3]; 3]);
    let focused = matrix([[0.05, 0.90, 0.05], [0.10, 0.10, 0.80], [0.85, 0.10, 0.05]]);
    let local = matrix([[0.7, 0.2, 0.1, 0.0], [0.2, 0.5, 0.2, 0.1], [0.1, 0.2, 0.5, 0.2], [0.0, 0.1, 0.2, 0.7]]);
    let positions = matrix([[0.0], [1.0], [2.0], [3.0]]);
    for (name, pattern) in [("Diagonal", diagonal), ("Uniform", uniform), ("Focused", focused), ("Local", local)] {
        let [n, _] = pattern.dims();
        let weights = steps::weights(pattern.log());
        let places = weights.clone().matmul(positions.clone().narrow(0, 0, n));
        writeln!(out, "\n{name} pattern")?;
        table(out, &["0", "1", "2", "3"][..n], &[], weights, 2)?;
        writeln!(out, "  looks at {} on average", list(&values(places), 2))?;
    }
    Ok(())
}

fn who_may_see_whom(out: &mut impl Write) -> io::Result<()> {
    let mask = causal_mask(5, 5, &Device::flex());
    let hidden: Vec<bool> = mask.into_data().try_to_vec().expect("a mask is of bool");
    writeln!(out, "\nUnder a causal mask")?;
    for (word, hidden) in WORDS.iter().zip(hidden.chunks(5)) {
        let seen = WORDS.iter().zip(hidden).filter(|(_, hidden)| !**hidden);
        let seen: Vec<&str> = seen.map(|(word, _)| *word).collect();
        writeln!(out, "  {word:>3} can attend to: {}", seen.join(", "))?;
    }
    Ok(())
}

/// The right way and the wrong one, on the tutorial's similarities of "The", "cat" and "sat" to five words.
fn before_and_after(out: &mut impl Write) -> io::Result<()> {
    let mask: Tensor<2, Bool> = causal_mask(5, 5, &Device::flex()).reshape([5, 5]);
    let mask = mask.narrow(0, 0, 3);
    let before = |scores: Tensor<2>| steps::weights(steps::masked(scores, mask.clone()));
    let after = |scores: Tensor<2>| steps::weights(scores).mask_fill(mask.clone(), 0.0);
    let mut rows = [[0.8, 0.2, 0.1, 0.1, 0.1], [0.3, 0.9, 0.4, 0.1, 0.2], [0.2, 0.5, 0.8, 0.3, 0.4]];
    let mut show = |title: &str, weights: Tensor<2>| -> io::Result<()> {
        writeln!(out, "\n{title}")?;
        table(out, &WORDS[..3], &WORDS, weights.clone(), 2)?;
        let sums = values(weights.sum_dim(1));
        writeln!(out, "  rows sum to {}", list(&sums, 2))
    };
    show("Masked before the softmax", before(matrix(rows)))?;
    show("Masked after it", after(matrix(rows)))?;
    rows[0][4] = 3.0;
    show("The same where \"mat\" suits \"The\" better: before", before(matrix(rows)))?;
    show("and after, where the future shows although it is hidden", after(matrix(rows)))?;
    writeln!(
        out,
        "  note: the tutorial expects about 0.33 0.33 0.33 for the third row of random scores. That takes equal\n  \
         ones: any others give other weights, as they should."
    )
}
