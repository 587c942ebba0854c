//! The update of the weights: its arithmetic, and what it needs for a moment.

use super::{Operations, ParameterTensor, tensors};
use crate::config::{ModelConfig, OptimizerKind};
use crate::model::parameters::hidden_widths;

/// How often Muon applies its polynomial to a matrix.
const NEWTON_SCHULZ_ITERATIONS: f64 = 5.0;

/// Floating-point operations of the matrix products of one update: none with `AdamW`; with Muon five
/// iterations for each matrix inside the blocks, whatever the batch.
#[must_use]
pub fn update_flops(config: &ModelConfig, vocab_size: usize, kind: OptimizerKind) -> f64 {
    let weights = tensors(config, vocab_size);
    let made_orthogonal = weights.iter().flat_map(|weight| {
        let rows = weight.shape[0];
        let widths = muon_widths(config, weight, kind).unwrap_or_default();
        widths.into_iter().map(move |width| [rows, width])
    });
    made_orthogonal.map(orthogonalizing).sum()
}

/// Numbers that the update of one tensor needs for a moment, beside its weights, its gradient and its running
/// means.
#[must_use]
pub fn update_temporaries(
    config: &ModelConfig,
    weight: &ParameterTensor,
    kind: OptimizerKind,
    operations: Operations,
) -> f64 {
    let widths = muon_widths(config, weight, kind);
    if widths.is_none() && operations == Operations::Fused {
        return 0.0; // in place
    }
    // AdamW: the new means before the old ones are free. Muon: two more matrices of this shape in an iteration,
    // and a square one.
    let of_shape = 2.0 * weight.shape.iter().product::<usize>() as f64;
    let squares = widths.unwrap_or_default();
    let squares = squares.into_iter().map(|width| (width.min(weight.shape[0]) as f64).powi(2));
    of_shape + squares.fold(0.0, f64::max)
}

fn muon_widths(
    config: &ModelConfig,
    weight: &ParameterTensor,
    kind: OptimizerKind,
) -> Option<Vec<usize>> {
    match kind {
        OptimizerKind::Adamw => None,
        OptimizerKind::Muon => hidden_widths(config, &weight.name, &weight.shape),
    }
}

/// The products of a matrix with its transpose, of that with itself, and of both together with the matrix.
fn orthogonalizing([rows, columns]: [usize; 2]) -> f64 {
    let (m, n) = (rows.min(columns) as f64, rows.max(columns) as f64);
    NEWTON_SCHULZ_ITERATIONS * (2.0 * m * m * n + 2.0 * m * m * m + 2.0 * m * m * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers; queries `[4, 4]`, keys and values `[4, 2]` side by side.
    fn small() -> ModelConfig {
        ModelConfig {
            context_length: 3,
            d_model: 4,
            n_layers: 2,
            n_heads: 2,
            n_kv_heads: 1,
            d_ff: 8,
            ..ModelConfig::default()
        }
    }

    fn exactly(found: f64, by_hand: u32) {
        assert!((found - f64::from(by_hand)).abs() < 0.5, "{found} is not {by_hand}");
    }

    #[test]
    fn products_of_muon_counted_by_hand() {
        let square = 2 * (4 * 4 * 4) * 3; // [4, 4] with [4, 4], three times
        let narrow = 2 * (2 * 2 * 4) * 2 + 2 * (2 * 2 * 2); // [4, 2], and its square [2, 2]
        let wide = 2 * (4 * 4 * 8) * 2 + 2 * (4 * 4 * 4); // [4, 8], either way round
        let block = (square + 2 * narrow) + square + 2 * wide;
        exactly(update_flops(&small(), 5, OptimizerKind::Muon), 2 * 5 * block);
        exactly(update_flops(&small(), 5, OptimizerKind::Adamw), 0);
    }

    #[test]
    fn muon_needs_a_square_more_for_what_it_moves() {
        let of = |name: &str, kind| {
            let weights = tensors(&small(), 5);
            let weight = weights.iter().find(|weight| weight.name == name);
            [Operations::Fused, Operations::Composed]
                .map(|operations| update_temporaries(&small(), weight.unwrap(), kind, operations))
        };
        let (expand, embedding) = ("blocks.1.mlp.expand.weight", "token_embedding.weight");
        let assert_numbers = |found: [f64; 2], by_hand: [u32; 2]| {
            exactly(found[0], by_hand[0]);
            exactly(found[1], by_hand[1]);
        };
        assert_numbers(of(expand, OptimizerKind::Adamw), [0, 2 * 32]);
        assert_numbers(of(expand, OptimizerKind::Muon), [2 * 32 + 16; 2]);
        assert_numbers(of(embedding, OptimizerKind::Muon), [0, 2 * 20]);
    }
}
