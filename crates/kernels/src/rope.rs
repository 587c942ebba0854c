//! Rotary positions: vectors turned by angles.

use burn::tensor::{Tensor, assert_shape};

/// Turns the pairs `(i, i + D / 2)` of each vector.
///
/// Source: Su et al. 2021, "RoFormer", eq. 34, with halves for its pairs of neighbours.
///
/// # Shapes
/// `x: [B, H, T, D]`, `cos, sin: [1, 1, T, D / 2]` -> `[B, H, T, D]`
///
/// # Panics
/// If T or D is not what the angles were made for.
#[must_use]
pub fn rotate(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let [.., t, half] = cos.dims();
    assert_shape!(x, [_, _, t, 2 * half]);
    let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half)); // each [B, H, T, D / 2]
    let first = a.clone() * cos.clone() - b.clone() * sin.clone();
    let second = b * cos + a * sin;
    Tensor::cat(vec![first, second], 3) // [B, H, T, D]
}
