//! The arithmetic of attention on queries, keys and values that are already projected.

use burn::tensor::{Bool, Device, Tensor, activation, assert_shape};

use super::dropout::{Dropout, dropout};
#[cfg(feature = "flex")]
use super::fused;
use super::{rms_norm, rotate};

/// Norms of each head's queries and keys.
///
/// Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters", section 2.
#[derive(Clone, Debug)]
pub struct QkNorm {
    /// Scale of the queries, `[D]`.
    pub q: Tensor<1>,
    /// Scale of the keys, `[D]`.
    pub k: Tensor<1>,
    /// What is added to the mean square.
    pub epsilon: f64,
}

/// What a causal self-attention does with a projection.
#[derive(Clone, Debug)]
pub struct SelfAttention {
    /// H, number of query heads.
    pub n_heads: usize,
    /// Hkv, number of key and value heads; divides H.
    pub n_kv_heads: usize,
    /// RMS norm of queries and keys.
    pub norm: Option<QkNorm>,
    /// Cosines and sines by which queries and keys are turned, each `[1, 1, T, D / 2]`.
    pub rotation: Option<[Tensor<4>; 2]>,
    /// Of the weights.
    pub dropout: Option<Dropout>,
}

/// Causal self-attention from the projection of queries, keys and values to what each head gathered.
///
/// Source: Vaswani et al. 2017, eq. 1 and section 3.2.3; grouped heads: Ainslie et al. 2023, "GQA".
///
/// # Shapes
/// `qkv: [B, T, (H + 2 Hkv) D]`, queries, then keys, then values -> `[B, T, H D]`
///
/// # Panics
/// On any other shape: a bug in the caller, never bad user input.
#[must_use]
pub fn self_attention(qkv: Tensor<3>, attention: SelfAttention) -> Tensor<3> {
    #[cfg(feature = "flex")]
    if fused::is_for(&qkv) {
        return fused::attention::self_attention(qkv, attention);
    }
    composed_self_attention(qkv, attention)
}

/// [`self_attention`] by burn's own operations.
pub(super) fn composed_self_attention(qkv: Tensor<3>, attention: SelfAttention) -> Tensor<3> {
    let SelfAttention {
        n_heads,
        n_kv_heads,
        norm,
        rotation,
        dropout,
    } = attention;
    let [mut q, mut k, v] = split_heads(qkv, n_heads, n_kv_heads);
    if let Some(norm) = norm {
        q = rms_norm(q, norm.q, norm.epsilon);
        k = rms_norm(k, norm.k, norm.epsilon);
    }
    if let Some([cos, sin]) = rotation {
        q = rotate(q, cos.clone(), sin.clone());
        k = rotate(k, cos, sin);
    }
    merge_heads(causal_attention(q, k, v, dropout))
}

/// Queries, keys and values of each head, out of their projection.
///
/// # Shapes
/// `qkv: [B, T, (H + 2 Hkv) D]` -> `[B, H, T, D]` and twice `[B, Hkv, T, D]`
#[must_use]
pub fn split_heads(qkv: Tensor<3>, n_heads: usize, n_kv_heads: usize) -> [Tensor<4>; 3] {
    let [b, t, width] = qkv.dims();
    let d = width / (n_heads + 2 * n_kv_heads);
    let part = |first: usize, n: usize| {
        let heads = qkv.clone().narrow(2, first * d, n * d);
        heads.reshape([b, t, n, d]).swap_dims(1, 2) // [B, n, T, D]
    };
    [
        part(0, n_heads),
        part(n_heads, n_kv_heads),
        part(n_heads + n_kv_heads, n_kv_heads),
    ]
}

/// The heads' vectors side by side.
///
/// # Shapes
/// `[B, H, T, D]` -> `[B, T, H D]`
#[must_use]
pub fn merge_heads(heads: Tensor<4>) -> Tensor<3> {
    let [b, h, t, d] = heads.dims();
    heads.swap_dims(1, 2).reshape([b, t, h * d])
}

/// How strongly every query attends to every key: `softmax(q k^T / sqrt(D))`.
///
/// `blocked` marks pairs that may not see each other. They are taken out before the softmax, so
/// that every row still sums to 1; a row in which everything is blocked is all zeros.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1.
///
/// # Shapes
/// `q: [B, H, T, D]`, `k: [B, H, S, D]`, `blocked: [B or 1, H or 1, T, S]` -> `[B, H, T, S]`
#[must_use]
pub fn attention_weights(
    q: Tensor<4>,
    k: Tensor<4>,
    blocked: Option<Tensor<4, Bool>>,
) -> Tensor<4> {
    let scores = scaled_scores(q, k); // [B, H, T, S]
    let Some(blocked) = blocked else {
        return activation::softmax(scores, 3);
    };
    let blocked = blocked.expand(scores.dims());
    // A finite floor instead of minus infinity: a row of nothing but minus infinities is 0/0.
    let scores = scores.mask_fill(blocked.clone(), f32::MIN / 2.0);
    activation::softmax(scores, 3).mask_fill(blocked, 0.0)
}

