//! Pointwise non-linearities of the feed-forward layer.

use burn::tensor::{Tensor, activation};

/// The Gaussian error linear unit in its exact form, `x * Phi(x)`.
///
/// Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2.
#[must_use]
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    // Composed by hand: burn 0.22 differentiates the tanh approximation of what it computes exactly, so that
    // gradients are off by up to 7e-4 of the largest.
    x.clone() * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5
}

/// The sigmoid linear unit, `x * sigmoid(x)`: the gate of `SwiGLU`.
///
/// Source: Shazeer 2020, "GLU Variants Improve Transformer", section 2 (Swish with beta = 1).
#[must_use]
pub fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    activation::silu(x)
}

/// The squared rectifier, `max(x, 0)^2`.
///
/// Source: So et al. 2021, "Primer: Searching for Efficient Transformers", section 4.
#[must_use]
pub fn relu_squared<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let positive = activation::relu(x);
    positive.clone() * positive
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn values(f: impl Fn(Tensor<1>) -> Tensor<1>, x: &[f32]) -> Vec<f32> {
        let x = Tensor::<1>::from_floats(x, &Device::flex());
        f(x).into_data().try_to_vec().expect("f32 on flex")
    }

    #[test]
    fn activations_take_their_known_values() {
        let x = [-2.0, -1.0, 0.0, 1.0, 2.0];
        // Phi(1) = 0.841345, Phi(2) = 0.977250; sigmoid(1) = 0.731059, sigmoid(2) = 0.880797.
        let expected = [
            values(gelu, &x).into_iter().zip([-0.045_5, -0.158_655, 0.0, 0.841_345, 1.954_5]),
            values(silu, &x).into_iter().zip([-0.238_406, -0.268_941, 0.0, 0.731_059, 1.761_594]),
            values(relu_squared, &x).into_iter().zip([0.0, 0.0, 0.0, 1.0, 4.0]),
        ];
        for (got, want) in expected.into_iter().flatten() {
            assert!((got - want).abs() < 1e-5, "{got} is not {want}");
        }
    }
}
