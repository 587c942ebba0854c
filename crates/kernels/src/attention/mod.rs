//! Attention on queries, keys and values that are already projected.

mod blocked;
pub(crate) mod decode;
pub(crate) mod heads;
mod scores;
mod train;

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Bool, DType, Device, Tensor, activation, assert_shape};

use blocked::MAX_SCORE_BYTES;
pub use blocked::{CausalAttention, causal_attention};

use crate::dropout::Dropout;
use crate::loss::capped;
use crate::memory::bytes;
use crate::positions::positions;
use crate::{Operations, TrainingMemory, flex, rms_norm};

/// The queries whose scores a CPU task holds at a time. With fewer, less of the masked future is computed in vain; with
/// more, products are larger.
const QUERIES: usize = 32;

/// The norms of each head's queries and keys.
///
/// Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters", section 2.
#[derive(Clone, Debug)]
pub struct QkNorm {
    /// Scale of the queries, `[D]`.
    pub q: Tensor<1>,
    /// Scale of the keys, `[D]`.
    pub k: Tensor<1>,
    /// The epsilon, which is added to the mean square.
    pub epsilon: f64,
}

/// The options of causal self-attention over a projection.
#[derive(Clone, Debug)]
pub struct SelfAttention {
    /// H, number of query heads.
    pub n_heads: usize,
    /// Hkv, number of key and value heads; divides H.
    pub n_kv_heads: usize,
    /// RMS norm of queries and keys.
    pub norm: Option<QkNorm>,
    /// Cosines and sines of the rotation of queries' and keys' first R dimensions, each `[1, 1, T, R / 2]`; with packed
    /// sequences, for the positions of the longest one.
    pub rotation: Option<[Tensor<4>; 2]>,
    /// Multiplies the scores; positive, usually [`attention_scale`].
    pub scale: f64,
    /// The cap of scores: see [`softcap`](crate::softcap).
    pub softcap: Option<f64>,
    /// The sliding window: how many keys a query sees, including its own; `None` for all up to its own.
    pub window: Option<usize>,
    /// Dropout of the weights.
    pub dropout: Option<Dropout>,
    /// The lengths of packed sequences, which follow each other in the only row (`FlashAttention`'s variable lengths).
    /// Each attends to itself only, and its positions begin at 0. `None` if each row is a sequence.
    pub lengths: Option<Arc<[usize]>>,
}

/// The ranges of packed sequences with these lengths.
fn sequences(lengths: &[usize]) -> impl Iterator<Item = Range<usize>> {
    lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end - length..*end)
    })
}

/// Causal self-attention, from the fused projection of queries, keys and values to the outputs of the heads.
///
/// Source: Vaswani et al. 2017, eq. 1 and section 3.2.3; grouped heads: Ainslie et al. 2023, "GQA"; window: Beltagy et
/// al. 2020, "Longformer", section 3.1.
///
/// # Shapes
/// `qkv: [B, T, (H + 2 Hkv) D]`, queries, then keys, then values -> `[B, T, H D]`
///
/// # Panics
/// On any other shape: a bug in the caller, never bad user input.
pub fn self_attention(qkv: Tensor<3>, attention: SelfAttention) -> Tensor<3> {
    if flex::is_for(&qkv) {
        return train::self_attention(qkv, attention);
    }
    self_attention_by(causal_attention, qkv, attention)
}

/// The shape of a [`self_attention`] in training.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// B rows of T positions.
    pub rows: [usize; 2],
    /// H, number of query heads.
    pub n_heads: usize,
    /// Hkv, number of key and value heads.
    pub n_kv_heads: usize,
    /// D, width of a head.
    pub head_dim: usize,
    /// Whether the queries and keys of each head are normalized.
    pub qk_norm: bool,
    /// Whether scores are capped.
    pub softcap: bool,
}

/// The memory of [`self_attention`] in training, without attention weights.
pub fn training_memory(operations: Operations, shape: AttentionShape) -> TrainingMemory {
    let AttentionShape { rows: [b, t], n_heads, n_kv_heads, head_dim, qk_norm, softcap: _ } = shape;
    let [q, kv] = [n_heads, n_kv_heads].map(|n| bytes([b, t, n, head_dim]));
    let lse = bytes([b, n_heads, t]);
    let saved = match operations {
        // The output, and the log-sum-exp of each row of the weights.
        Operations::Fused => q + lse,
        // Queries, keys and values, which norms save once more, the output by head and concatenated, and the maximum
        // and the sum of each row of the weights.
        Operations::Composed => {
            let norms = if qk_norm { q + kv } else { 0.0 };
            3.0 * q + 2.0 * kv + 2.0 * lse + norms
        }
    };
    TrainingMemory { saved, temporary: 2.0 * (q + kv) } // the gradients of the output and of the projection
}