/// Lets every query gather values from the keys up to its own position.
///
/// Queries are the last T of the S positions, as in decoding with a cache: query `t` sees keys
/// `0..=S - T + t`. Heads of `q` share heads of `k` and `v` in groups of `H / Hkv`. `weights`
/// dropout takes away whole links between positions while training.
///
/// Source: Vaswani et al. 2017, eq. 1 and section 3.2.3; grouped heads: Ainslie et al. 2023, "GQA".
///
/// # Shapes
/// `q: [B, H, T, D]`, `k, v: [B, Hkv, S, D]` with S >= T -> `[B, H, T, D]`
///
/// # Panics
/// On any other shape: a bug in the caller, never bad user input.
#[must_use]
pub fn causal_attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    weights_dropout: Option<Dropout>,
) -> Tensor<4> {
    let [b, h, t, d] = q.dims();
    let [_, h_kv, s, _] = k.dims();
    assert!(
        s >= t && h % h_kv == 0,
        "{t} queries of {h} heads, {s} keys of {h_kv} heads"
    );
    assert_shape!(k, [b, h_kv, s, d]);
    assert_shape!(v, [b, h_kv, s, d]);
    let (k, v) = (repeat_kv(k, h), repeat_kv(v, h)); // each [B, H, S, D]
    let mut weights = causal_weights(q, k); // [B, H, T, S]
    if let Some(weights_dropout) = weights_dropout {
        weights = dropout(weights, weights_dropout);
    }
    weights.matmul(v) // [B, H, T, D]
}

/// How strongly every query attends to the keys up to its own position.
///
/// # Shapes
/// `q: [B, H, T, D]`, `k: [B, H, S, D]` with S >= T -> `[B, H, T, S]`
fn causal_weights(q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
    let mut scores = scaled_scores(q, k); // [B, H, T, S]
    let [_, _, t, s] = scores.dims();
    if t > 1 {
        // Adding minus infinity costs the backward pass nothing; filling by a mask costs it a pass.
        let bias = causal_bias(t, s, &scores.device());
        scores = scores + bias; // in place: nobody else holds the scores
    }
    activation::softmax(scores, 3)
}

/// Zero where query `t` of the last T positions may see key `s`, minus infinity in its future.
///
/// # Shapes
/// -> `[1, 1, T, S]`
#[must_use]
pub fn causal_bias(t: usize, s: usize, device: &Device) -> Tensor<4> {
    let past = s - t;
    let bias = (0..t).flat_map(|query| {
        (0..s).map(move |key| {
            if key <= past + query {
                0.0
            } else {
                f32::NEG_INFINITY
            }
        })
    });
    let bias = burn::tensor::TensorData::new(bias.collect::<Vec<f32>>(), [1, 1, t, s]);
    Tensor::from_data(bias, device)
}

/// Repeats each of the Hkv heads for the queries that share it: head `i` serves query heads
/// `i * H / Hkv .. (i + 1) * H / Hkv`.
///
/// # Shapes
/// `[B, Hkv, S, D]` -> `[B, H, S, D]`
#[must_use]
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

/// `q k^T / sqrt(D)`. The factor goes into the queries, which are fewer numbers than the scores.
fn scaled_scores(q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
    let [.., d] = q.dims();
    (q * scale(d)).matmul(k.swap_dims(2, 3)) // [B, H, T, S]
}

/// `1 / sqrt(D)`.
#[allow(
    clippy::cast_precision_loss,
    reason = "a head has far fewer than 2^52 dimensions"
)]
fn scale(head_dim: usize) -> f64 {
    1.0 / (head_dim as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Distribution;

    fn random(shape: [usize; 4]) -> Tensor<4> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
    }

    #[test]
    fn the_last_queries_see_their_past_and_themselves() {
        let bias: Vec<f32> = causal_bias(2, 4, &Device::flex())
            .into_data()
            .try_to_vec()
            .expect("f32");
        let seen: Vec<bool> = bias.iter().map(|b| *b == 0.0).collect();
        assert_eq!(seen, [true, true, true, false, true, true, true, true]);
    }

    #[test]
    fn a_row_with_nothing_to_see_is_zero_and_others_sum_to_one() {
        let device = Device::flex();
        let blocked =
            Tensor::<4, Bool>::from_data([[[[true, true, true], [true, false, false]]]], &device);
        let weights = attention_weights(random([1, 1, 2, 4]), random([1, 1, 3, 4]), Some(blocked));
        let rows: Vec<f32> = weights.sum_dim(3).into_data().try_to_vec().expect("f32");
        assert!(
            rows[0].abs() < 1e-7 && (rows[1] - 1.0).abs() < 1e-6,
            "{rows:?}"
        );
    }

    #[test]
    fn heads_share_keys_in_consecutive_groups() {
        let k = random([1, 2, 3, 4]);
        let repeated = repeat_kv(k.clone(), 4);
        for head in 0..4 {
            let (shared, own) = (
                k.clone().narrow(1, head / 2, 1),
                repeated.clone().narrow(1, head, 1),
            );
            assert_eq!(shared.into_data(), own.into_data());
        }
    }
}
