//! Causal attention with memory linear in T, from burn's own operations, on any backend.
//!
//! Queries are processed in blocks, and only the scores of one block, with the keys up to its last query, are in memory
//! at a time. The forward pass saves the maximum and the sum of each row's softmax, from which the backward pass
//! recomputes the weights. At usual sizes one block or a few contain all queries, so that a GPU has no more to do than
//! with attention that saves its weights.
//!
//! Source: Dao et al. 2022, "`FlashAttention`", algorithms 1 and 4, with whole rows instead of blocks of keys.

use std::ops::Range;

use burn::backend::DispatchTensor;
use burn::tensor::{Tensor, assert_shape};

use super::{BLOCKED, unseen, visible};
use crate::dropout::{Dropout, Mask};
use crate::loss::capped;
use crate::op::{Operation, Wanted, apply};

/// The most bytes of scores in one block: the largest buffer that every WebGPU device can bind.
pub(super) const MAX_SCORE_BYTES: usize = 128 * 1024 * 1024;

/// Blocks have a multiple of this many queries if possible, because products of whole tiles are fastest.
const TILE: usize = 32;

/// The most queries in a block with a sliding window, or the length of the window if that is more, since a block also
/// reads that many earlier keys.
const WINDOWED: usize = 256;

/// The options of causal attention.
#[derive(Clone, Copy, Debug)]
pub struct CausalAttention {
    /// Multiplies the scores; positive, usually [`attention_scale`](crate::attention_scale).
    pub scale: f64,
    /// The cap of scores: see [`softcap`](crate::softcap).
    pub softcap: Option<f64>,
    /// The sliding window: how many keys a query sees, including its own; `None` for all up to its own.
    pub window: Option<usize>,
    /// Dropout of the weights, which removes whole connections between positions in training.
    pub dropout: Option<Dropout>,
}

/// Causal attention: each query attends to the keys up to its own position.
///
/// Queries are the last T of the S positions, as in decoding with a cache: query `t` sees keys `0..=S - T + t`, or the
/// last of these with a window. Heads of `q` share heads of `k` and `v` in groups of `H / Hkv`.
///
/// Neither pass allocates a tensor `[B, H, T, S]` of more than 128 MiB, and none is saved between them.
///
/// Source: Vaswani et al. 2017, eq. 1 and section 3.2.3; grouped heads: Ainslie et al. 2023, "GQA".
///
/// # Shapes
/// `q: [B, H, T, D]`, `k, v: [B, Hkv, S, D]` with S >= T -> `[B, H, T, D]`
///
/// # Panics
/// On any other shape: a bug in the caller, never bad user input.
pub fn causal_attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, attention: CausalAttention) -> Tensor<4> {
    causal_attention_in_blocks(q, k, v, attention, MAX_SCORE_BYTES)
}

/// [`causal_attention`] with at most this many bytes of scores at a time, but those of at least one query.
fn causal_attention_in_blocks(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    attention: CausalAttention,
    max_bytes: usize,
) -> Tensor<4> {
    let [b, h, t, d] = q.dims();
    let [_, h_kv, s, _] = k.dims();
    assert!(s >= t && h % h_kv == 0, "{t} queries of {h} heads, {s} keys of {h_kv} heads");
    assert_shape!(k, [b, h_kv, s, d]);
    assert_shape!(v, [b, h_kv, s, d]);
    let operation = InBlocks { attention, max_bytes };
    Tensor::from_dispatch(apply([q, k, v].map(Tensor::into_dispatch).into(), operation))
}

/// Inputs: queries `[B, H, T, D]`, keys and values `[B, Hkv, S, D]`.
#[derive(Debug)]
struct InBlocks {
    attention: CausalAttention,
    max_bytes: usize,
}

