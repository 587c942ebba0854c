//! "The cat sat": a whole self-attention of three words, small enough for paper.
//!
//! The numbers of the lesson "Self-Attention Deep Dive" (level 03, lesson 2), whose printed tables have slips.

mod numbers;

use std::io::{self, Write};

use burn::tensor::Tensor;
use numbers::{matrix, table};
use tinderbox::model::attention::steps;

const WORDS: [&str; 3] = ["The", "cat", "sat"];

fn main() -> io::Result<()> {
    run(&mut io::stdout().lock())
}

/// The lesson's example, then what it says of the order of words.
pub(crate) fn run(out: &mut impl Write) -> io::Result<()> {
    // Each embedding picks a row of the learned matrices: queries, keys and values are these rows.
    let x = matrix([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]);
    let w_q = matrix([[0.5, 0.2], [0.1, 0.8], [0.3, 0.4], [0.0, 0.0]]);
    let w_k = matrix([[0.6, 0.1], [0.2, 0.9], [0.4, 0.3], [0.0, 0.0]]);
    let w_v = matrix([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]);
    let project = |x: &Tensor<2>| [&w_q, &w_k, &w_v].map(|w| x.clone().matmul(w.clone()));

    let [q, k, v] = project(&x);
    let scores = steps::scores(q, k);
    writeln!(out, "Scores: queries times keys")?;
    table(out, &WORDS, &WORDS, scores.clone(), 2)?;
    writeln!(
        out,
        "  note: the lesson prints 0.23 0.27 for The, 0.38 0.34 for cat, 0.34 for sat: not the products of\n  \
         its own queries and keys."
    )?;

    let weights = steps::weights(scores.clone());
    writeln!(out, "Weights: their softmax")?;
    table(out, &WORDS, &WORDS, weights.clone(), 2)?;
    writeln!(
        out,
        "  note: the lesson prints 0.28 0.50 0.22 for cat, the softmax neither of its scores nor of these, and\n  \
         says that after itself cat attends to sat. By these weights it does."
    )?;
    writeln!(out, "Output: each word's mixture of the values")?;
    table(out, &WORDS, &[], weights.matmul(v.clone()), 2)?;

    writeln!(out, "Weights of scaled scores, a step of the lesson that its example leaves out")?;
    let weights = steps::weights(steps::scaled(scores, 2));
    table(out, &WORDS, &WORDS, weights, 2)?;

    let [q, k, v] = project(&x.flip([0])); // the last word first
    let weights = steps::weights(steps::scores(q, k));
    writeln!(out, "Output for \"sat cat The\": the same, in another order")?;
    table(out, &["sat", "cat", "The"], &[], weights.matmul(v), 2)
}
