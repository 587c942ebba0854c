//! Causal attention of new positions over the KV cache.
//!
//! One task computes the heads that share a key head, for one sample: it normalizes and rotates keys and queries,
//! appends keys and values to the cache, and computes the weighted sums of values.
//!
//! Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1; grouped queries: Ainslie et al. 2023, "GQA".

#![allow(unsafe_code, reason = "each block says why it is sound")]

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::QUERIES;
use super::heads::{Heads, ProjectedHeads};
use super::scores::{Scores, softmax};
use crate::decode::cache::{Cache, HeadShape};
use crate::decode::packed_rows::{PackedRows, Rows};
use crate::decode::pages::Pages;
use crate::gemm::{Arithmetic, Epilogue, Exact, MatrixMut, PackedRef, Row, RowMajor, WIDTH, multiply, n_panels};
use crate::simd;

/// The samples that get new positions, and how many.
#[derive(Clone, Debug)]
pub struct Stream<'a> {
    /// The samples.
    pub samples: Range<usize>,
    /// The first row of each sample's new positions in the matrix of all rows; `None` for a sample without any.
    pub first_rows: &'a [Option<usize>],
    /// The number of new positions of each of them.
    pub t: usize,
    /// The number of rows of all samples together.
    pub n_rows: usize,
}

/// Memory for the intermediate results of the tasks.
#[derive(Debug)]
pub struct Buffers {
    queries: Pages,
    /// Grows with the longest sample.
    scores: Pages,
    heads: Vec<f32>,
}

impl Heads<'_> {
    /// The rows of panels that a task needs for the queries of `t` positions, and the scalars of a head.
    fn sizes(&self, t: usize) -> [usize; 2] {
        [t * self.group() * n_panels(self.head_dim), t * self.head_dim]
    }
}

impl Buffers {
    /// Allocates for any of these pairs of a number of samples and a number of new positions.
    pub fn new(heads: Heads<'_>, streams: &[[usize; 2]]) -> Self {
        let most = |i: usize| {
            let size = |[n, t]: &[usize; 2]| n * heads.n_kv_heads * heads.sizes(*t)[i];
            streams.iter().map(size).max().unwrap_or(0)
        };
        Self { queries: Pages::zeros(most(0)), scores: Pages::zeros(0), heads: vec![0.0; most(1)] }
    }
}

/// Appends the keys and values of new positions to the cache, and computes the weighted sum of values for each query.
///
/// # Shapes
/// `qkv: [n_rows, (H + 2 Hkv) D]` -> `out: [n_rows, H D]`
///
/// # Panics
/// If a sample exceeds the cache's capacity, or the buffers are too small.
pub fn attend(
    heads: Heads<'_>,
    stream: &Stream<'_>,
    (cache, layer): (&mut Cache, usize),
    qkv: &Rows,
    buffers: &mut Buffers,
    out: &mut PackedRows,
) {
    let Heads { n_kv_heads, head_dim, .. } = heads;
    let t = stream.t;
    let out = out.resize(stream.n_rows);
    let with_positions = stream.samples.clone().filter(|sample| stream.first_rows[*sample].is_some());
    let Some(capacity) = with_positions.map(|sample| cache.reserve(sample, t)).max() else { return };
    assert_eq!(qkv.n_columns, heads.row(), "queries, keys and values");
    let width = heads.group() * head_dim;
    let [queries, head] = heads.sizes(t);
    // For the scores of a block of queries.
    let scores = QUERIES.min(t * heads.group()) * n_panels(capacity);
    let n_tasks = stream.samples.len() * n_kv_heads;
    if buffers.scores.len() < n_tasks * scores {
        buffers.scores = Pages::zeros(n_tasks * scores);
    }
    assert!(buffers.queries.len() >= n_tasks * queries && buffers.heads.len() >= n_tasks * head, "the buffers fit");
    // Many samples are tasks enough: dividing each of them again costs more than short samples take.
    let divided = stream.samples.len() < 4 * rayon::current_num_threads();
    let min_heads = if divided { 1 } else { n_kv_heads };
    cache
        .samples_mut(stream.samples.clone())
        .par_iter_mut()
        .zip(&stream.first_rows[stream.samples.clone()])
        .zip(buffers.queries.par_chunks_mut(n_kv_heads * queries))
        .zip(buffers.scores.par_chunks_mut(n_kv_heads * scores))
        .zip(buffers.heads.par_chunks_mut(n_kv_heads * head))
        .for_each(|((((sample, first_row), sample_queries), sample_scores), sample_heads)| {
            let Some(first_row) = *first_row else { return };
            let (start, shape) = (sample.len(), sample.shape());
            let rotation = heads.rotation.map(|angles| angles.from(start));
            let [keys, values] = sample.layer(layer, n_kv_heads);
            keys.par_chunks_mut(shape.rows())
                .zip(values.par_chunks_mut(shape.rows()))
                .zip(sample_queries.par_chunks_mut(queries))
                .zip(sample_scores.par_chunks_mut(scores))
                .zip(sample_heads.par_chunks_mut(head))
                .enumerate()
                .with_min_len(min_heads)
                .for_each(|(kv_head, ((((keys, values), queries), scores), buffer))| {
                    // SAFETY: samples have disjoint rows, and heads disjoint columns.
                    let out = unsafe {
                        let columns = kv_head * width..(kv_head + 1) * width;
                        out.block(first_row..first_row + t, columns)
                    };
                    simd::dispatch(Task {
                        prepared: ProjectedHeads { heads: Heads { rotation, ..heads }, t, row_step: qkv.row_step },
                        kv_head,
                        qkv: qkv.from(first_row),
                        start,
                        shape,
                        keys,
                        values,
                        queries,
                        scores,
                        buffer,
                        out,
                    });
                });
        });
}

