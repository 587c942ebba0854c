//! Scaled dot-product attention by itself, with its weights in the open.

use burn::tensor::{Bool, Device, Tensor, assert_shape};

use tinderbox_kernels as kernels;

/// Attention of any number of queries over any number of keys: the gathered values and the weights.
///
/// `mask` is true where a query may *not* see a key; it is applied before the softmax, so that each
/// row of weights still sums to 1. Queries and keys share their last dimension, values may have another.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1.
///
/// # Shapes
/// `q: [B, H, T, D]`, `k: [B, H, S, D]`, `v: [B, H, S, Dv]`, `mask: [B or 1, H or 1, T, S]` ->
/// output `[B, H, T, Dv]`, weights `[B, H, T, S]`
///
/// # Panics
/// On any other shape: a bug in the caller, never bad user input.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use tinderbox::model::attention::scaled_dot_product_attention;
///
/// let device = Device::flex();
/// let q = Tensor::from_floats([[[[3.0, 1.0]]]], &device);
/// let k = Tensor::from_floats([[[[3.0, 1.0], [1.0, 4.0], [1.5, 0.5]]]], &device);
/// let v = Tensor::from_floats([[[[2.0, 1.5], [0.5, 0.3], [-0.5, 1.2]]]], &device);
/// let (context, weights) = scaled_dot_product_attention(q, k, v, None);
/// println!("{weights} {context}"); // 0.870310, 0.104327, 0.025364 -> 1.780101, 1.367199
/// ```
#[must_use]
pub fn scaled_dot_product_attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    mask: Option<Tensor<4, Bool>>,
) -> (Tensor<4>, Tensor<4>) {
    let [b, h, _, d] = q.dims();
    let [_, _, s, _] = k.dims();
    assert_shape!(k, [b, h, s, d]);
    assert_shape!(v, [b, h, s, _]);
    let weights = kernels::attention_weights(q, k, mask); // [B, H, T, S]
    (weights.clone().matmul(v), weights) // [B, H, T, Dv]
}

/// True where query `t`, one of the last T of S positions, would look into its future.
///
/// # Shapes
/// -> `[1, 1, T, S]`
///
/// # Panics
/// If there are more queries than keys.
#[must_use]
pub fn causal_mask(t: usize, s: usize, device: &Device) -> Tensor<4, Bool> {
    assert!(t <= s, "{t} queries cannot be the last of {s} positions");
    kernels::future(s - t..s, s, device)
}
