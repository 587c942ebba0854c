//! A linear layer.

use burn::tensor::{Tensor, module};

#[cfg(feature = "flex")]
use super::fused;

/// `x weight + bias` over the last dimension.
///
/// # Shapes
/// `x: [.., K]`, `weight: [K, M]`, `bias: [M]` -> `[.., M]`
#[must_use]
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if fused::is_for(&x) {
        return fused::linear::linear(x, weight, bias);
    }
    module::linear(x, weight, bias)
}