impl Operation for InBlocks {
    fn forward(&self, inputs: Vec<DispatchTensor>, wanted: Wanted) -> (DispatchTensor, Vec<DispatchTensor>) {
        let [q, k, v] = tensors(inputs);
        let sizes = sizes(&q, &k);
        let (mut out, mut maxima, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for block in self.blocks(sizes) {
            let scores = self.masked(&block, self.scores(&block, &q, &k)); // [B, H, R, S]
            let max = scores.clone().max_dim(3); // [B, H, R, 1]
            let mut weights = (scores - max.clone()).exp();
            let sum = weights.clone().sum_dim(3); // [B, H, R, 1]
            if let Some(mask) = self.mask(sizes, &block, &q) {
                weights = mask.apply(weights);
            }
            out.push(product(weights, narrow(&v, &block.keys)) / sum.clone()); // [B, H, R, D]
            if wanted.any() {
                maxima.push(max);
                sums.push(sum);
            }
        }
        let out = joined(out); // [B, H, T, D]
        let saved = if wanted.any() { vec![q, k, v, out.clone(), joined(maxima), joined(sums)] } else { Vec::new() };
        let saved = saved.into_iter().map(Tensor::into_dispatch).collect();
        (out.into_dispatch(), saved)
    }

    fn backward(&self, saved: Vec<DispatchTensor>, gradient: DispatchTensor, _: Wanted) -> Vec<Option<DispatchTensor>> {
        let [q, k, v, out, maxima, sums] = tensors(saved);
        let grad_out = Tensor::<4>::from_dispatch(gradient); // [B, H, T, D]
        let delta = (out * grad_out.clone()).sum_dim(3); // [B, H, T, 1]
        let sizes = sizes(&q, &k);
        let [_, _, h_kv, _, s, _] = sizes;
        let scale = self.attention.scale;
        let mut grad_q = Vec::new();
        let [mut grad_k, mut grad_v] = [None, None];
        // Begins with the last block, which without a window sees all keys; the others see a part of them.
        for block in self.blocks(sizes).into_iter().rev() {
            let [max, sum, delta, grad_out] = [&maxima, &sums, &delta, &grad_out].map(|x| narrow(x, &block.queries));
            let scores = self.scores(&block, &q, &k); // [B, H, R, S]
            let slope = self.attention.softcap.map(|cap| {
                let share = scores.clone() / cap;
                (share.clone() * share).neg() + 1.0
            });
            let mut weights = (self.masked(&block, scores) - max).exp() / sum; // [B, H, R, S]
            let mut grad_weights = product(grad_out.clone(), narrow(&v, &block.keys).swap_dims(2, 3));
            let mask = self.mask(sizes, &block, &q);
            if let Some(mask) = &mask {
                grad_weights = mask.apply(grad_weights);
            }
            let mut grad_scores = weights.clone() * (grad_weights - delta); // [B, H, R, S]
            if let Some(slope) = slope {
                grad_scores = grad_scores * slope;
            }
            if let Some(mask) = &mask {
                weights = mask.apply(weights);
            }
            grad_v = Some(sum_of(grad_v, transposed_product(weights, grad_out, h_kv), &block.keys, s));
            grad_q.push(product(grad_scores.clone(), narrow(&k, &block.keys)) * scale);
            let q = narrow(&q, &block.queries) * scale;
            grad_k = Some(sum_of(grad_k, transposed_product(grad_scores, q, h_kv), &block.keys, s));
        }
        grad_q.reverse();
        [Some(joined(grad_q)), grad_k, grad_v].map(|part| part.map(Tensor::into_dispatch)).into()
    }
}

impl InBlocks {
    /// All queries, in blocks of about the same size, each with at most this many bytes of scores.
    fn blocks(&self, [b, h, _, t, s, _]: Sizes) -> Vec<QueryBlock> {
        let window = self.attention.window;
        let fitting = (self.max_bytes / (b * h * s * size_of::<f32>())).clamp(1, t);
        let fitting = window.map_or(fitting, |window| fitting.min(window.max(WINDOWED)));
        let n_blocks = t.div_ceil(fitting);
        let n_queries = t.div_ceil(n_blocks).next_multiple_of(TILE).min(fitting);
        let blocks = (0..t).step_by(n_queries).map(|first| {
            let queries = first..(first + n_queries).min(t);
            QueryBlock { keys: visible(s - t + first, window).start..s - t + queries.end, queries }
        });
        blocks.collect()
    }

