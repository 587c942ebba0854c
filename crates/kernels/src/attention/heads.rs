//! Heads in the fused projection: normalized and rotated as they are read, and the reverse for gradients.

use std::ops::Range;

use super::visible;
use crate::flex::in_f32;
use crate::gemm::{Matrix, MatrixMut, WIDTH};
use crate::norm::Norm;

/// The heads of a layer, and the norms and rotation of their queries and keys. A row of the projection has H heads of
/// queries, Hkv of keys and Hkv of values, with D scalars each.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// The number of query heads.
    pub n_heads: usize,
    /// The number of key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The weights of the RMS norms of queries and of keys, `head_dim` scalars each.
    pub norms: Option<[&'a [f32]; 2]>,
    /// The epsilon of these norms.
    pub epsilon: f32,
    /// The rotation of queries and keys.
    pub rotation: Option<Angles<'a>>,
    /// Multiplies the scores; positive, usually [`attention_scale`](crate::attention_scale).
    pub scale: f64,
    /// The cap of scores: see [`softcap`](crate::softcap).
    pub softcap: Option<f64>,
    /// The sliding window: how many keys a query sees, including its own; `None` for all up to its own.
    pub window: Option<usize>,
}

/// The angles of all positions, for the first `2 n_pairs` dimensions of a head.
#[derive(Clone, Copy, Debug)]
pub struct Angles<'a> {
    /// Cosines and sines, each `[capacity, n_pairs]`.
    pub tables: [&'a [f32]; 2],
    /// Half of the number of rotated dimensions.
    pub n_pairs: usize,
}

impl<'a> Angles<'a> {
    /// The angles of the positions from `first` on.
    pub(super) fn from(self, first: usize) -> Self {
        Self { tables: self.tables.map(|table| &table[first * self.n_pairs..]), ..self }
    }

    fn at(self, position: usize) -> [&'a [f32]; 2] {
        self.tables.map(|table| &table[position * self.n_pairs..][..self.n_pairs])
    }
}

impl Heads<'_> {
    /// The length of a row of the projection.
    pub(super) fn row(self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// The number of query heads that share a key head.
    pub(super) fn group(self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// The index, among all heads, of the keys of a key head.
    pub(super) fn keys(self, kv_head: usize) -> usize {
        self.n_heads + kv_head
    }

    /// The index, among all heads, of the values of a key head.
    pub(super) fn values(self, kv_head: usize) -> usize {
        self.n_heads + self.n_kv_heads + kv_head
    }

    /// The factor of scores. It is the reciprocal of a divisor rounded to f32, as `sqrt(D)` is in `1 / sqrt(D)`.
    pub(super) fn scale(self) -> f32 {
        1.0 / in_f32(1.0 / self.scale)
    }

    pub(super) fn cap(self) -> Option<f32> {
        self.softcap.map(in_f32)
    }

    /// The keys that a range of queries sees, extended down to the beginning of a panel.
    pub(super) fn seen_by(self, queries: Range<usize>) -> Range<usize> {
        let first = visible(queries.start, self.window).start;
        first - first % WIDTH..queries.end
    }

    /// The keys that a query sees, counted from key `first` on.
    pub(super) fn visible(self, query: usize, first: usize) -> Range<usize> {
        let Range { start, end } = visible(query, self.window);
        start - first..end - first
    }
}

/// Reads the queries, keys and values of some positions from a projection.
#[derive(Clone, Copy)]
pub(super) struct ProjectedHeads<'a> {
    pub(super) heads: Heads<'a>,
    /// The number of positions, counted from the first of the rotation.
    pub(super) t: usize,
    /// The stride between rows of the projection.
    pub(super) row_step: usize,
}

impl<'a> ProjectedHeads<'a> {
    /// Whether they need neither norm nor rotation.
    fn is_unchanged(&self) -> bool {
        self.heads.rotation.is_none() && self.heads.norms.is_none()
    }

    /// Memory for the queries or keys of a head.
    pub(super) fn buffer(&self) -> Vec<f32> {
        vec![0.0; if self.is_unchanged() { 0 } else { self.t * self.heads.head_dim }]
    }

    /// The queries of a head, or the keys of a [key head](Heads::keys), `[T, D]`: in place if there is nothing to
    /// compute, else in `buffer`.
    #[inline(always)]
    pub(super) fn read<'b>(&self, qkv: &'b [f32], head: usize, buffer: &'b mut [f32]) -> Matrix<'b> {
        let x = self.projected(qkv, head);
        if self.is_unchanged() {
            return x;
        }
        let weight = self.norm_weight(head);
        for (position, out) in buffer.chunks_exact_mut(self.heads.head_dim).enumerate() {
            let x = x.row(position);
            match weight {
                None => out.copy_from_slice(x),
                Some(weight) => self.norm().forward(x, weight, out),
            }
            if let Some(angles) = self.heads.rotation {
                rotate(out, angles.at(position), |sin| sin);
            }
        }
        Matrix::new(buffer, [self.t, self.heads.head_dim])
    }

    /// Replaces the gradient of the result of [`ProjectedHeads::read`] by that of the projection, and adds to that of
    /// the norm's weight.
    #[inline(always)]
    pub(super) fn backward(&self, qkv: &[f32], head: usize, gradient: &mut MatrixMut<'_>, grad_weight: &mut [f32]) {
        if self.is_unchanged() {
            return;
        }
        let (x, weight) = (self.projected(qkv, head), self.norm_weight(head));
        for position in 0..self.t {
            let gradient = gradient.row(position);
            if let Some(angles) = self.heads.rotation {
                rotate(gradient, angles.at(position), |sin| -sin);
            }
            if let Some(weight) = weight {
                self.norm().backward(x.row(position), weight, gradient, grad_weight, &mut []);
            }
        }
    }

    /// One of the projection's H + 2 Hkv heads, `[T, D]`.
    pub(super) fn projected<'b>(&self, qkv: &'b [f32], head: usize) -> Matrix<'b> {
        let head_dim = self.heads.head_dim;
        Matrix::within(&qkv[head * head_dim..], [self.t, head_dim], self.row_step)
    }

    fn norm(&self) -> Norm {
        Norm { centred: false, epsilon: self.heads.epsilon }
    }

    /// The weight of the norm of a head's queries, or of a key head's keys.
    fn norm_weight(&self, head: usize) -> Option<&'a [f32]> {
        self.heads.norms.map(|[q, k]| if head < self.heads.n_heads { q } else { k })
    }
}

/// Rotates the pairs `(i, i + R / 2)` of a vector's first R scalars.
///
/// Source: Su et al. 2021, "RoFormer", eq. 34; halves as in [`rotate`](super::rotate).
#[inline(always)]
fn rotate(x: &mut [f32], [cos, sin]: [&[f32]; 2], direction: impl Fn(f32) -> f32) {
    let (first, second) = x.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        let sin = direction(*sin);
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
