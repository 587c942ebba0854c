//! Causal attention of one row of the batch, query after query.

use pulp::{Simd, WithSimd};

use super::QUERIES;
use crate::dropout::Dropout;
use crate::elementary::LANES;
use crate::gemm::Scratch;
use crate::gemm::{Exact, MatrixMut, Mode, Packed, PackedRef, Plain, Store, multiply, n_panels};
use crate::heads::{HeadLayout, Prepared};
use crate::rows::{Scores, attend};

/// The heads that share one key head, of one row of the batch.
pub(super) struct Forward<'a> {
    pub(super) prepared: Prepared<'a>,
    pub(super) dropout: Option<Dropout>,
    /// Which of all B H maps of weights is the first one of these heads'.
    pub(super) first_map: usize,
    pub(super) kv_head: usize,
    /// `[T, (H + 2 Hkv) D]`
    pub(super) qkv: &'a [f32],
    /// `[T, G D]`, between the other heads' columns.
    pub(super) out: MatrixMut<'a>,
    /// `[G, T]`
    pub(super) lse: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let heads = self.prepared.heads;
        let HeadLayout { head_dim, t, .. } = heads;
        let scale = heads.scale();
        let mut buffer = self.prepared.buffer();
        let k = self.prepared.keys(self.qkv, self.kv_head, &mut buffer);
        let k_transposed = Packed::here(simd, k.transposed());
        let v = self.prepared.values(self.qkv, self.kv_head);
        let v = Packed::here(simd, v);
        let mut scores = Scratch::new(QUERIES.min(t) * n_panels(t));
        let mut mask = vec![0.0; if self.dropout.is_some() { t } else { 0 }];
        let group = heads.group();
        let outs = self.out.split_columns(std::iter::repeat_n(head_dim, group));
        for (i, (mut out, lse)) in outs.zip(self.lse.chunks_exact_mut(t)).enumerate() {
            let head = self.kv_head * group + i;
            let q = self.prepared.queries(self.qkv, head, &mut buffer);
            let q = Packed::here(simd, q);
            for first in (0..t).step_by(QUERIES) {
                let rows = QUERIES.min(t - first);
                let keys = first + rows; // those that the last of these queries sees
                let mut tile = Scores { rows: &mut scores[..rows * n_panels(keys)], step: rows };
                let q = Plain(q.view().rows(first..keys));
                multiply(Exact(simd), q, k_transposed.view().columns(0..keys), &mut tile);
                for row in 0..rows {
                    let query = first + row;
                    lse[query] = attend::<S, LANES>(&mut tile, row, query + 1, scale);
                    if let Some(dropout) = self.dropout {
                        let mask = &mut mask[..=query];
                        mask.fill(1.0);
                        dropout.apply(mask, ((self.first_map + i) * t + query) * t);
                        tile.multiply(row, mask);
                    }
                }
                let weights = Plain(PackedRef::within(&scores, [rows, keys], rows));
                let v = v.view().rows(0..keys);
                let out = out.rows(first, rows);
                multiply(Exact(simd), weights, v, &mut Store { mode: Mode::Put, out, bias: &[] });
            }
        }
    }
}
