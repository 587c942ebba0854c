//! The arithmetic of one token.
//!
//! Counted are the matrix products, in which nearly all of the time goes; norms, activations and the softmax
//! are not. A multiplication and the addition that follows it are two operations. The backward pass makes
//! two products for each one of the forward pass, for the gradients of its two factors.
//!
//! Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", table 1; Chowdhery et al. 2022,
//! "`PaLM`", appendix B.

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
    /// length. This is what operations that are composed compute.
    pub attention: f64,
    /// The same over the positions that a token may see, half of them on average: what there is to
    /// compute, and about what the fused operation of the CPU does.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_model_counted_by_hand() {
        let config = ModelConfig {
            context_length: 3,
            d_model: 4,
            n_layers: 2,
            n_heads: 2,
            n_kv_heads: 1,
            d_ff: 8,
            ..ModelConfig::default()
        };
        let counted = compute(&config, 5);
        let exactly = |flops: f64, by_hand: u32| {
            assert!(
                (flops - f64::from(by_hand)).abs() < 0.5,
                "{flops} is not {by_hand}"
            );
        };
        exactly(counted.attention_qkv, 2 * (2 * 4 * 8)); // two layers; [4] x [4, 2 * 2 + 2 + 2]
        exactly(counted.attention_output, 2 * (2 * 4 * 4));
        exactly(counted.mlp, 2 * (2 * 4 * 8 + 2 * 8 * 4));
        exactly(counted.output, 2 * 4 * 5);
        // Each head has 2 dimensions, and multiplies them with 3 keys and 3 values.
        exactly(counted.attention, 2 * 2 * (2 * 2 * 3 + 2 * 3 * 2));
        exactly(counted.attention_causal, 2 * 2 * (2 * 2 * 2 + 2 * 2 * 2));
        exactly(counted.forward, 128 + 64 + 256 + 40 + 96);
        exactly(counted.training, 3 * 584);
        let gated = ModelConfig {
            mlp: MlpKind::Swiglu,
            ..config
        };
        exactly(compute(&gated, 5).mlp, 256 / 2 * 3);
    }

    #[test]
    fn six_for_each_parameter_is_close_for_a_large_model_with_a_short_context() {
        let gpt_2 = ModelConfig {
            context_length: 64,
            d_model: 768,
            n_layers: 12,
            n_heads: 12,
            n_kv_heads: 12,
            d_ff: 3072,
            ..ModelConfig::default()
        };
        let counted = compute(&gpt_2, 50_257);
        assert!(
            (counted.training / counted.six_n - 1.0).abs() < 0.02,
            "{counted:?}"
        );
    }
}
