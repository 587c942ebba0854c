//! Heads in the fused projection, normed and rotated as they are read, and their gradients as they are written.

#![allow(
    clippy::inline_always,
    reason = "what is called in an inner loop must have the instructions of its caller's SIMD level"
)]

use crate::gemm::{Matrix, MatrixMut};
use crate::rows::Norm;

/// How the heads lie in a projection's rows: H of queries, Hkv of keys, Hkv of values, D numbers each.
#[allow(clippy::struct_field_names, reason = "the names of the configuration")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadLayout {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Rows: positions.
    pub(crate) t: usize,
}

impl HeadLayout {
    /// Numbers in a row of the projection.
    pub(crate) fn row(self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Query heads that share a key head.
    pub(crate) fn group(self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// What scores are multiplied with: `1 / sqrt(D)`.
    #[allow(clippy::cast_precision_loss, reason = "a head has far fewer than 2^24 dimensions")]
    pub(crate) fn scale(self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }
}

/// What is done to queries and keys before they meet.
#[derive(Clone, Copy)]
pub(crate) struct Prepared<'a> {
    pub(crate) heads: HeadLayout,
    /// Numbers from one row of the projection to the next.
    pub(crate) row_step: usize,
    /// Cosines and sines, `[T, D / 2]`.
    pub(crate) rotation: Option<[&'a [f32]; 2]>,
    /// Weights of the queries' and the keys' norm, `[D]`.
    pub(crate) norms: Option<[&'a [f32]; 2]>,
    pub(crate) norm: Norm,
}

impl<'a> Prepared<'a> {
    /// Whether nothing is done to them.
    fn is_as_it_lies(&self) -> bool {
        self.rotation.is_none() && self.norms.is_none()
    }

    /// Memory for the queries or keys of a head.
    pub(crate) fn buffer(&self) -> Vec<f32> {
        vec![0.0; if self.is_as_it_lies() { 0 } else { self.heads.t * self.heads.head_dim }]
    }

    /// The queries of a head, `[T, D]`: as they lie if there is nothing to do, else in `buffer`.
    #[inline(always)]
    pub(crate) fn queries<'b>(&self, qkv: &'b [f32], head: usize, buffer: &'b mut [f32]) -> Matrix<'b> {
        let weight = self.norms.map(|[q, _]| q);
        self.read(self.head(qkv, head), weight, buffer)
    }

    /// The keys of a key head, `[T, D]`.
    #[inline(always)]
    pub(crate) fn keys<'b>(&self, qkv: &'b [f32], kv_head: usize, buffer: &'b mut [f32]) -> Matrix<'b> {
        let weight = self.norms.map(|[_, k]| k);
        self.read(self.head(qkv, self.heads.n_heads + kv_head), weight, buffer)
    }

    /// The values of a key head, `[T, D]`.
    pub(crate) fn values<'b>(&self, qkv: &'b [f32], kv_head: usize) -> Matrix<'b> {
        self.head(qkv, self.heads.n_heads + self.heads.n_kv_heads + kv_head)
    }

    /// Turns the gradient of a head's prepared queries into that of the projection's, and adds to that of the
    /// norm's weight.
    #[inline(always)]
    pub(crate) fn queries_backward(
        &self,
        qkv: &[f32],
        head: usize,
        gradient: &mut MatrixMut<'_>,
        grad_weight: &mut [f32],
    ) {
        let weight = self.norms.map(|[q, _]| q);
        self.backward(self.head(qkv, head), weight, gradient, grad_weight);
    }

    /// As [`Prepared::queries_backward`], of a key head's keys.
    #[inline(always)]
    pub(crate) fn keys_backward(
        &self,
        qkv: &[f32],
        kv_head: usize,
        gradient: &mut MatrixMut<'_>,
        grad_weight: &mut [f32],
    ) {
        let weight = self.norms.map(|[_, k]| k);
        let keys = self.head(qkv, self.heads.n_heads + kv_head);
        self.backward(keys, weight, gradient, grad_weight);
    }

    /// One of the projection's H + 2 Hkv heads, `[T, D]`.
    fn head<'b>(&self, qkv: &'b [f32], head: usize) -> Matrix<'b> {
        let HeadLayout { head_dim, t, .. } = self.heads;
        Matrix::within(&qkv[head * head_dim..], [t, head_dim], self.row_step)
    }

    #[inline(always)]
    fn read<'b>(&self, head: Matrix<'b>, weight: Option<&[f32]>, buffer: &'b mut [f32]) -> Matrix<'b> {
        if self.is_as_it_lies() {
            return head;
        }
        let HeadLayout { head_dim, t, .. } = self.heads;
        for (position, out) in buffer.chunks_exact_mut(head_dim).enumerate() {
            let x = head.row(position);
            match weight {
                None => out.copy_from_slice(x),
                Some(weight) => self.norm.forward(x, weight, out),
            }
            if let Some((cos, sin)) = self.angles(position) {
                rotate(out, cos, sin, |sin| sin);
            }
        }
        Matrix::new(buffer, [t, head_dim])
    }

    #[inline(always)]
    fn backward(
        &self,
        head: Matrix<'_>,
        weight: Option<&[f32]>,
        gradient: &mut MatrixMut<'_>,
        grad_weight: &mut [f32],
    ) {
        if self.is_as_it_lies() {
            return;
        }
        for position in 0..self.heads.t {
            let gradient = gradient.row(position);
            if let Some((cos, sin)) = self.angles(position) {
                rotate(gradient, cos, sin, |sin| -sin);
            }
            if let Some(weight) = weight {
                self.norm.backward(head.row(position), weight, gradient, grad_weight, &mut []);
            }
        }
    }

    /// Cosines and sines of a position.
    fn angles(&self, position: usize) -> Option<(&'a [f32], &'a [f32])> {
        let half = self.heads.head_dim / 2;
        let [cos, sin] = self.rotation?;
        let row = position * half..(position + 1) * half;
        Some((&cos[row.clone()], &sin[row]))
    }
}

/// Turns the pairs `(i, i + D / 2)` of a vector.
///
/// Source: Su et al. 2021, "RoFormer", eq. 34; halves as in [`rotate`].
#[inline(always)]
fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32], direction: impl Fn(f32) -> f32) {
    let (first, second) = x.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        let sin = direction(*sin);
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