/// The attention weights that the backward pass of [`self_attention`] holds: those of a block of queries, their
/// gradient, that of the scores, the weights after dropout, and the slope of the cap. None are saved.
pub fn weights_memory(operations: Operations, shape: AttentionShape, has_dropout: bool) -> f64 {
    let AttentionShape { rows: [b, t], n_heads, softcap, .. } = shape;
    match operations {
        Operations::Fused => 0.0, // in the cache of a core
        Operations::Composed => {
            let n = 3.0 + f64::from(u8::from(has_dropout)) + f64::from(u8::from(softcap));
            n * bytes([b, n_heads, t, t]).min(MAX_SCORE_BYTES as f64)
        }
    }
}

/// The reference for [`self_attention`]: computes all weights, and burn differentiates it.
#[cfg(test)]
pub(crate) fn composed_self_attention(qkv: Tensor<3>, attention: SelfAttention) -> Tensor<3> {
    self_attention_by(explicit_causal_attention, qkv, attention)
}

/// The reference for [`causal_attention`], which computes all weights.
#[cfg(test)]
fn explicit_causal_attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, attention: CausalAttention) -> Tensor<4> {
    let CausalAttention { scale, softcap, window, dropout } = attention;
    let ([_, h, t, _], [_, _, s, _]) = (q.dims(), k.dims());
    let (k, v) = (repeat_kv(k, h), repeat_kv(v, h)); // each [B, H, S, D]
    let unseen = unseen(s - t..s, s, window, &q.device());
    let mut weights = attention_weights(q, k, Some(unseen), scale, softcap); // [B, H, T, S]
    if let Some(dropout) = dropout {
        weights = crate::dropout(weights, dropout);
    }
    weights.matmul(v) // [B, H, T, D]
}

/// [`self_attention`] with the given causal attention.
fn self_attention_by(
    causal_attention: fn(Tensor<4>, Tensor<4>, Tensor<4>, CausalAttention) -> Tensor<4>,
    qkv: Tensor<3>,
    attention: SelfAttention,
) -> Tensor<3> {
    if let Some(lengths) = &attention.lengths {
        let alone = sequences(lengths).map(|Range { start, end }| {
            let n = end - start;
            let narrow = |angles: &Tensor<4>| angles.clone().narrow(2, 0, n);
            let rotation = attention.rotation.as_ref().map(|angles| angles.each_ref().map(narrow));
            let attention = SelfAttention { rotation, lengths: None, ..attention.clone() };
            self_attention_by(causal_attention, qkv.clone().narrow(1, start, n), attention)
        });
        return Tensor::cat(alone.collect(), 1);
    }
    let SelfAttention { n_heads, n_kv_heads, norm, rotation, scale, softcap, window, dropout, .. } = attention;
    let [mut q, mut k, v] = split_heads(qkv, n_heads, n_kv_heads);
    if let Some(norm) = norm {
        q = rms_norm(q, norm.q, norm.epsilon);
        k = rms_norm(k, norm.k, norm.epsilon);
    }
    if let Some([cos, sin]) = rotation {
        q = rotate(q, cos.clone(), sin.clone());
        k = rotate(k, cos, sin);
    }
    merge_heads(causal_attention(q, k, v, CausalAttention { scale, softcap, window, dropout }))
}

/// Rotary position embedding (`RoPE`): rotates the pairs `(i, i + R / 2)` of each vector's first R dimensions by
/// angles. Dimensions beyond R stay unchanged.
///
/// Source: Su et al. 2021, "RoFormer", eq. 34, with halves in place of adjacent pairs; partial rotation: Black et al.
/// 2022, "GPT-NeoX-20B", section 2.1.1.
///
/// # Shapes
/// `x: [B, H, T, D]`, `cos, sin: [1, 1, T, R / 2]` -> `[B, H, T, D]`
///
/// # Panics
/// If the angles are not for T positions, or D is less than R.
pub fn rotate(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let [.., t, half] = cos.dims();
    let [.., d] = x.dims();
    assert_shape!(x, [_, _, t, d]);
    let (a, b) = (x.clone().narrow(3, 0, half), x.clone().narrow(3, half, half)); // each [B, H, T, R / 2]
    let first = a.clone() * cos.clone() - b.clone() * sin.clone();
    let second = b * cos + a * sin;
    let rest = (d > 2 * half).then(|| x.narrow(3, 2 * half, d - 2 * half)); // [B, H, T, D - R]
    Tensor::cat([first, second].into_iter().chain(rest).collect(), 3) // [B, H, T, D]
}

