//! The plain formula of attention, which also returns the weights.

use burn::tensor::{Bool, Device, Tensor, assert_shape};

use tinderbox_kernels as kernels;

/// Scaled dot-product attention of T queries over S keys. Returns the weighted sums of the values, and the weights.
///
/// `mask` is true where a query must *not* see a key. It is applied before the softmax, so that each row of weights
/// still sums to 1. Queries and keys have the same last dimension; the values may have a different one.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1.
///
/// # Shapes
/// `q: [B, H, T, D]`, `k: [B, H, S, D]`, `v: [B, H, S, Dv]`, `mask: [B or 1, H or 1, T, S]` ->
/// output `[B, H, T, Dv]`, weights `[B, H, T, S]`
///
/// # Panics
/// On any other shapes, which are a bug in the caller and never bad user input.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use tinderbox_model::attention::scaled_dot_product_attention;
///
/// let device = Device::flex();
/// let q = Tensor::from_floats([[[[3.0, 1.0]]]], &device);
/// let k = Tensor::from_floats([[[[3.0, 1.0], [1.0, 4.0], [1.5, 0.5]]]], &device);
/// let v = Tensor::from_floats([[[[2.0, 1.5], [0.5, 0.3], [-0.5, 1.2]]]], &device);
/// let (context, weights) = scaled_dot_product_attention(q, k, v, None);
/// println!("{weights} {context}"); // 0.870310, 0.104327, 0.025364 -> 1.780101, 1.367199
/// ```
pub fn scaled_dot_product_attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    mask: Option<Tensor<4, Bool>>,
) -> (Tensor<4>, Tensor<4>) {
    let [.., d] = q.dims();
    attention_with(q, k, v, mask, kernels::attention_scale(d), None)
}

/// [`scaled_dot_product_attention`] with a given `scale` instead of `1 / sqrt(D)`, and a cap of scores.
pub(super) fn attention_with(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    mask: Option<Tensor<4, Bool>>,
    scale: f64,
    softcap: Option<f64>,
) -> (Tensor<4>, Tensor<4>) {
    let [b, h, _, d] = q.dims();
    let [_, _, s, _] = k.dims();
    assert_shape!(k, [b, h, s, d]);
    assert_shape!(v, [b, h, s, _]);
    let weights = kernels::attention_weights(q, k, mask, scale, softcap); // [B, H, T, S]
    (weights.clone().matmul(v), weights) // [B, H, T, Dv]
}

/// The causal mask for queries at the last T of S positions: true for every key after the query's position.
///
/// # Shapes
/// -> `[1, 1, T, S]`
///
/// # Panics
/// If there are more queries than keys.
pub fn causal_mask(t: usize, s: usize, device: &Device) -> Tensor<4, Bool> {
    assert!(t <= s, "{t} queries cannot be the last of {s} positions");
    kernels::unseen(s - t..s, s, None, device)
}
