//! A soft lookup: "it" asks, "animal", "street" and "because" answer, and "it" becomes a mixture of them.
//!
//! The numbers of the lesson "L03 - Self-Attention: The Search Engine of Language", as it prints them.

mod numbers;

use std::io::{self, Write};

use burn::tensor::Tensor;
use numbers::{list, matrix, table, values};
use tinderbox::model::attention::{scaled_dot_product_attention, steps};

fn main() -> io::Result<()> {
    run(&mut io::stdout().lock())
}

/// The lesson's four calculations, in its order.
pub(crate) fn run(out: &mut impl Write) -> io::Result<()> {
    queries_of_the_bank(out)?;
    magnitudes(out)?;
    lookup(out)?;
    three_tokens(out)
}

/// Queries are not the embeddings: a matrix mixes their features. This one is random.
fn queries_of_the_bank(out: &mut impl Write) -> io::Result<()> {
    let embeddings = matrix([
        [0.5, 0.3, 0.8, 0.2], // bank
        [0.2, 0.9, 0.1, 0.3], // river
        [0.8, 0.1, 0.4, 0.7], // loan
    ]);
    // What `torch.manual_seed(42); torch.randn(4, 4)` draws.
    let w_q = matrix([
        [1.9269, 1.4873, 0.9007, -2.1055],
        [0.6784, -1.2345, -0.0431, -1.6047],
        [-0.7521, 1.6487, -0.3925, -1.4036],
        [-0.7279, -0.5594, -0.7688, 0.7624],
    ]) * 0.5;
    writeln!(out, "Queries of three embeddings")?;
    let queries = embeddings.matmul(w_q);
    table(out, &["bank", "river", "loan"], &[], queries, 3)
}

/// A product measures length too, and scaling does not change that.
fn magnitudes(out: &mut impl Write) -> io::Result<()> {
    let q = matrix([[3.0, 1.0]]);
    let keys = matrix([[1.5, 0.5], [4.5, 1.5], [1.0, 4.0]]);
    let scores = steps::scores(q, keys);
    let scaled = values(steps::scaled(scores.clone(), 2));
    let scores = values(scores);
    writeln!(out, "\nThe query [3, 1] times three keys, and scaled")?;
    let names = ["short, aligned", "long, aligned", "misaligned"];
    for ((name, score), scaled) in names.iter().zip(&scores).zip(&scaled) {
        writeln!(out, "  {name:14}: {score:4.1}  {scaled:5.2}")?;
    }
    let [before, after] = [&scores, &scaled].map(|x| x[2] / x[0]);
    writeln!(
        out,
        "  misaligned over short and aligned: {before:.2}x before scaling, {after:.2}x after it\n  \
         note: the lesson says that scaling makes a model look at alignment, not at length. It does not:\n  \
         every score is divided by the same number."
    )
}

/// The four steps for a single query.
fn lookup(out: &mut impl Write) -> io::Result<()> {
    let words = ["animal", "street", "because"];
    let q = matrix([[3.0, 1.0]]);
    let k = matrix([[3.0, 1.0], [1.0, 4.0], [1.5, 0.5]]);
    let v = matrix([[2.0, 1.5], [0.5, 0.3], [-0.5, 1.2]]);

    writeln!(out, "\nStep 1: dot products")?;
    let scores = steps::scores(q.clone(), k.clone());
    for (word, score) in words.iter().zip(values(scores.clone())) {
        writeln!(out, "  {word:8}: {score:.1}")?;
    }
    writeln!(out, "Step 2: divided by the square root of 2")?;
    let scaled = steps::scaled(scores, 2);
    for (word, scaled) in words.iter().zip(values(scaled.clone())) {
        writeln!(out, "  {word:8}: {scaled:.2}")?;
    }
    writeln!(out, "  note: the lesson's formulas have 7.09 and 4.96, divided by 1.41; its program has these.")?;
    writeln!(out, "Step 3: softmax")?;
    let weights = steps::weights(scaled);
    for (word, weight) in words.iter().zip(values(weights.clone())) {
        writeln!(out, "  {word:8}: {weight:.2} ({:.0}%)", 100.0 * weight)?;
    }
    let context = list(&values(weights.matmul(v.clone())), 2);
    writeln!(out, "Step 4: weighted sum of the values\n  {context}")?;

    let [q, k, v] = [q, k, v].map(Tensor::unsqueeze::<4>);
    let (context, _) = scaled_dot_product_attention(q, k, v, None);
    let context = list(&values(context), 2);
    writeln!(out, "All at once\n  {context}")
}

/// Three tokens of four dimensions, each attending to all.
fn three_tokens(out: &mut impl Write) -> io::Result<()> {
    let q = matrix([[3.0, 1.0, 0.0, 0.0], [1.0, 4.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]]);
    let v = matrix([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]);
    let tokens = ["0", "1", "2"];
    let scaled = steps::scaled(steps::scores(q.clone(), q), 4);
    let weights = steps::weights(scaled.clone());
    writeln!(out, "\nThree tokens, keys = queries: scaled scores")?;
    table(out, &tokens, &[], scaled, 4)?;
    writeln!(out, "Weights")?;
    table(out, &tokens, &[], weights.clone(), 4)?;
    let sums = values(weights.clone().sum_dim(1));
    writeln!(out, "  rows sum to {}", list(&sums, 4))?;
    writeln!(out, "Output")?;
    table(out, &tokens, &[], weights.matmul(v), 4)
}