    /// The scores of a block's queries with each key that one of them sees, capped if there is a cap: `[B, H, R, S]`.
    fn scores(&self, block: &QueryBlock, q: &Tensor<4>, k: &Tensor<4>) -> Tensor<4> {
        let q = narrow(q, &block.queries) * self.attention.scale; // fewer scalars than the scores
        capped(product(q, narrow(k, &block.keys).swap_dims(2, 3)), self.attention.softcap)
    }

    /// The scores, and a floor where a query must not see the key: `[B, H, R, S]`.
    fn masked(&self, block: &QueryBlock, scores: Tensor<4>) -> Tensor<4> {
        let device = scores.device();
        if block.queries.len() == 1 {
            return scores; // a single query sees all of its keys
        }
        // The positions of the queries among these keys.
        let n_keys = block.keys.len();
        let unseen = unseen(n_keys - block.queries.len()..n_keys, n_keys, self.attention.window, &device); // [1, 1, R, S]
        scores + Tensor::zeros(unseen.dims(), &device).mask_fill(unseen, BLOCKED)
    }

    /// The dropout mask of a block's weights, if there is dropout. It is the same in both passes.
    fn mask(&self, [b, h, _, t, s, _]: Sizes, block: &QueryBlock, q: &Tensor<4>) -> Option<Mask<4>> {
        let part = [0..b, 0..h, block.queries.clone(), block.keys.clone()];
        let dropout = self.attention.dropout.as_ref()?;
        Some(dropout.mask([b, h, t, s], part, &q.device()))
    }
}

/// B, H, Hkv, T, S, D
type Sizes = [usize; 6];

fn sizes(q: &Tensor<4>, k: &Tensor<4>) -> Sizes {
    let ([b, h, t, d], [_, h_kv, s, _]) = (q.dims(), k.dims());
    [b, h, h_kv, t, s, d]
}

/// Consecutive queries, and the keys that they see.
#[derive(Debug)]
struct QueryBlock {
    queries: Range<usize>,
    keys: Range<usize>,
}

/// The product of each head of `x: [B, H, R, X]` with the matrix shared by its group, `[B, Hkv, X, Y]`
/// -> `[B, H, R, Y]`
fn product(x: Tensor<4>, shared: Tensor<4>) -> Tensor<4> {
    let ([b, h, r, _], [_, h_kv, _, y]) = (x.dims(), shared.dims());
    let product = grouped(x, h_kv).matmul(shared); // [B, Hkv, G R, Y]
    if h == h_kv { product } else { product.reshape([b, h, r, y]) }
}

/// The products of each head of `x: [B, H, R, X]`, transposed, with that of `y: [B, H, R, Y]`, summed over the heads of
/// a group -> `[B, Hkv, X, Y]`
///
/// Transposes `y` and the result instead of `x`, by far the largest here, since a transposed tensor is slow to write.
fn transposed_product(x: Tensor<4>, y: Tensor<4>, h_kv: usize) -> Tensor<4> {
    let product = grouped(y, h_kv).swap_dims(2, 3).matmul(grouped(x, h_kv)); // [B, Hkv, Y, X]
    product.swap_dims(2, 3)
}

/// Stacks the rows of heads that share keys: `[B, H, R, X]` -> `[B, Hkv, G R, X]`
fn grouped(x: Tensor<4>, h_kv: usize) -> Tensor<4> {
    let [b, h, r, width] = x.dims();
    if h == h_kv { x } else { x.reshape([b, h_kv, h / h_kv * r, width]) }
}

/// Adds a part for some of the keys to the sum so far, `[B, Hkv, S, D]`.
fn sum_of(so_far: Option<Tensor<4>>, part: Tensor<4>, keys: &Range<usize>, s: usize) -> Tensor<4> {
    let [b, h, n, d] = part.dims();
    if so_far.is_none() && n == s {
        return part;
    }
    let so_far = so_far.unwrap_or_else(|| Tensor::zeros([b, h, s, d], &part.device()));
    let sum = narrow(&so_far, keys) + part;
    so_far.slice_assign([0..b, 0..h, keys.clone(), 0..d], sum)
}

/// A range of rows of `x: [B, H, T, X]`; the full range is the tensor itself.
fn narrow(x: &Tensor<4>, rows: &Range<usize>) -> Tensor<4> {
    let [_, _, t, _] = x.dims();
    if rows.len() == t { x.clone() } else { x.clone().narrow(2, rows.start, rows.len()) }
}

/// Concatenates the rows of all blocks. Those of a single block are not copied.
fn joined(mut blocks: Vec<Tensor<4>>) -> Tensor<4> {
    match blocks.len() {
        1 => blocks.remove(0),
        _ => Tensor::cat(blocks, 2),
    }
}

fn tensors<const N: usize>(tensors: Vec<DispatchTensor>) -> [Tensor<4>; N] {
    let tensors: Vec<_> = tensors.into_iter().map(Tensor::from_dispatch).collect();
    tensors.try_into().expect("the operation passed N tensors")
}

#[cfg(test)]
mod tests {
    use super::super::explicit_causal_attention;
    use super::*;
    use crate::testing::{DROPOUT, assert_within, constant, output_and_gradients};

