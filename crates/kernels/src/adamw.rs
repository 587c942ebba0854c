//! The update of `AdamW`.

use burn::tensor::Tensor;

#[cfg(feature = "flex")]
use super::fused;

/// What one update of a parameter multiplies with and adds.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// What is kept of the running means of gradients and of their squares.
    pub betas: [f64; 2],
    /// The learning rate, over what the first mean's start at zero left of it.
    pub step_size: f64,
    /// One over the square root of what the second mean's start at zero left of it.
    pub second_scale: f64,
    /// What is added to the root of the second mean.
    pub epsilon: f64,
    /// The share of the weights that is taken away.
    pub decay: f64,
}

/// New weights and running means from a gradient, which is multiplied with `factor` first. No `means` are zeros.
///
/// With `g` the gradient: `m = beta_1 m + (1 - beta_1) g`, `v = beta_2 v + (1 - beta_2) g^2`, and
/// `w = (1 - decay) w - step_size m / (second_scale sqrt(v) + epsilon)`.
///
/// Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
///
/// # Shapes
/// `weights, gradient: [n]`, `factor: [1]`, means each `[n]` -> `[n]`, and each `[n]`
#[must_use]
pub fn adamw(
    weights: Tensor<1>,
    gradient: Tensor<1>,
    factor: Option<Tensor<1>>,
    means: Option<[Tensor<1>; 2]>,
    update: AdamW,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    #[cfg(feature = "flex")]
    if fused::is_for(&weights) {
        return fused::update::adamw(weights, gradient, factor, means, update);
    }
    composed_adamw(weights, gradient, factor, means, update)
}

/// [`adamw`] by burn's own operations.
pub(super) fn composed_adamw(
    weights: Tensor<1>,
    gradient: Tensor<1>,
    factor: Option<Tensor<1>>,
    means: Option<[Tensor<1>; 2]>,
    update: AdamW,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    let AdamW { betas: [beta_1, beta_2], step_size, second_scale, epsilon, decay } = update;
    let gradient = match factor {
        Some(factor) => gradient * factor,
        None => gradient,
    };
    let first = gradient.clone() * (1.0 - beta_1);
    let second = gradient.clone() * gradient * (1.0 - beta_2);
    let (first, second) = match means {
        Some([old_first, old_second]) => (old_first * beta_1 + first, old_second * beta_2 + second),
        None => (first, second),
    };
    let size = second.clone().sqrt() * second_scale + epsilon;
    let change = first.clone() / size * step_size;
    (weights * (1.0 - decay) - change, [first, second])
}
