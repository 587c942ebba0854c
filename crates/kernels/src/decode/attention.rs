//! Causal attention of new positions over those in the cache.
//!
//! One task computes the heads that share a key head, of one sample: it norms and rotates keys and queries, adds
//! keys and values to the cache, and gathers values by the softmax of the scores.
//!
//! Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1; grouped queries: Ainslie et al. 2023, "GQA".

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::block::Whole;
use super::cache::{Cache, blocks_of_head, key_place};
use super::norm::rms_norm;
use super::product::{Nothing, multiply};
use super::softmax::softmax;
use super::{Row, WIDTH, n_panels, read_columns, write_columns};

/// Queries whose scores a task holds at once.
const QUERIES: usize = 32;

/// The heads of a layer, and what happens to queries and keys before they meet.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// Heads of queries.
    pub n_heads: usize,
    /// Heads of keys and values; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Weights of the RMS norms of queries and of keys, each of `head_dim` numbers.
    pub norms: Option<[&'a [f32]; 2]>,
    /// What these norms add to the mean square.
    pub epsilon: f32,
    /// How positions turn queries and keys.
    pub rotation: Option<&'a Rotation>,
}

/// Cosines and sines of all positions, `[capacity, D / 2]`.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// Cosines, position after position.
    pub cos: Vec<f32>,
    /// Sines, in the same order.
    pub sin: Vec<f32>,
}

/// Which samples go on, and by how many positions.
#[derive(Clone, Debug)]
pub struct Stream<'a> {
    /// The samples.
    pub samples: Range<usize>,
    /// Where in a matrix of all rows each sample's new positions begin; none where it has none.
    pub first_rows: &'a [Option<usize>],
    /// How many new positions each of them has.
    pub t: usize,
    /// Rows of all samples together.
    pub n_rows: usize,
}

/// Room for what the tasks compute on the way.
#[derive(Clone, Debug)]
pub struct Room {
    scores: Vec<Row>,
    vectors: Vec<f32>,
    gathered: Vec<Row>,
}

impl Heads<'_> {
    fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Queries at once, where samples have `t` new positions.
    fn tile(&self, t: usize) -> usize {
        QUERIES.min(t * self.group())
    }

    /// Rows of panels that a task needs for its queries and their scores.
    fn rows_per_task(&self, t: usize, capacity: usize) -> usize {
        self.tile(t) * (n_panels(self.head_dim) + n_panels(capacity))
    }

    /// Rows of panels that a task gathers.
    fn gathered_per_task(&self, t: usize) -> usize {
        n_panels(self.head_dim) * t * self.group()
    }
}

impl Room {
    /// For any of these pairs of numbers of samples and of new positions, and a cache of this capacity.
    #[must_use]
    pub fn new(heads: Heads<'_>, capacity: usize, streams: &[[usize; 2]]) -> Self {
        let most = |f: &dyn Fn([usize; 2]) -> usize| {
            streams.iter().map(|stream| f(*stream)).max().unwrap_or(0)
        };
        let rows = |n| vec![Row::ZERO; n];
        let tasks = |n_samples: usize| n_samples * heads.n_kv_heads;
        Self {
            scores: rows(most(&|[n, t]| tasks(n) * heads.rows_per_task(t, capacity))),
            vectors: vec![0.0; most(&|[n, _]| tasks(n) * heads.head_dim)],
            gathered: rows(most(&|[n, t]| tasks(n) * heads.gathered_per_task(t))),
        }
    }
}

/// Adds the keys and values of new positions to the cache, and gathers for each what it sees.
///
/// # Shapes
/// In panels: `qkv: [n_rows, (H + 2 Hkv) D]` -> `out: [n_rows, H D]`
///
/// # Panics
/// If the cache, or the room, is too small.
pub fn attend(
    heads: Heads<'_>,
    stream: &Stream<'_>,
    (cache, layer): (&mut Cache, usize),
    qkv: &[Row],
    room: &mut Room,
    out: &mut [Row],
) {
    let Heads { n_kv_heads, head_dim, .. } = heads;
    let (capacity, t, n_rows) = (cache.capacity(), stream.t, stream.n_rows);
    let first_rows = &stream.first_rows[stream.samples.clone()];
    let cache = cache.layer(layer, stream.samples.clone());
    for (len, first_row) in cache.lens.iter().zip(first_rows) {
        assert!(
            first_row.is_none() || len + t <= capacity,
            "{len} and {t} positions in a cache of {capacity}"
        );
    }
    let n_tasks = first_rows.len() * n_kv_heads;
    let per_head = blocks_of_head(capacity, head_dim);
    let gathered_per_task = heads.gathered_per_task(t);
    let gathered = &mut room.gathered[..n_tasks * gathered_per_task];
    cache
        .keys
        .par_chunks_mut(per_head)
        .zip(cache.values.par_chunks_mut(per_head))
        .zip(gathered.par_chunks_mut(gathered_per_task))
        .zip(room.scores.par_chunks_mut(heads.rows_per_task(t, capacity)))
        .zip(room.vectors.par_chunks_mut(head_dim))
        .enumerate()
        .for_each(|(task, ((((keys, values), gathered), scores), vector))| {
            let (sample, kv_head) = (task / n_kv_heads, task % n_kv_heads);
            let Some(first_row) = first_rows[sample] else {
                return;
            };
            Arch::new().dispatch(Task {
                heads,
                kv_head,
                qkv,
                n_rows,
                first_row,
                t,
                start: cache.lens[sample],
                capacity,
                keys,
                values,
                scores,
                vector,
                gathered,
            });
        });
    // Back to one row for each position, with the heads side by side, and zeros behind them.
    if let Some(last) = out.len().checked_sub(n_rows) {
        out[last..].fill(Row::ZERO);
    }
    let vector = &mut room.vectors[..head_dim];
    let group = heads.group();
    for (task, gathered) in gathered.chunks_exact(gathered_per_task).enumerate() {
        let (sample, kv_head) = (task / n_kv_heads, task % n_kv_heads);
        let Some(first_row) = first_rows[sample] else {
            continue;
        };
        for i in 0..t * group {
            let (row, head) = (first_row + i / group, kv_head * group + i % group);
            read_columns(gathered, t * group, i, 0, vector);
            write_columns(out, n_rows, row, head * head_dim, vector);
        }
    }
}

