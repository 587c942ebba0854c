//! The arithmetic of one token.
//!
//! Counted are the matrix products, in which nearly all of the time goes; norms, activations and the softmax
//! are not. A multiplication and the addition that follows it are two operations. The backward pass makes
//! two products for each one of the forward pass, for the gradients of its two factors.
//!
//! Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", table 1; Chowdhery et al. 2022,
//! "PaLM", appendix B.

use serde::Serialize;

use super::parameters;
use crate::config::{MlpKind, ModelConfig};

/// Floating-point operations (FLOPs) of the forward pass for one token of a full context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compute {
    /// Query, key and value projections of all blocks.
    pub attention_qkv: f64,
    /// Output projections of all blocks.
    pub attention_output: f64,
    /// Feed-forward layers of all blocks.
    pub mlp: f64,
    /// The scores for the next token.
    pub output: f64,
    /// Queries with keys, and weights with values, over the whole context: the part that grows with its
    /// length. This is what is computed.
    pub attention: f64,
    /// The same over the positions that a token may see, half of them on average: what there is to compute.
    pub attention_causal: f64,
    /// Everything that is computed.
    pub forward: f64,
    /// The same with the backward pass: three times as much.
    pub training: f64,
    /// The rule of thumb: six for each parameter.
    pub six_n: f64,
}

/// Counts the operations for one token.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "counts are shown in few digits")]
pub fn compute(config: &ModelConfig, vocab_size: usize) -> Compute {
    let [l, t, c, f, v, h, h_kv] = [
        config.n_layers,
        config.context_length,
        config.d_model,
        config.d_ff,
        vocab_size,
        config.n_heads,
        config.n_kv_heads,
    ]
    .map(|n| n as f64);
    let d = config.head_dim() as f64;
    let n_mlp_matrices = match config.mlp {
        MlpKind::Gelu | MlpKind::ReluSquared => 2.0,
        MlpKind::Swiglu => 3.0,
    };
    let attention_qkv = l * 2.0 * c * (h + 2.0 * h_kv) * d;
    let attention_output = l * 2.0 * c * c;
    let mlp = l * n_mlp_matrices * 2.0 * c * f;
    let output = 2.0 * c * v;
    let for_each_key = l * 2.0 * 2.0 * h * d; // a product with the key, and one with its value
    let attention = for_each_key * t;
    let forward = attention_qkv + attention_output + mlp + output + attention;
    Compute {
        attention_qkv,
        attention_output,
        mlp,
        output,
        attention,
        attention_causal: for_each_key * f64::midpoint(t, 1.0),
        forward,
        training: 3.0 * forward,
        six_n: 6.0 * parameters(config, vocab_size).total as f64,
    }
}
