//! Causal self-attention from the fused projection to the outputs of the heads, with memory linear in T.
//!
//! One task computes the heads that share a key head, for one row of the batch. It normalizes and rotates queries and
//! keys as it reads them, holds the scores of a block of queries at a time, and saves only the logarithm of each row's
//! sum of exponentials (`lse`), from which the backward pass recomputes the weights.
//!
//! Source: Dao et al. 2022, "`FlashAttention`", algorithms 1 and 4, with whole rows instead of blocks of keys, since
//! these fit a CPU's cache.

#![allow(unsafe_code, reason = "each block says why it is sound")]

mod backward;

use std::ops::Range;
use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use pulp::{Simd, WithSimd};

use self::backward::BackwardPass;
use super::heads::{Angles, Heads, ProjectedHeads};
use super::scores::{Scores, softmax};
use super::{QUERIES, QkNorm, SelfAttention, sequences};
use crate::dropout::Dropout;
use crate::elementary::{LANES, add_to};
use crate::flex::{from_vec, in_f32, tensor, values};
use crate::gemm::{Exact, MatrixMut, Packed, PackedRef, RowMajor, Scratch, Store, StoreMode, multiply, n_panels};
use crate::op::{FlexOperation, Wanted, apply_on_flex};
use crate::tasks::{assume_init, run, uninit};

/// [`crate::self_attention`] for f32 on flex.
pub(super) fn self_attention(qkv: Tensor<3>, attention: SelfAttention) -> Tensor<3> {
    let SelfAttention { n_heads, n_kv_heads, norm, rotation, scale, softcap, window, dropout, lengths } = attention;
    let [batch_size, t, _] = qkv.dims();
    let is_whole = |lengths: &Arc<[usize]>| batch_size == 1 && lengths.iter().sum::<usize>() == t;
    assert!(lengths.as_ref().is_none_or(is_whole), "{lengths:?} in {batch_size} rows of {t}");
    let lengths = lengths.unwrap_or_else(|| vec![t; batch_size].into());
    let epsilon = norm.as_ref().map(|norm| in_f32(norm.epsilon));
    let rotated = rotation.is_some();
    let operation = Attention { n_heads, n_kv_heads, epsilon, rotated, scale, softcap, window, dropout, lengths };
    let mut inputs = vec![qkv.into_dispatch()];
    inputs.extend(rotation.into_iter().flatten().map(Tensor::into_dispatch));
    inputs.extend(norm.into_iter().flat_map(|QkNorm { q, k, .. }| [q, k]).map(Tensor::into_dispatch));
    Tensor::from_dispatch(apply_on_flex(inputs, operation))
}

/// A task: the heads of one sequence that share a key head.
struct HeadGroup<'a> {
    prepared: ProjectedHeads<'a>,
    dropout: Option<Dropout>,
    /// The index of the first of these heads among the maps of weights of all sequences.
    first_map: usize,
    /// The side of such a map: the length of the longest sequence.
    side: usize,
    kv_head: usize,
    /// The positions of the sequence among those of all rows.
    positions: Range<usize>,
    /// `[T, (H + 2 Hkv) D]`
    qkv: &'a [f32],
}

/// Inputs: the projection `[B, T, (H + 2 Hkv) D]`; cosines and sines `[.., T, R / 2]` if `rotated`; the weights of the
/// norms of queries and keys `[D]` if there is an `epsilon`.
#[derive(Debug)]
struct Attention {
    n_heads: usize,
    n_kv_heads: usize,
    epsilon: Option<f32>,
    rotated: bool,
    scale: f64,
    softcap: Option<f64>,
    window: Option<usize>,
    dropout: Option<Dropout>,
    /// The length of each sequence: all are T, or their sum is.
    lengths: Arc<[usize]>,
}

impl Attention {
    fn heads<'a>(&self, inputs: &'a [FlexTensor]) -> Heads<'a> {
        let Self { n_heads, n_kv_heads, scale, softcap, window, .. } = *self;
        let (rotation, norms) = inputs[1..].split_at(if self.rotated { 2 } else { 0 });
        Heads {
            n_heads,
            n_kv_heads,
            head_dim: inputs[0].layout().shape()[2] / (n_heads + 2 * n_kv_heads),
            norms: self.epsilon.map(|_| [values(&norms[0]), values(&norms[1])]),
            epsilon: self.epsilon.unwrap_or_default(),
            rotation: self.rotated.then(|| Angles {
                tables: [values(&rotation[0]), values(&rotation[1])],
                n_pairs: rotation[0].layout().shape()[3],
            }),
            scale,
            softcap,
            window,
        }
    }

    /// All tasks: one for each sequence and key head.
    fn tasks<'a>(&'a self, inputs: &'a [FlexTensor]) -> impl Iterator<Item = HeadGroup<'a>> {
        let (heads, qkv) = (self.heads(inputs), values(&inputs[0]));
        let first_row = self.dropout.map_or(0, |dropout| dropout.key.first_row);
        let side = self.lengths.iter().copied().max().unwrap_or(0);
        sequences(&self.lengths).enumerate().flat_map(move |(sequence, positions)| {
            (0..heads.n_kv_heads).map(move |kv_head| HeadGroup {
                prepared: ProjectedHeads { heads, t: positions.len(), row_step: heads.row() },
                dropout: self.dropout,
                first_map: (first_row + sequence) * heads.n_heads + kv_head * heads.group(),
                side,
                kv_head,
                qkv: &qkv[positions.start * heads.row()..positions.end * heads.row()],
                positions: positions.clone(),
            })
        })
    }

    /// The approximate number of multiplications.
    fn work(&self, width: usize) -> usize {
        self.lengths.iter().map(|length| length * length * width).sum()
    }
}