/// The heads that share one key head, of one sample.
struct Task<'a> {
    heads: Heads<'a>,
    kv_head: usize,
    qkv: &'a [Row],
    n_rows: usize,
    /// The sample's first row of `qkv`, and how many there are.
    first_row: usize,
    t: usize,
    /// Positions in the cache before.
    start: usize,
    capacity: usize,
    /// In panels `[D, capacity]`.
    keys: &'a mut [Whole],
    /// In panels `[capacity, D]`.
    values: &'a mut [Whole],
    /// For queries and their scores.
    scores: &'a mut [Row],
    /// For one query or key, `[D]`.
    vector: &'a mut [f32],
    /// In panels `[T G, D]`, the heads of a position after one another.
    gathered: &'a mut [Row],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for i in 0..self.t {
            self.remember(i);
        }
        let n_queries = self.t * self.heads.group();
        let mut first = 0;
        while first < n_queries {
            let n = QUERIES.min(n_queries - first);
            self.gather(simd, first..first + n);
            first += n;
        }
    }
}

impl Task<'_> {
    /// Adds key and value of the new position `i` to the cache.
    #[inline(always)]
    fn remember(&mut self, i: usize) {
        let Heads { n_heads, n_kv_heads, head_dim, norms, .. } = self.heads;
        let position = self.start + i;
        self.read(i, n_heads + self.kv_head);
        self.prepare(norms.map(|[_, k]| k), position);
        for (dim, x) in self.vector.iter().enumerate() {
            let (block, row, column) = key_place(position, dim, head_dim);
            self.keys[block].0[row].0[column] = *x;
        }
        self.read(i, n_heads + n_kv_heads + self.kv_head);
        let (block, row) = (position / WIDTH, position % WIDTH);
        for (panel, values) in self.vector.chunks(WIDTH).enumerate() {
            let block = &mut self.values[panel * n_panels(self.capacity) + block];
            if row == 0 {
                // What another text left here is weighed with 0, which must make 0 of it.
                *block = Whole([Row::ZERO; WIDTH]);
            }
            block.0[row].0[..values.len()].copy_from_slice(values);
        }
    }

    /// Gathers values for some of the queries.
    #[inline(always)]
    #[allow(clippy::cast_precision_loss, reason = "heads are far below 2^24 wide")]
    fn gather<S: Simd>(&mut self, simd: S, queries: Range<usize>) {
        let Heads { head_dim, norms, .. } = self.heads;
        let group = self.heads.group();
        let dim_panels = n_panels(head_dim);
        let (n, n_queries) = (queries.len(), self.t * group);
        let scale = 1.0 / (head_dim as f32).sqrt();
        for i in 0..n {
            let query = queries.start + i;
            self.read(query / group, self.kv_head * group + query % group);
            self.prepare(norms.map(|[q, _]| q), self.start + query / group);
            self.vector.iter_mut().for_each(|x| *x *= scale);
            write_columns(self.scores, n, i, 0, self.vector);
        }
        let (q, scores) = self.scores.split_at_mut(dim_panels * n);
        // What a wider tile left behind the last dimension must not count.
        for row in &mut q[(dim_panels - 1) * n..] {
            row.0[head_dim - (dim_panels - 1) * WIDTH..].fill(0.0);
        }
        let visible = |query: usize| self.start + query / group + 1;
        let seen_panels = n_panels(visible(queries.end - 1));
        let scores = &mut scores[..seen_panels * n];
        let keys = self.keys.chunks_exact(dim_panels);
        for (scores, keys) in scores.chunks_exact_mut(n).zip(keys) {
            multiply(simd, keys, q, scores, Nothing);
        }
        for i in 0..n {
            softmax::<S>(scores, n, i, visible(queries.start + i));
        }
        let values = self.values.chunks_exact(n_panels(self.capacity));
        for (gathered, values) in self.gathered.chunks_exact_mut(n_queries).zip(values) {
            let out = &mut gathered[queries.clone()];
            multiply(simd, &values[..seen_panels], scores, out, Nothing);
        }
    }

    /// Reads head `head` of the new position `i`, counted over queries, keys and values.
    #[inline(always)]
    fn read(&mut self, i: usize, head: usize) {
        let first = head * self.heads.head_dim;
        read_columns(self.qkv, self.n_rows, self.first_row + i, first, self.vector);
    }

    /// Norms and turns the vector that was read, as it was configured.
    #[inline(always)]
    fn prepare(&mut self, norm: Option<&[f32]>, position: usize) {
        if let Some(weight) = norm {
            rms_norm(self.vector, weight, self.heads.epsilon);
        }
        if let Some(Rotation { cos, sin }) = self.heads.rotation {
            let half = self.heads.head_dim / 2;
            let angles = position * half..(position + 1) * half;
            let (a, b) = self.vector.split_at_mut(half);
            let angles = cos[angles.clone()].iter().zip(&sin[angles]);
            for ((a, b), (cos, sin)) in a.iter_mut().zip(b).zip(angles) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}
