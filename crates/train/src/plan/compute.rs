//! Floating-point operations (FLOPs) of one token, counted for the matrix products only, with a multiply-add as two. The backward pass computes two products for each one of the forward pass; fused attention skips the
//! positions that a token may not attend to, and recomputes its weights in the backward pass.
//!
//! Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", table 1; Chowdhery et al. 2022,
//! "`PaLM`", appendix B.

use serde::Serialize;

use super::{Operations, parameters};
use crate::config::ModelConfig;
use tinderbox_model::{BlockPart, Parameter};

/// FLOPs of the forward pass for one token of a full context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compute {
    /// Query, key and value projections of all blocks.
    pub attention_qkv: f64,
    /// Output projections of all blocks.
    pub attention_output: f64,
    /// Feed-forward layers of all blocks.
    pub mlp: f64,
    /// The logits.
    pub output: f64,
    /// Queries times keys, and weights times values, as actually computed: one of the next two.
    pub attention: f64,
    /// The same over the positions that a token may attend to, without windows half of them on average: fused
    /// attention.
    pub attention_causal: f64,
    /// The same over the whole context: composed attention.
    pub attention_full: f64,
    /// The whole forward pass.
    pub forward: f64,
    /// Forward and backward pass.
    pub training: f64,
    /// Forward and backward pass as counted for model FLOPs utilization (MFU): three times the forward pass, with
    /// attention over the whole context.
    pub training_mfu: f64,
    /// The rule of thumb: six per parameter.
    pub six_n: f64,
}

/// Products in fused attention's backward pass for each one in its forward pass: the weights are recomputed, and each
/// of the two products has two gradients.
const FUSED_BACKWARD: f64 = 5.0 / 2.0;

/// Counts the FLOPs of one token.
pub fn compute(config: &ModelConfig, vocab_size: usize, operations: Operations) -> Compute {
    let ModelConfig { n_layers, context_length, d_model, n_heads, head_dim, .. } = *config;
    let [l, t, c, v, h, d] = [n_layers, context_length, d_model, vocab_size, n_heads, head_dim].map(|n| n as f64);
    let matrices: Vec<_> = Parameter::of_block(config, 0).into_iter().filter(Parameter::is_linear).collect();
    let of_blocks = |part| {
        let matrices = matrices.iter().filter(|matrix| matrix.role.block_part() == Some(part));
        l * 2.0 * matrices.map(|matrix| matrix.n_numbers() as f64).sum::<f64>()
    };
    let attention_qkv = of_blocks(BlockPart::Qkv);
    let attention_output = of_blocks(BlockPart::AttentionOutput);
    let mlp = of_blocks(BlockPart::Mlp);
    let output = 2.0 * c * v;
    let for_each_key = 2.0 * 2.0 * h * d; // a product with the key, and one with the value
    let attention_full = l * for_each_key * t;
    let n_keys = (0..n_layers).map(|layer| mean_keys(context_length, config.attention_window_of(layer)));
    let attention_causal = for_each_key * n_keys.sum::<f64>();
    let (attention, backward) = match operations {
        Operations::Fused => (attention_causal, FUSED_BACKWARD),
        Operations::Composed => (attention_full, 2.0),
    };
    let others = attention_qkv + attention_output + mlp + output;
    Compute {
        attention_qkv,
        attention_output,
        mlp,
        output,
        attention,
        attention_causal,
        attention_full,
        forward: others + attention,
        training: 3.0 * others + (1.0 + backward) * attention,
        training_mfu: 3.0 * (others + attention_full),
        six_n: 6.0 * parameters(config, vocab_size).total as f64,
    }
}

/// The number of positions in a window that a token of a full context attends to on average, itself included.
fn mean_keys(context_length: usize, window: Option<usize>) -> f64 {
    let (t, w) = (context_length as f64, window.unwrap_or(context_length).min(context_length) as f64);
    // The first tokens attend to 1 to `w` positions, all others to `w`.
    (w * f64::midpoint(w, 1.0) + (t - w) * w) / t
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MlpKind;

    fn small() -> ModelConfig {
        let sizes = ModelConfig { context_length: 3, d_model: 4, d_ff: 8, ..ModelConfig::default() };
        ModelConfig { n_layers: 2, n_heads: 2, n_kv_heads: 1, ..sizes }.with_derived()
    }

    fn exactly(flops: f64, by_hand: u32) {
        assert!((flops - f64::from(by_hand)).abs() < 0.5, "{flops} is not {by_hand}");
    }

    #[test]
    fn flops_of_a_small_model_equal_a_hand_count() {
        let config = small();
        let counted = compute(&config, 5, Operations::Composed);
        exactly(counted.attention_qkv, 2 * (2 * 4 * 8)); // two layers; [4] x [4, 2 * 2 + 2 + 2]
        exactly(counted.attention_output, 2 * (2 * 4 * 4));
        exactly(counted.mlp, 2 * (2 * 4 * 8 + 2 * 8 * 4));
        exactly(counted.output, 2 * 4 * 5);
        // Each head multiplies its 2 dimensions with 3 keys and 3 values.
        let full = 2 * 2 * (2 * 2 * 3 + 2 * 3 * 2);
        exactly(counted.attention_full, full);
        exactly(counted.attention, full);
        exactly(counted.forward, 128 + 64 + 256 + 40 + full);
        exactly(counted.training, 3 * (488 + full));
        exactly(counted.training_mfu, 3 * (488 + full));

        // The first token attends to one position, the last one to three.
        let causal = 2 * 2 * (2 * 2 * 2 + 2 * 2 * 2);
        let fused = compute(&config, 5, Operations::Fused);
        exactly(fused.attention_causal, causal);
        exactly(fused.attention, causal);
        exactly(fused.forward, 488 + causal);
        exactly(fused.training, 3 * 488 + causal + causal / 2 * 5);
        exactly(fused.training_mfu, 3 * (488 + full));
        // In the first layer to one position, then two, and two; in the second one to all.
        let windows = ModelConfig { attention_window: vec![2, 0], ..config.clone() };
        exactly(compute(&windows, 5, Operations::Fused).attention_causal * 3.0, 2 * (2 * 2 * 2) * (5 + 6));
        // Heads of 3 numbers: [4] x [4, 3 (2 + 1 + 1)], and [6] x [6, 4].
        let wide = compute(&ModelConfig { head_dim: 3, ..config.clone() }, 5, Operations::Fused);
        exactly(wide.attention_qkv, 2 * (2 * 4 * 12));
        exactly(wide.attention_output, 2 * (2 * 6 * 4));
        exactly(wide.attention_full, 2 * 2 * (2 * 3 * 3 + 2 * 3 * 3));
        let gated = ModelConfig { mlp: MlpKind::Swiglu, ..config };
        exactly(compute(&gated, 5, Operations::Fused).mlp, 256 / 2 * 3);
    }

    #[test]
    fn six_flops_per_parameter_approximate_large_models_with_short_contexts() {
        let sizes = ModelConfig { context_length: 64, d_model: 768, d_ff: 3072, ..ModelConfig::default() };
        let gpt_2 = ModelConfig { n_layers: 12, n_heads: 12, n_kv_heads: 12, ..sizes }.with_derived();
        let counted = compute(&gpt_2, 50_257, Operations::Composed);
        assert!((counted.training / counted.six_n - 1.0).abs() < 0.02, "{counted:?}");
    }
}