impl FlexOperation for Attention {
    fn forward(&self, inputs: Vec<FlexTensor>, wanted: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let heads = self.heads(&inputs);
        let Heads { n_heads, head_dim, .. } = heads;
        let [batch_size, t] = [0, 1].map(|dim| inputs[0].layout().shape()[dim]);
        let (width, group_width) = (n_heads * head_dim, heads.group() * head_dim);
        let mut out = uninit(batch_size * t * width);
        let mut lse = vec![0.0; batch_size * n_heads * t];
        {
            // SAFETY: tasks write before they read, and nothing else reads before all are done.
            let out = unsafe { MatrixMut::from_uninit(&mut out, [batch_size * t, width]) };
            let mut lse = &mut lse[..];
            let tasks = self.tasks(&inputs).map(|task| {
                let HeadGroup { positions, kv_head, .. } = &task;
                let lse = lse.split_off_mut(..heads.group() * positions.len()).expect("`lse` has a scalar per query");
                let columns = kv_head * group_width..(kv_head + 1) * group_width;
                // SAFETY: tasks have disjoint rows or columns.
                let out = unsafe { out.block(positions.clone(), columns) };
                ForwardPass { heads: task, out, lse }
            });
            run(self.work(width), tasks);
        }
        // SAFETY: each task wrote the outputs of its heads at every position.
        let out = from_vec(unsafe { assume_init(out) }, [batch_size, t, width]);
        if !wanted.any() {
            return (out, Vec::new());
        }
        let mut saved = vec![out.clone(), from_vec(lse, [batch_size, n_heads, t])];
        saved.extend(inputs);
        (out, saved)
    }

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor, _: Wanted) -> Vec<Option<FlexTensor>> {
        let (outputs, inputs) = saved.split_at(2);
        let heads = self.heads(inputs);
        let Heads { n_heads, head_dim, .. } = heads;
        let (group, width, row) = (heads.group(), n_heads * head_dim, heads.row());
        let [batch_size, t] = [0, 1].map(|dim| inputs[0].layout().shape()[dim]);
        let mut grad_qkv = uninit(batch_size * t * row);
        // The gradients of the norms' weights from each task, added in the order of the tasks.
        let mut grad_norms = vec![0.0; self.lengths.len() * self.n_kv_heads * 2 * head_dim];
        {
            // SAFETY: tasks write before they read, and nothing else reads before all are done.
            let grad_qkv = unsafe { MatrixMut::from_uninit(&mut grad_qkv, [batch_size * t, row]) };
            let mut lse = values(&outputs[1]);
            let tasks = self.tasks(inputs).zip(grad_norms.chunks_mut(2 * head_dim)).map(|(task, grad_norms)| {
                let HeadGroup { positions, kv_head, .. } = &task;
                let lse = lse.split_off(..group * positions.len()).expect("`lse` has a scalar per query");
                let parts = [(kv_head * group, group), (heads.keys(*kv_head), 1), (heads.values(*kv_head), 1)];
                let grad_qkv = parts.map(|(head, n)| {
                    let columns = head * head_dim..(head + n) * head_dim;
                    // SAFETY: tasks have disjoint rows or columns.
                    unsafe { grad_qkv.block(positions.clone(), columns) }
                });
                let [out, gradient] =
                    [&outputs[0], &gradient].map(|x| &values(x)[positions.start * width..positions.end * width]);
                BackwardPass { heads: task, out, gradient, lse, grad_qkv, grad_norms }
            });
            run(self.work(width), tasks);
        }
        // SAFETY: each task wrote the gradients of its heads at every position.
        let grad_qkv = unsafe { assume_init(grad_qkv) };
        let mut parts = vec![Some(tensor(grad_qkv, &inputs[0]))];
        if self.rotated {
            parts.extend([None, None]);
        }
        if self.epsilon.is_some() {
            let mut sums = vec![0.0; 2 * head_dim];
            grad_norms.chunks_exact(2 * head_dim).for_each(|part| add_to(&mut sums, part));
            parts.extend(sums.chunks_exact(head_dim).map(|part| Some(from_vec(part.to_vec(), [head_dim]))));
        }
        parts
    }
}

struct ForwardPass<'a> {
    heads: HeadGroup<'a>,
    /// `[T, G D]`, columns of a matrix with all heads.
    out: MatrixMut<'a>,
    /// `[G, T]`
    lse: &'a mut [f32],
}