    const SHAPES: [Sizes; 11] = [
        [1, 1, 1, 1, 1, 2],
        [2, 3, 3, 1, 9, 4],
        [1, 1, 1, 2, 2, 1],
        [2, 3, 3, 5, 5, 6],
        [2, 4, 2, 33, 33, 16],
        [1, 6, 1, 65, 65, 10],
        [3, 2, 2, 64, 64, 32],
        [2, 4, 4, 17, 40, 8],
        [1, 8, 4, 70, 101, 4],
        [1, 16, 4, 7, 7, 3],
        [1, 1, 1, 200, 200, 16],
    ];

    /// Windows of one key, of less than a block, of several blocks, and of all keys.
    const WINDOWS: [Option<usize>; 5] = [None, Some(1), Some(5), Some(40), Some(1000)];

    fn attention(window: Option<usize>, dropout: Option<Dropout>) -> CausalAttention {
        CausalAttention { scale: 0.3, softcap: None, window, dropout }
    }

    /// The bytes of scores of this many queries.
    fn bytes_of(n_queries: usize, [b, h, _, _, s, _]: Sizes) -> usize {
        n_queries * b * h * s * size_of::<f32>()
    }

    fn blocks(shape: Sizes, window: Option<usize>, max_bytes: usize) -> Vec<QueryBlock> {
        InBlocks { attention: attention(window, None), max_bytes }.blocks(shape)
    }

    /// The output, and the gradients of queries, keys and values; queries are multiplied by `size`.
    fn run(
        f: impl Fn(Tensor<4>, Tensor<4>, Tensor<4>) -> Tensor<4>,
        [b, h, h_kv, t, s, d]: Sizes,
        size: f32,
    ) -> Vec<Vec<f32>> {
        output_and_gradients(|leaves| {
            let q = leaves.next([b, h, t, d]) * size;
            let [k, v] = [(); 2].map(|()| leaves.next([b, h_kv, s, d]));
            f(q, k, v)
        })
    }

    #[test]
    fn blocked_attention_equals_explicit() {
        let attentions = WINDOWS.map(|window| {
            let [plain, dropping] = [None, Some(DROPOUT)].map(|dropout| attention(window, dropout));
            [plain, dropping, CausalAttention { softcap: Some(0.4), ..dropping }]
        });
        for (shape, attention) in
            SHAPES.into_iter().flat_map(|shape| attentions.as_flattened().iter().map(move |x| (shape, *x)))
        {
            let [_, _, _, t, ..] = shape;
            // If a query sees only itself, the gradient of its score is a difference of equal numbers, which are as
            // large as the other parts.
            let parts = |parts: Vec<Vec<f32>>| match attention.window {
                Some(1) => vec![parts.concat()],
                _ => parts,
            };
            let want = parts(run(|q, k, v| explicit_causal_attention(q, k, v, attention), shape, 1.0));
            for n_queries in [1, t.div_ceil(3), t.div_ceil(2), t] {
                let bytes = bytes_of(n_queries, shape);
                let got = parts(run(|q, k, v| causal_attention_in_blocks(q, k, v, attention, bytes), shape, 1.0));
                assert_within(&got, &want, 4e-6, &format!("{shape:?}, {n_queries} queries, {attention:?}"));
            }
        }
    }