/// Splits a projection into queries, keys and values of each head.
///
/// # Shapes
/// `qkv: [B, T, (H + 2 Hkv) D]` -> `[B, H, T, D]` and twice `[B, Hkv, T, D]`
pub fn split_heads(qkv: Tensor<3>, n_heads: usize, n_kv_heads: usize) -> [Tensor<4>; 3] {
    let [b, t, width] = qkv.dims();
    let d = width / (n_heads + 2 * n_kv_heads);
    let part = |first: usize, n: usize| {
        let heads = qkv.clone().narrow(2, first * d, n * d);
        heads.reshape([b, t, n, d]).swap_dims(1, 2) // [B, n, T, D]
    };
    [part(0, n_heads), part(n_heads, n_kv_heads), part(n_heads + n_kv_heads, n_kv_heads)]
}

/// Concatenates the vectors of the heads.
///
/// # Shapes
/// `[B, H, T, D]` -> `[B, T, H D]`
pub fn merge_heads(heads: Tensor<4>) -> Tensor<3> {
    let [b, h, t, d] = heads.dims();
    heads.swap_dims(1, 2).reshape([b, t, h * d])
}

/// The score of a masked pair. It is finite, since a softmax of only minus infinities is 0/0.
const BLOCKED: f32 = f32::MIN / 2.0;

/// The usual factor of scores, `1 / sqrt(D)`.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
pub fn attention_scale(head_dim: usize) -> f64 {
    1.0 / (head_dim as f64).sqrt()
}

/// The attention weights of every query and key: `softmax(q k^T scale)`, with `scale` usually [`attention_scale`], and
/// with scores capped if there is a cap.
///
/// `blocked` is true for masked pairs. They are masked before the softmax, so that every row still sums to 1; a row in
/// which all pairs are masked is all zeros.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1.
///
/// # Shapes
/// `q: [B, H, T, D]`, `k: [B, H, S, D]`, `blocked: [B or 1, H or 1, T, S]` -> `[B, H, T, S]`
pub fn attention_weights(
    q: Tensor<4>,
    k: Tensor<4>,
    blocked: Option<Tensor<4, Bool>>,
    scale: f64,
    softcap: Option<f64>,
) -> Tensor<4> {
    // Queries are fewer scalars than scores.
    let scores = capped((q * scale).matmul(k.swap_dims(2, 3)), softcap); // [B, H, T, S]
    let Some(blocked) = blocked else { return activation::softmax(scores, 3) };
    let blocked = blocked.expand(scores.dims());
    let scores = scores.mask_fill(blocked.clone(), BLOCKED);
    activation::softmax(scores, 3).mask_fill(blocked, 0.0)
}

/// The causal mask: true where a query does not see a key, because the key is in its future or before its window. The
/// queries are at the given positions, the keys count from 0.
///
/// It is computed on the device from short vectors, which stay there.
///
/// # Shapes
/// -> `[1, 1, T, S]`
pub fn unseen(queries: Range<usize>, n_keys: usize, window: Option<usize>, device: &Device) -> Tensor<4, Bool> {
    let positions = |range, shape: [usize; 4]| positions(range, DType::I32, device).reshape(shape);
    let t = queries.len();
    let (keys, queries) = (positions(0..n_keys, [1, 1, 1, n_keys]), positions(queries, [1, 1, t, 1]));
    let future = keys.clone().greater(queries.clone());
    match window.filter(|window| *window < n_keys) {
        None => future,
        Some(window) => {
            let window = i64::try_from(window).expect("fewer than 2^31 positions");
            future.bool_or((keys + window).lower_equal(queries))
        }
    }
}

/// The range of positions that the query at a position sees.
fn visible(position: usize, window: Option<usize>) -> Range<usize> {
    let end = position + 1;
    window.map_or(0, |window| end.saturating_sub(window))..end
}

/// Repeats each of the Hkv heads for the query heads that share it: head `i` for query heads
/// `i * H / Hkv .. (i + 1) * H / Hkv`.
///
/// # Shapes
/// `[B, Hkv, S, D]` -> `[B, H, S, D]`
pub fn repeat_kv(x: Tensor<4>, n_heads: usize) -> Tensor<4> {
    let [b, h_kv, s, d] = x.dims();
    if h_kv == n_heads {
        return x;
    }
    let group = n_heads / h_kv;
    x.reshape([b, h_kv, 1, s, d]) // [B, Hkv, 1, S, D]
        .expand([b, h_kv, group, s, d]) // [B, Hkv, G, S, D]
        .reshape([b, n_heads, s, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::constant;

    #[test]
    fn fully_masked_rows_are_zero() {
        let blocked = [[[[true, true, true], [true, false, false]]]];
        let blocked = Tensor::<4, Bool>::from_data(blocked, &Device::flex().autodiff());
        let weights = attention_weights(constant([1, 1, 2, 4], 1), constant([1, 1, 3, 4], 2), Some(blocked), 0.5, None);
        let rows: Vec<f32> = weights.sum_dim(3).into_data().try_to_vec().expect("f32");
        assert!(rows[0].abs() < 1e-7 && (rows[1] - 1.0).abs() < 1e-6, "{rows:?}");
    }
}