impl WithSimd for ForwardPass<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let HeadGroup { prepared, dropout, first_map, side, kv_head, qkv, .. } = self.heads;
        let ProjectedHeads { heads, t, .. } = prepared;
        let (head_dim, group, scale) = (heads.head_dim, heads.group(), heads.scale());
        let mut buffer = prepared.buffer();
        let k = prepared.read(qkv, heads.keys(kv_head), &mut buffer);
        let k_transposed = Packed::here(simd, k.transposed());
        let v = Packed::here(simd, prepared.projected(qkv, heads.values(kv_head)));
        let mut scores = Scratch::new(QUERIES.min(t) * n_panels(t));
        let mut mask = vec![0.0; if dropout.is_some() { t } else { 0 }];
        for (i, (mut out, lse)) in self.out.split_columns(head_dim).zip(self.lse.chunks_exact_mut(t)).enumerate() {
            let q = Packed::here(simd, prepared.read(qkv, kv_head * group + i, &mut buffer));
            for first in (0..t).step_by(QUERIES) {
                let rows = QUERIES.min(t - first);
                let queries = first..first + rows;
                let keys = heads.seen_by(queries.clone());
                let mut tile = Scores { rows: &mut scores[..rows * n_panels(keys.len())], step: rows };
                let q = RowMajor(q.view().rows(queries.clone()));
                multiply(Exact(simd), q, k_transposed.view().columns(keys.clone()), &mut tile);
                for (row, query) in queries.enumerate() {
                    let visible = heads.visible(query, keys.start);
                    lse[query] = softmax::<S, LANES>(&mut tile, row, visible.clone(), scale, heads.cap());
                    if let Some(dropout) = dropout {
                        let mask = &mut mask[..visible.end];
                        mask.fill(1.0);
                        dropout.apply(mask, ((first_map + i) * side + query) * side + keys.start);
                        tile.multiply(row, mask);
                    }
                }
                let weights = RowMajor(PackedRef::within(&scores, [rows, keys.len()], rows));
                let v = v.view().rows(keys);
                let out = out.rows(first, rows);
                multiply(Exact(simd), weights, v, &mut Store { mode: StoreMode::Overwrite, out, bias: &[] });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::composed_self_attention;
    use crate::testing::{assert_close, constant, output_and_gradients, scalars};

    #[test]
    fn packed_sequences_attend_to_themselves_only() {
        let lengths = [33, 1, 64, 5, 40];
        let n_positions = lengths.iter().sum::<usize>();
        for window in [None, Some(7)] {
            let run_with = |f: fn(Tensor<3>, SelfAttention) -> Tensor<3>, is_packed: bool| {
                output_and_gradients(|leaves| {
                    let qkv = leaves.next([1, n_positions, 4 * 8]);
                    let angles = constant::<4>([1, 1, 64, 4], 4);
                    let attention = SelfAttention {
                        n_heads: 2,
                        n_kv_heads: 1,
                        norm: Some(QkNorm { q: leaves.next([8]), k: leaves.next([8]), epsilon: 1e-6 }),
                        rotation: Some([angles.clone().cos(), angles.sin()]),
                        scale: 0.3,
                        softcap: None,
                        window,
                        dropout: None,
                        lengths: is_packed.then(|| lengths.into()),
                    };
                    if is_packed {
                        return f(qkv, attention);
                    }
                    let alone = sequences(&lengths).map(|positions| {
                        let part = |x: &Tensor<4>| x.clone().narrow(2, 0, positions.len());
                        let rotation = attention.rotation.as_ref().map(|angles| angles.each_ref().map(part));
                        let qkv = qkv.clone().narrow(1, positions.start, positions.len());
                        f(qkv, SelfAttention { rotation, ..attention.clone() })
                    });
                    Tensor::cat(alone.collect(), 1)
                })
            };
            let want = run_with(self_attention, false);
            let packed = run_with(self_attention, true);
            assert!(packed[0] == want[0], "packing changes bytes");
            assert_close(&packed, &want, &format!("{window:?}"));
            assert_close(&run_with(composed_self_attention, true), &want, &format!("composed, {window:?}"));
        }
    }

    #[test]
    fn attention_keeps_huge_scores_finite_and_nan() {
        for window in [None, Some(40)] {
            let attention = || SelfAttention {
                n_heads: 2,
                n_kv_heads: 1,
                norm: None,
                rotation: None,
                scale: 0.3,
                softcap: None,
                window,
                dropout: None,
                lengths: None,
            };
            let qkv = constant([1, 70, 32], 1) * 1e3;
            let got = scalars(self_attention(qkv.clone(), attention()));
            let want = scalars(composed_self_attention(qkv.clone(), attention()));
            assert!(got.iter().all(|x| x.is_finite()));
            assert_close(&[got], &[want], "1e3");
            let nan = scalars(self_attention(qkv * f32::NAN, attention()));
            assert!(nan.iter().all(|x| x.is_nan()));
        }
    }
}