/// The heads of one sample that share a key head.
struct Task<'a> {
    prepared: ProjectedHeads<'a>,
    kv_head: usize,
    /// The rows from the sample's first new position on.
    qkv: &'a [f32],
    /// The number of positions in the cache before.
    start: usize,
    shape: HeadShape,
    keys: &'a mut [Row],
    values: &'a mut [Row],
    /// Panels `[T G, D]`, with the heads of a position next to each other.
    queries: &'a mut [Row],
    scores: &'a mut [Row],
    /// A buffer for the queries or keys of a head, `[T, D]`.
    buffer: &'a mut [f32],
    /// `[T, G D]`
    out: MatrixMut<'a>,
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let ProjectedHeads { heads, t, .. } = self.prepared;
        let (head_dim, group) = (heads.head_dim, heads.group());
        let keys = self.prepared.read(self.qkv, heads.keys(self.kv_head), self.buffer);
        let values = self.prepared.projected(self.qkv, heads.values(self.kv_head));
        for i in 0..t {
            let caches = [&mut *self.keys, &mut *self.values];
            self.shape.write(caches, self.start + i, [keys.row(i), values.row(i)]);
        }
        let n_queries = t * group;
        let mut queries = MatrixMut::packed(self.queries, [n_queries, head_dim]);
        for head in 0..group {
            let q = self.prepared.read(self.qkv, self.kv_head * group + head, self.buffer);
            for i in 0..t {
                for (panel, q) in q.row(i).chunks(WIDTH).enumerate() {
                    let mut scaled = [0.0; WIDTH];
                    for (scaled, q) in scaled.iter_mut().zip(q) {
                        *scaled = q * heads.scale();
                    }
                    queries.put(i * group + head, panel * WIDTH, &scaled[..q.len()]);
                }
            }
        }
        let queries = PackedRef::new(self.queries, [n_queries, head_dim]);
        for first in (0..n_queries).step_by(QUERIES) {
            let n = QUERIES.min(n_queries - first);
            let position = |query: usize| self.start + query / group;
            let seen = heads.seen_by(position(first)..position(first + n - 1) + 1);
            let mut scores = Scores { rows: &mut self.scores[..n * n_panels(seen.len())], step: n };
            let q = RowMajor(queries.rows(first..first + n));
            let keys = self.shape.keys(self.keys, seen.end).columns(seen.clone());
            multiply(Exact(simd), q, keys, &mut scores);
            for row in 0..n {
                let visible = heads.visible(position(first + row), seen.start);
                softmax::<S, WIDTH>(&mut scores, row, visible, 1.0, heads.cap());
            }
            let weights = RowMajor(PackedRef::new(scores.rows, [n, seen.len()]));
            let values = self.shape.values(self.values, seen.end).rows(seen);
            let mut sums = HeadSums { out: &mut self.out, first, group, head_dim };
            multiply(Exact(simd), weights, values, &mut sums);
        }
    }
}

/// Stores the weighted sum of values of each query at its position and head.
struct HeadSums<'a, 'b> {
    out: &'a mut MatrixMut<'b>,
    /// The index of the first query.
    first: usize,
    group: usize,
    head_dim: usize,
}

