//! A linear layer.

use burn::tensor::{Tensor, module};

use super::MatmulPrecision;
use crate::{flex, fused};

/// `x weight + bias` over the last dimension; the product and its gradients in a precision.
///
/// # Shapes
/// `x: [.., K]`, `weight: [K, M]`, `bias: [M]` -> `[.., M]`
#[must_use]
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    precision: MatmulPrecision,
) -> Tensor<D> {
    if flex::is_for(&x) {
        return fused::linear::linear(x, weight, bias, precision);
    }
    module::linear(x, weight, bias)
}
