//! "Your journey starts with one step": self-attention without learned matrices, then with them.
//!
//! The numbers of the slides "The Engine of Transformers: Building Scaled Dot-Product Attention"; sentence and
//! embeddings are those of chapter 3 of Raschka's "Build a Large Language Model (From Scratch)".

mod numbers;

use std::io::{self, Write};

use burn::tensor::Tensor;
use numbers::{list, matrix, normal, table, values};
use tinderbox::model::attention::steps;

const WORDS: [&str; 6] = ["Your", "journey", "starts", "with", "one", "step"];

fn main() -> io::Result<()> {
    run(&mut io::stdout().lock())
}

/// The prototype, the trainable mechanism, and why it scales its scores.
pub(crate) fn run(out: &mut impl Write) -> io::Result<()> {
    let x = matrix([
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]);
    let journey = |matrix: Tensor<2>| values(matrix.narrow(0, 1, 1));

    writeln!(out, "Without trainable weights: journey")?;
    let scores = steps::scores(x.clone(), x.clone());
    let (context, weights) = steps::parameter_free_self_attention(x.clone());
    writeln!(out, "  scores  {}", list(&journey(scores), 4))?;
    writeln!(out, "  weights {}", list(&journey(weights), 4))?;
    writeln!(out, "  context {}", list(&journey(context), 4))?;

    let w_q = matrix([[0.296_112, 0.516_562], [0.251_671, 0.688_557], [0.073_972, 0.866_522]]);
    let w_k = matrix([[0.136_580, 0.102_479], [0.184_056, 0.726_447], [0.315_254, 0.687_107]]);
    let w_v = matrix([[0.075_635, 0.196_638], [0.316_412, 0.401_740], [0.118_568, 0.827_395]]);
    let [queries, keys, values] = [w_q, w_k, w_v].map(|w| x.clone().matmul(w)); // each [6, 2]
    let scores = steps::scores(queries, keys); // [6, 6]
    let weights = steps::weights(steps::scaled(scores.clone(), 2));
    let context = weights.clone().matmul(values); // [6, 2]

    writeln!(out, "\nWith learned queries, keys and values: journey")?;
    writeln!(out, "  scores  {}", list(&journey(scores), 4))?;
    writeln!(out, "  weights {}", list(&journey(weights.clone()), 4))?;
    writeln!(out, "  context {}", list(&journey(context.clone()), 4))?;
    let printed = matrix([[14.5, 25.1, 24.8, 14.3, 8.6, 17.6]]);
    let theirs = numbers::values(steps::weights(steps::scaled(printed, 2)));
    writeln!(
        out,
        "  note: the slides print the scores 14.5 25.1 24.8 14.3 8.6 17.6, whose weights would be\n  \
         {}. The weights they print are those of the scores above, 0.2264 cut to 0.22.",
        list(&theirs, 2)
    )?;
    writeln!(out, "Weights of all six")?;
    table(out, &WORDS, &WORDS, weights, 4)?;
    writeln!(out, "Context vectors of all six")?;
    table(out, &WORDS, &[], context, 4)?;

    let (q, k) = (normal([100, 100], 1), normal([100, 100], 2));
    let scores = steps::scores(q, k);
    let variance = |scores: Tensor<2>| numbers::values(scores.reshape([-1]).var(0));
    let before = variance(scores.clone())[0];
    let after = variance(steps::scaled(scores, 100))[0];
    writeln!(out, "\nScores of random vectors of 100 dimensions")?;
    writeln!(out, "  variance before scaling: {before:.1}")?;
    writeln!(out, "  variance after scaling by sqrt(100): {after:.3}")
}
