//! Attention step by step: one function for each step from queries and keys to weights.
//!
//! [`scaled_dot_product_attention`](super::scaled_dot_product_attention) does all steps at once. These functions show
//! the intermediate results and serve as building blocks for other kinds of attention: unscaled, masked differently, or
//! without learned projections. They take tensors of any rank, including plain matrices.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use tinderbox_model::attention::steps;
//!
//! let device = Device::flex();
//! let q = Tensor::<2>::from_floats([[3.0, 1.0]], &device);
//! let k = Tensor::<2>::from_floats([[3.0, 1.0], [1.0, 4.0], [1.5, 0.5]], &device);
//! let scores = steps::scores(q, k); // 10, 7, 5
//! let scaled = steps::scaled(scores, 2); // 7.071068, 4.949748, 3.535534
//! let weights = steps::weights(scaled); // 0.870310, 0.104327, 0.025364
//! assert_eq!(weights.dims(), [1, 3]);
//! ```

use burn::tensor::{Bool, Tensor, activation};

/// The attention scores, which measure how well each query matches each key: the dot products `q k^T`.
///
/// A dot product grows with the length of both vectors, not only with the agreement of their directions. For random
/// vectors of D numbers with a standard deviation of 1, the dot product has a standard deviation of `sqrt(D)`.
///
/// # Shapes
/// `q: [.., T, D]`, `k: [.., S, D]` -> `[.., T, S]`
pub fn scores<const N: usize>(q: Tensor<N>, k: Tensor<N>) -> Tensor<N> {
    q.matmul(k.transpose())
}

/// The scores divided by `sqrt(head_dim)`, so that their spread does not depend on the dimension.
///
/// `head_dim` is D, the length of a query and of a key. The order of the scores and their ratios stay the same; their
/// differences, on which the softmax depends, shrink.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
pub fn scaled<const N: usize>(scores: Tensor<N>, head_dim: usize) -> Tensor<N> {
    let root = (head_dim as f64).sqrt();
    scores / root
}

/// The scores with minus infinity wherever `blocked` is true, which means that the query must not see that key.
///
/// Apply the mask before [`weights`]. If weights were set to zero afterwards, they would no longer sum to 1, and the
/// remaining weights would still depend on the masked keys.
///
/// # Shapes
/// `scores: [.., T, S]`, `blocked`: the same shape, or 1 in a dimension along which it is broadcast -> `[.., T, S]`
pub fn masked<const N: usize>(scores: Tensor<N>, blocked: Tensor<N, Bool>) -> Tensor<N> {
    let blocked = blocked.expand(scores.dims());
    scores.mask_fill(blocked, f32::NEG_INFINITY)
}

/// The attention weights, which say how strongly each query attends to each key: the softmax of each row of scores.
/// Each row sums to 1.
///
/// A score of minus infinity gets a weight of exactly 0, and a row of only minus infinities becomes all zeros.
///
/// # Shapes
/// `[.., T, S]` -> `[.., T, S]`
pub fn weights<const N: usize>(scores: Tensor<N>) -> Tensor<N> {
    let blocked = scores.clone().equal_elem(f32::NEG_INFINITY);
    // Clamp to a finite floor, since the softmax of a row of only minus infinities is 0/0.
    let scores = scores.clamp_min(f32::MIN / 2.0);
    activation::softmax(scores, N - 1).mask_fill(blocked, 0.0)
}

/// Self-attention without parameters: the input vectors serve directly as queries, keys and values, unscaled.
///
/// Each vector becomes a weighted mean of all vectors, in which similar vectors have the largest weights:
/// `softmax(x x^T) x`. The projections of [`MultiHeadAttention`](super::MultiHeadAttention) make this learnable.
///
/// # Shapes
/// `x: [.., T, C]` -> context `[.., T, C]`, weights `[.., T, T]`
pub fn parameter_free_self_attention<const N: usize>(x: Tensor<N>) -> (Tensor<N>, Tensor<N>) {
    let weights = weights(scores(x.clone(), x.clone())); // [.., T, T]
    (weights.clone().matmul(x), weights) // [.., T, C]
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, Tolerance};

    use super::*;
    use crate::attention::scaled_dot_product_attention;

    #[test]
    fn steps_equal_scaled_dot_product_attention() {
        let device = Device::flex();
        let random = |n: usize, d: usize| Tensor::<4>::random([2, 3, n, d], Distribution::Normal(0.0, 2.0), &device);
        let (q, k, v) = (random(3, 5), random(4, 5), random(4, 6));
        let (o, x) = (false, true);
        // The mask is the same for every head; the last query sees no key.
        let blocked: Tensor<4, Bool> = Tensor::from_data([[[[o, o, x, o], [x, o, x, x], [x, x, x, x]]]], &device);
        for blocked in [None, Some(blocked)] {
            let whole = scaled_dot_product_attention(q.clone(), k.clone(), v.clone(), blocked.clone());
            let mut scores = scaled(scores(q.clone(), k.clone()), 5);
            if let Some(blocked) = blocked {
                scores = masked(scores, blocked);
            }
            let weights = weights(scores);
            let same = |ours: Tensor<4>, theirs: Tensor<4>| {
                let tolerance = Tolerance::<f32>::absolute(1e-5);
                ours.into_data().assert_approx_eq(&theirs.into_data(), tolerance);
            };
            same(weights.clone().matmul(v.clone()), whole.0);
            same(weights, whole.1);
        }
    }
}
