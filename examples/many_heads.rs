//! Many heads: why scores are scaled, what a causal mask hides, and what a module with four heads is made of.
//!
//! The programs of a textbook's section on the Transformer's attention (queries, keys and values; scaling;
//! masks; heads; the cost). It prints few numbers itself: these are what such programs give.

mod numbers;

use std::io::{self, Write};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use numbers::{normal, table, values};
use tinderbox::model::Linear;
use tinderbox::model::attention::{
    MultiHeadAttention, MultiHeadAttentionConfig, causal_mask, scaled_dot_product_attention, steps,
};

fn main() -> io::Result<()> {
    run(&mut io::stdout().lock())
}

/// The section's programs, in its order.
pub(crate) fn run(out: &mut impl Write) -> io::Result<()> {
    scaling(out)?;
    four_queries_and_six_keys(out)?;
    the_future_is_hidden(out)?;
    four_heads(out)?;
    cost(out)?;
    what_mat_attends_to(out)
}

/// Random queries, each over ten keys: 400 of them, where the section takes one.
fn scaling(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "Scores of random vectors: 400 queries, ten keys for each; max prob is the mean of the largest weights"
    )?;
    for d_k in [8, 64, 512] {
        let (q, k) = (normal([400, 1, d_k], 1), normal([400, 10, d_k], 2));
        let scores = steps::scores(q, k); // [400, 1, 10]
        let scaled = steps::scaled(scores.clone(), d_k);
        let [unscaled, scaled] = [scores, scaled].map(|scores| {
            let flat = scores.clone().reshape([-1]);
            let spread = values(flat.var(0).sqrt())[0];
            let largest = values(steps::weights(scores).max_dim(2).mean())[0];
            format!("std={spread:5.2}, max prob={largest:.2}")
        });
        writeln!(out, "  d_k={d_k:3} | unscaled {unscaled} | scaled {scaled}")?;
    }
    Ok(())
}

/// Queries and keys may differ in number, keys and values in length.
fn four_queries_and_six_keys(out: &mut impl Write) -> io::Result<()> {
    let q = normal([2, 1, 4, 32], 3);
    let (k, v) = (normal([2, 1, 6, 32], 4), normal([2, 1, 6, 64], 5));
    let (output, weights) = scaled_dot_product_attention(q, k, v, None);
    let sum = values(weights.clone().sum_dim(3))[0];
    writeln!(out, "\nFour queries over six keys, d_k 32, d_v 64")?;
    writeln!(out, "  output  {:?}  (batch, heads, queries, d_v)", output.dims())?;
    writeln!(out, "  weights {:?}   (batch, heads, queries, keys)", weights.dims())?;
    writeln!(out, "  the first row sums to {sum:.4}")
}

/// Five positions: each sees itself and those before it.
fn the_future_is_hidden(out: &mut impl Write) -> io::Result<()> {
    let mask = causal_mask(5, 5, &Device::flex()).reshape([5, 5]);
    let positions = ["0", "1", "2", "3", "4"];
    writeln!(out, "\nCausal mask (1: hidden)")?;
    table(out, &positions, &[], mask.clone().float(), 0)?;
    let weights = steps::weights(steps::masked(normal([5, 5], 6), mask));
    writeln!(out, "Weights of random scores under it")?;
    table(out, &positions, &[], weights, 3)
}

/// An attention whose weights are random, and large enough for heads to differ.
fn attention(d_model: usize, n_heads: usize, causal: bool) -> MultiHeadAttention {
    let config = MultiHeadAttentionConfig { causal, ..MultiHeadAttentionConfig::new(d_model, n_heads) };
    let mut attention = config.init(&Device::flex());
    let draw = |n: usize, seed| {
        let weight = steps::scaled(normal([d_model, n * d_model], seed), d_model);
        Linear::new(weight, Some(Tensor::zeros([n * d_model], &Device::flex())))
    };
    (attention.qkv, attention.output) = (draw(3, 7), draw(1, 8));
    attention
}

fn four_heads(out: &mut impl Write) -> io::Result<()> {
    let x = normal([2, 10, 128], 9);
    writeln!(out, "\nFour heads, d_model 128, two texts of ten tokens")?;
    for (name, causal) in [("bidirectional", false), ("causal", true)] {
        let (output, weights) = attention(128, 4, causal).attend(x.clone(), None);
        writeln!(out, "  {name:13}: output {:?}, weights {:?}", output.dims(), weights.dims())?;
        let first = weights.slice([0..1, 0..1, 0..1, 0..10]);
        table(out, &["position 0 of head 0"], &[], first.reshape([1, 10]), 2)?;
    }
    let module = attention(128, 4, true);
    let [qkv, output] = [&module.qkv, &module.output].map(Module::num_params);
    writeln!(
        out,
        "  {} parameters: {qkv} to make queries, keys and values, {output} for the output",
        module.num_params()
    )
}

/// What a layer's weights `[H, T, T]` take where they are held whole, as for a probe, in megabytes. Training computes
/// them again in its backward pass, and keeps none.
fn megabytes(n_heads: usize, n_tokens: usize) -> f64 {
    let bytes_of_f32 = 4.0;
    bytes_of_f32 * n_heads as f64 * (n_tokens as f64).powi(2) / 1e6
}

/// Every token looks at every token.
fn cost(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nWeights of a layer of four heads, in f32")?;
    for n_tokens in [64, 128, 256, 512, 1024, 2048] {
        writeln!(out, "  {n_tokens:>4} tokens {:>6.2} MB", megabytes(4, n_tokens))?;
    }
    writeln!(
        out,
        "  one head over 128000 tokens: {:.1} GB\n  note: the section has \"about 62 GB\" for the last.",
        megabytes(1, 128_000) / 1000.0
    )
}

fn what_mat_attends_to(out: &mut impl Write) -> io::Result<()> {
    let words = ["the", "cat", "sat", "on", "mat"];
    let embeddings = normal([1, 5, 64], 10);
    let (_, weights) = attention(64, 4, true).attend(embeddings, None);
    let mat = weights.slice([0..1, 0..4, 4..5, 0..5]); // [1, 4, 1, 5]
    writeln!(out, "\nWhat \"mat\" attends to")?;
    let heads = ["head 0", "head 1", "head 2", "head 3"];
    table(out, &heads, &words, mat.reshape([4, 5]), 2)?;
    writeln!(
        out,
        "  note: the section reads subject, verb and preposition into its heads. Such weights are random, as these\n  \
         are: heads differ, and mean nothing before they are trained."
    )
}