impl Epilogue<f32> for HeadSums<'_, '_> {
    #[inline(always)]
    fn apply<A: Arithmetic<Element = f32>>(&mut self, _: A, at: [usize; 2], sums: &[f32]) {
        let [row, column] = at;
        let query = self.first + row;
        let first = query % self.group * self.head_dim;
        self.out.put_across(query / self.group, first + column, sums);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor, TensorData};

    use super::*;
    use crate::attention::heads::Angles;
    use crate::attention::{QkNorm, SelfAttention, composed_self_attention};
    use crate::testing::{assert_close, noise, scalars};

    /// The output at each position, `[T, H D]`, if passes have these numbers of positions.
    fn gathered(heads: Heads<'_>, qkv: &[f32], passes: &[usize]) -> Vec<f32> {
        let (row, width) = (heads.row(), heads.n_heads * heads.head_dim);
        let most = passes.iter().copied().max().unwrap_or(0);
        let capacity = passes.iter().sum::<usize>() + 3;
        let mut cache = Cache::new([1, 1], capacity, [heads.n_kv_heads, heads.head_dim]);
        let mut buffers = Buffers::new(heads, &[[1, most]]);
        let (mut rows, mut out) = (Rows::new(most, row), PackedRows::new(most, width));
        let mut gathered = Vec::new();
        for t in passes.iter().copied() {
            for (i, x) in qkv[cache.len(0) * row..].chunks(row).take(t).enumerate() {
                rows.row_mut(i).copy_from_slice(x);
            }
            let stream = Stream { samples: 0..1, first_rows: &[Some(0)], t, n_rows: t };
            attend(heads, &stream, (&mut cache, 0), &rows, &mut buffers, &mut out);
            cache.advance(0, t);
            let at = |row: usize, column: usize| out.view().panel(column / WIDTH)[row][column % WIDTH];
            gathered.extend((0..t).flat_map(|row| (0..width).map(move |column| at(row, column))));
        }
        gathered
    }

    #[test]
    fn decode_attention_equals_reference_in_any_passes() {
        const T: usize = 110;
        let passes = [vec![T], vec![1; T], vec![31, 1, 1, 33, 44], vec![64, 46]];
        for [n_heads, n_kv_heads, head_dim] in [[1, 1, 8], [6, 2, 10], [3, 3, 40]] {
            let norms = [1, 2].map(|seed| noise(head_dim, seed));
            let qkv = noise(T * (n_heads + 2 * n_kv_heads) * head_dim, 3);
            for (i, window) in [None, Some(1), Some(2), Some(32), Some(33), Some(70), Some(500)].into_iter().enumerate()
            {
                // All dimensions are rotated, some, or none.
                let n_pairs = [head_dim / 2, head_dim / 4, 0][i % 3];
                let angles = noise(T * n_pairs, 4);
                let tables = [f32::cos, f32::sin].map(|f| angles.iter().copied().map(f).collect::<Vec<_>>());
                let heads = Heads {
                    n_heads,
                    n_kv_heads,
                    head_dim,
                    norms: (i % 2 == 0).then(|| norms.each_ref().map(|norm| &norm[..])),
                    epsilon: 1e-6,
                    rotation: (n_pairs > 0)
                        .then(|| Angles { tables: tables.each_ref().map(|table| &table[..]), n_pairs }),
                    scale: 0.1 + i as f64 / 10.0,
                    softcap: (i % 3 == 1).then_some(0.7),
                    window,
                };
                let tensor = |x: &[f32]| Tensor::<1>::from_data(TensorData::from(x), &Device::flex());
                let table = |x: &[f32]| tensor(x).reshape([1, 1, T, n_pairs]);
                let attention = SelfAttention {
                    n_heads,
                    n_kv_heads,
                    norm: heads.norms.map(|[q, k]| QkNorm { q: tensor(q), k: tensor(k), epsilon: 1e-6 }),
                    rotation: heads.rotation.map(|angles| angles.tables.map(table)),
                    scale: heads.scale,
                    softcap: heads.softcap,
                    window,
                    dropout: None,
                    lengths: None,
                };
                let want = scalars(composed_self_attention(tensor(&qkv).reshape([1, T, heads.row()]), attention));
                let [whole, others @ ..] = passes.each_ref().map(|passes| gathered(heads, &qkv, passes));
                assert_close(std::slice::from_ref(&whole), &[want], &format!("{heads:?}"));
                for other in others {
                    assert!(other == whole, "passes change bytes: {heads:?}");
                }
            }
        }
    }
}