    #[test]
    fn blocked_attention_keeps_huge_scores_finite_and_nan() {
        let shape = [1, 2, 1, 70, 70, 16];
        for n_queries in [20, 70] {
            let ours = |q, k, v| causal_attention_in_blocks(q, k, v, attention(None, None), bytes_of(n_queries, shape));
            for size in [1e3, 1e6, 1e30] {
                let got = run(ours, shape, size);
                assert!(got.iter().flatten().all(|x| x.is_finite()), "{size}");
                let explicit = |q, k, v| explicit_causal_attention(q, k, v, attention(None, None));
                // For weights near 0 or 1 the gradients of scores are differences of nearly equal numbers.
                let want = run(explicit, shape, size);
                assert_within(&got[..1], &want[..1], 4e-6, "huge scores");
            }
            let nan = run(ours, shape, f32::NAN);
            assert!(nan[0].iter().all(|x| x.is_nan()));
        }
    }

    #[test]
    fn saved_size_is_linear_in_queries() {
        for shape in SHAPES {
            let [b, h, h_kv, t, s, d] = shape;
            let inputs = [constant([b, h, t, d], 1), constant([b, h_kv, s, d], 2), constant([b, h_kv, s, d], 3)];
            let inputs = inputs.map(|x: Tensor<4>| x.inner().into_dispatch());
            let operation = InBlocks { attention: attention(None, Some(DROPOUT)), max_bytes: usize::MAX };
            let (_, saved) = operation.forward(inputs.into(), Wanted::ALL);
            let sizes = saved.into_iter().map(|saved| {
                let saved = Tensor::<4>::from_dispatch(saved);
                saved.dims().iter().product::<usize>()
            });
            // Queries and outputs, keys and values, and the maximum and the sum of each row.
            let linear = 2 * b * h * t * d + 2 * b * h_kv * s * d + 2 * b * h * t;
            assert_eq!(sizes.sum::<usize>(), linear, "{shape:?}");
        }
    }

    #[test]
    fn blocks_cover_queries_once_within_max_bytes() {
        let long = [[1, 12, 12, 8192, 8192, 64], [12, 12, 12, 1000, 1024, 64]];
        for shape in SHAPES.into_iter().chain(long) {
            let [b, h, _, t, s, _] = shape;
            for (n_queries, window) in [1, 2, 31, 32, 33, 100, t].into_iter().flat_map(|n| WINDOWS.map(|w| (n, w))) {
                let bytes = bytes_of(n_queries, shape);
                let blocks = blocks(shape, window, bytes);
                let queries: Vec<usize> = blocks.iter().flat_map(|block| block.queries.clone()).collect();
                assert!(queries.into_iter().eq(0..t), "{shape:?}");
                for block in &blocks {
                    let [first, end] = [block.queries.start, block.queries.end].map(|query| s - t + query);
                    let start = window.map_or(0, |window| (first + 1).max(window) - window);
                    assert_eq!(block.keys, start..end, "{shape:?}, {window:?}");
                    let scores = b * h * block.queries.len() * block.keys.len();
                    assert!(scores * size_of::<f32>() <= bytes, "{shape:?}, {n_queries}");
                }
            }
        }
    }

    #[test]
    fn usual_sizes_take_few_blocks() {
        let n_blocks = |shape| blocks(shape, None, MAX_SCORE_BYTES).len();
        assert_eq!(n_blocks([64, 6, 6, 256, 256, 64]), 1); // configs/shakespeare-gpu.toml
        assert_eq!(n_blocks([4, 12, 12, 512, 512, 64]), 1);
        assert_eq!(n_blocks([12, 12, 12, 1024, 1024, 64]), 5); // GPT-2 small
        assert_eq!(n_blocks([1, 1, 1, 8192, 8192, 128]), 2);
        // GPT-Neo's window: half of the products.
        assert_eq!(blocks([1, 12, 12, 2048, 2048, 64], Some(256), MAX_SCORE_BYTES).len(), 8);
    }
}
