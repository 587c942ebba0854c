//! The iteration that brings singular values together.

use burn::tensor::Tensor;

use super::MatmulPrecision;
use crate::{flex, fused};

/// So many steps of `x <- a x + (b G + c G^2) x` with `G = x x^T`: the polynomial `a s + b s^3 + c s^5` of every singular
/// value, which singular vectors do not notice.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>.
///
/// # Shapes
/// `x: [m, n]` -> `[m, n]`; products are square in m.
#[must_use]
pub fn newton_schulz(x: Tensor<2>, coefficients: [f64; 3], steps: usize, precision: MatmulPrecision) -> Tensor<2> {
    if flex::is_for(&x) {
        return fused::newton_schulz::newton_schulz(x, coefficients, steps, precision);
    }
    composed_newton_schulz(x, coefficients, steps)
}

/// [`newton_schulz`] by burn's own operations.
pub(super) fn composed_newton_schulz(mut x: Tensor<2>, [a, b, c]: [f64; 3], steps: usize) -> Tensor<2> {
    for _ in 0..steps {
        let gram = x.clone().matmul(x.clone().transpose()); // [m, m]
        let polynomial = gram.clone() * b + gram.clone().matmul(gram) * c;
        x = x.clone() * a + polynomial.matmul(x);
    }
    x
}
