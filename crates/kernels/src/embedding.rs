//! The vectors that a model begins with: of tokens and of positions.

use burn::tensor::{Int, Tensor, module};

#[cfg(feature = "flex")]
use super::fused;

/// Learned vectors of positions, `[P, C]`, and the position of the first token.
#[derive(Clone, Debug)]
pub struct Positions {
    /// `[P, C]`
    pub weight: Tensor<2>,
    /// The position of the first of the T tokens; `first + T` is at most P.
    pub first: usize,
}

/// The vector of each token, plus that of its position where positions have one.
///
/// Source: Vaswani et al. 2017, sections 3.4 and 3.5; learned positions: Gehring et al. 2017, "Convolutional
/// Sequence to Sequence Learning", section 3.1.
///
/// # Shapes
/// `tokens: [B, T]` with values in `0..V`, `weight: [V, C]` -> `[B, T, C]`
///
/// # Panics
/// If a token or a position is past the weights: a bug in the caller, never bad user input.
#[must_use]
pub fn embed(tokens: Tensor<2, Int>, weight: Tensor<2>, positions: Option<Positions>) -> Tensor<3> {
    #[cfg(feature = "flex")]
    if fused::is_for(&weight) {
        return fused::embedding::embed(tokens, weight, positions);
    }
    composed_embed(tokens, weight, positions)
}

/// [`embed`] by burn's own operations.
pub(super) fn composed_embed(
    tokens: Tensor<2, Int>,
    weight: Tensor<2>,
    positions: Option<Positions>,
) -> Tensor<3> {
    let [_, t] = tokens.dims();
    let x = module::embedding(weight, tokens); // [B, T, C]
    match positions {
        None => x,
        Some(Positions { weight, first }) => x + weight.narrow(0, first, t).unsqueeze(),
    }
}
