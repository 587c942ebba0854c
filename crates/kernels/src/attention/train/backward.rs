//! The backward pass of attention, with recomputed weights.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::HeadGroup;
use crate::attention::QUERIES;
use crate::attention::heads::{Heads, ProjectedHeads};
use crate::attention::scores::{Query, Scores, softmax_backward};
use crate::elementary::sum;
use crate::gemm::{
    Exact, Matrix, MatrixMut, Packed, PackedRef, RowMajor, Scratch, Store, StoreMode, Transposed, WIDTH, multiply,
    n_panels,
};

/// The queries whose weights the backward pass holds at a time, while their contributions to the gradients of keys and
/// values are summed in registers. A multiple of a panel's width.
const BLOCK: usize = 128;

// Weights of keys that a query does not see are zero only up to the end of the last panel with a visible key.
const _: () = assert!(WIDTH.is_multiple_of(QUERIES) && BLOCK.is_multiple_of(WIDTH));

pub(super) struct BackwardPass<'a> {
    pub(super) heads: HeadGroup<'a>,
    /// `[T, H D]`
    pub(super) out: &'a [f32],
    /// `[T, H D]`
    pub(super) gradient: &'a [f32],
    /// `[G, T]`
    pub(super) lse: &'a [f32],
    /// The gradients of queries `[T, G D]`, keys and values `[T, D]`, uninitialized.
    pub(super) grad_qkv: [MatrixMut<'a>; 3],
    /// The gradients of the weights of the norms of queries and keys, `[2, D]`.
    pub(super) grad_norms: &'a mut [f32],
}

impl WithSimd for BackwardPass<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let HeadGroup { prepared, dropout, first_map, side, kv_head, qkv, .. } = self.heads;
        let ProjectedHeads { heads, t, .. } = prepared;
        let (head_dim, group, scale, cap) = (heads.head_dim, heads.group(), heads.scale(), heads.cap());
        let width = heads.n_heads * head_dim;
        let [grad_q, mut grad_k, mut grad_v] = self.grad_qkv;
        let (grad_query_norm, grad_key_norm) = self.grad_norms.split_at_mut(head_dim);
        let mut buffer = prepared.buffer();
        let k = prepared.read(qkv, heads.keys(kv_head), &mut buffer);
        let k_transposed = Packed::here(simd, k.transposed());
        let k = Packed::here(simd, k);
        let v = prepared.projected(qkv, heads.values(kv_head));
        let v_transposed = Packed::here(simd, v.transposed());
        let block = BLOCK.min(t);
        let [mut weights, mut grad_scores] = [(); 2].map(|()| Scratch::new(block * n_panels(t)));
        let mut mask = vec![0.0; if dropout.is_some() { n_panels(t) * WIDTH } else { 0 }];
        for (i, (mut grad_q, lse)) in grad_q.split_columns(head_dim).zip(self.lse.chunks_exact(t)).enumerate() {
            let head = kv_head * group + i;
            let q = Packed::here(simd, prepared.read(qkv, head, &mut buffer));
            let column = head * head_dim;
            let out = Matrix::within(&self.out[column..], [t, head_dim], width);
            let grad_out = Matrix::within(&self.gradient[column..], [t, head_dim], width);
            let grad_out_packed = Packed::here(simd, grad_out);
            for start in (0..t).step_by(BLOCK) {
                let block = BLOCK.min(t - start);
                let seen = heads.seen_by(start..start + block);
                for first in (0..block).step_by(QUERIES) {
                    let rows = QUERIES.min(block - first);
                    let queries = start + first..start + first + rows;
                    let keys = heads.seen_by(queries.clone());
                    // The first of these queries, aligned down to the panel of the first key that they see.
                    let first = (keys.start - seen.start) / WIDTH * block + first;
                    let left = [&q, &grad_out_packed];
                    let left = left.map(|left| RowMajor(left.view().rows(queries.clone())));
                    let right = [&k_transposed, &v_transposed];
                    let right = right.map(|right| right.view().columns(keys.clone()));
                    let mut tiles =
                        [&mut weights, &mut grad_scores].map(|rows| Scores { rows: &mut rows[first..], step: block });
                    for (tile, (left, right)) in tiles.iter_mut().zip(left.into_iter().zip(right)) {
                        multiply(Exact(simd), left, right, tile);
                    }
                    let [tile, grad_tile] = &mut tiles;
                    for (row, query) in queries.clone().enumerate() {
                        let visible = heads.visible(query, keys.start);
                        let mask = dropout.map(|dropout| {
                            let factors = &mut mask[..visible.end];
                            factors.fill(1.0);
                            dropout.apply(factors, ((first_map + i) * side + query) * side + keys.start);
                            &*mask
                        });
                        let (out, grad_out) = (out.row(query), grad_out.row(query));
                        let query = Query {
                            visible,
                            scale,
                            cap: cap.unwrap_or_default(),
                            lse: lse[query],
                            delta: sum(out, grad_out, |out, grad_out| out * grad_out),
                            mask,
                        };
                        match cap {
                            None => softmax_backward::<S, false>(tile, grad_tile, row, query),
                            Some(_) => softmax_backward::<S, true>(tile, grad_tile, row, query),
                        }
                    }
                    let grad_scores = RowMajor(PackedRef::within(&grad_scores[first..], [rows, keys.len()], block));
                    let out = grad_q.rows(queries.start, rows);
                    let k = k.view().rows(keys);
                    multiply(Exact(simd), grad_scores, k, &mut Store { mode: StoreMode::Overwrite, out, bias: &[] });
                }
                let queries = start..start + block;
                for (gradient, right, out) in
                    [(&grad_scores, &q, &mut grad_k), (&weights, &grad_out_packed, &mut grad_v)]
                {
                    let tile = PackedRef::within(gradient, [block, seen.len()], block);
                    add_key_gradients(simd, tile, heads, queries.clone(), right, out, i == 0);
                }
            }
            prepared.backward(qkv, head, &mut grad_q, grad_query_norm);
        }
        prepared.backward(qkv, heads.keys(kv_head), &mut grad_k, grad_key_norm);
    }
}

/// Adds the contributions of a block of queries to the gradient of each key, or value, that they see: their columns of
/// `tile` times their rows of `right`. The first queries of the first head to see a key store it instead.
#[inline(always)]
fn add_key_gradients<S: Simd>(
    simd: S,
    tile: PackedRef<'_>,
    heads: Heads<'_>,
    queries: Range<usize>,
    right: &Packed,
    out: &mut MatrixMut<'_>,
    is_first_head: bool,
) {
    let seen = heads.seen_by(queries.clone());
    for first in seen.clone().step_by(WIDTH) {
        let keys = first..queries.end.min(first + WIDTH);
        // Earlier queries do not see any of these keys yet, and later ones do not see them any more.
        let last = heads.window.map_or(queries.end, |window| queries.end.min(keys.end - 1 + window));
        let seeing = queries.start.max(first)..last;
        let left = tile.rows(seeing.start - queries.start..seeing.end - queries.start);
        let left = Transposed(left.columns(keys.start - seen.start..keys.end - seen.start));
        let right = right.view().rows(seeing);
        let out = out.rows(keys.start, keys.len());
        let is_first = is_first_head && queries.start <= first;
        let mode = if is_first { StoreMode::Overwrite } else { StoreMode::Accumulate };
        multiply(Exact(simd), left, right, &mut Store { mode, out, bias: &[] });
    }
}
