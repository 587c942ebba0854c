//! The KV cache: the keys and values of all positions processed so far, as packed matrices.

use std::ops::Range;

use super::pages::Pages;
use crate::gemm::{PackedRef, Row, WIDTH, n_panels};

/// The keys and values of all layers, for several samples, in memory that is allocated once.
///
/// For each head, positions are the columns of the key matrix and the rows of the value matrix: queries times keys
/// gives attention scores, and attention weights times values gives the weighted sums of values.
#[derive(Debug)]
pub struct Cache {
    keys: Pages,
    values: Pages,
    lens: Vec<usize>,
    shape: HeadShape,
    n_layers: usize,
    n_kv_heads: usize,
}

/// The layout of the keys, or values, of one head, as rows of packed panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadShape {
    pub(crate) capacity: usize,
    pub(crate) head_dim: usize,
}

impl HeadShape {
    /// The number of rows in a panel of keys: one per dimension of the head, padded.
    fn key_rows(self) -> usize {
        n_panels(self.head_dim) * WIDTH
    }

    /// The number of rows in a panel of values: one per position, padded.
    fn value_rows(self) -> usize {
        n_panels(self.capacity) * WIDTH
    }

    /// The number of rows per head, which is the same for keys and values.
    pub(crate) fn rows(self) -> usize {
        n_panels(self.capacity) * self.key_rows()
    }

    /// The keys of the first `n` positions, `[D, n]`.
    pub(crate) fn keys(self, rows: &[Row], n: usize) -> PackedRef<'_> {
        PackedRef::within(rows, [self.head_dim, n], self.key_rows())
    }

    /// The values of the first `n` positions, `[n, D]`.
    pub(crate) fn values(self, rows: &[Row], n: usize) -> PackedRef<'_> {
        PackedRef::within(rows, [n, self.head_dim], self.value_rows())
    }

    #[inline(always)]
    pub(crate) fn write(self, [keys, values]: [&mut [Row]; 2], position: usize, [key, value]: [&[f32]; 2]) {
        let column = position % WIDTH;
        let keys = &mut keys[position / WIDTH * self.key_rows()..];
        for (row, x) in keys.iter_mut().zip(key) {
            row[column] = *x;
        }
        for (panel, x) in value.chunks(WIDTH).enumerate() {
            values[panel * self.value_rows() + position][..x.len()].copy_from_slice(x);
        }
    }
}

impl Cache {
    /// Allocates a cache for `capacity` positions of each of `n_samples` samples, in `n_layers` layers of `n_kv_heads`
    /// heads of width `head_dim`.
    pub fn new([n_layers, n_samples]: [usize; 2], capacity: usize, [n_kv_heads, head_dim]: [usize; 2]) -> Self {
        let shape = HeadShape { capacity, head_dim };
        let zeros = || Pages::zeros(n_layers * n_samples * n_kv_heads * shape.rows());
        let lens = vec![0; n_samples];
        Self { keys: zeros(), values: zeros(), lens, shape, n_layers, n_kv_heads }
    }

    /// The maximum number of positions per sample.
    pub fn capacity(&self) -> usize {
        self.shape.capacity
    }

    /// The number of cached positions of a sample.
    pub fn len(&self, sample: usize) -> usize {
        self.lens[sample]
    }

    /// The number of samples.
    pub fn n_samples(&self) -> usize {
        self.lens.len()
    }

    /// Drops all positions of a sample but the first `n`.
    ///
    /// # Panics
    /// If the sample has fewer than `n` positions.
    pub fn truncate(&mut self, sample: usize, n: usize) {
        assert!(n <= self.lens[sample], "{n} of {} positions", self.lens[sample]);
        self.lens[sample] = n;
    }

    /// Records that `n` positions of a sample were appended in every layer.
    pub fn advance(&mut self, sample: usize, n: usize) {
        self.lens[sample] += n;
    }

    /// Replaces the positions of sample `to` by the first `len` positions of sample `from`.
    ///
    /// # Panics
    /// If sample `from` has fewer than `len` positions.
    pub fn copy(&mut self, from: usize, to: usize, len: usize) {
        assert!(len <= self.lens[from], "{len} of {} positions", self.lens[from]);
        let shape = self.shape;
        let sample_rows = self.n_kv_heads * shape.rows();
        for layer in 0..self.n_layers {
            let first_row = |sample| (layer * self.lens.len() + sample) * sample_rows;
            let (from, to) = (first_row(from), first_row(to));
            for head in (0..sample_rows).step_by(shape.rows()) {
                let keys = from + head..from + head + n_panels(len) * shape.key_rows();
                self.keys.copy_within(keys, to + head);
                for panel in (head..head + shape.rows()).step_by(shape.value_rows()) {
                    self.values.copy_within(from + panel..from + panel + len, to + panel);
                }
            }
        }
        self.lens[to] = len;
    }

    pub(crate) fn shape(&self) -> HeadShape {
        self.shape
    }

    /// The keys and values of a layer for a range of samples, ordered by sample and head, and the number of positions
    /// of each of these samples.
    pub(crate) fn layer(&mut self, layer: usize, samples: Range<usize>) -> ([&mut [Row]; 2], &[usize]) {
        let sample_rows = self.n_kv_heads * self.shape.rows();
        let start = layer * self.lens.len();
        let rows = (start + samples.start) * sample_rows..(start + samples.end) * sample_rows;
        ([&mut self.keys[rows.clone()], &mut self.values[rows]], &self.lens[samples])
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "values are copied, not computed")]
mod tests {
    use super::*;

    #[test]
    fn cache_copies_and_truncates_single_samples() {
        let mut cache = Cache::new([2, 3], 40, [2, 50]);
        let shape = cache.shape();
        let key = |position: usize, layer: usize| vec![(position + 100 * layer) as f32; 50];
        for layer in 0..2 {
            let ([keys, values], _) = cache.layer(layer, 0..1);
            for (keys, values) in keys.chunks_mut(shape.rows()).zip(values.chunks_mut(shape.rows())) {
                for position in 0..37 {
                    let key = key(position, layer);
                    shape.write([&mut *keys, &mut *values], position, [&key, &key]);
                }
            }
        }
        cache.advance(0, 37);
        cache.copy(0, 2, 37);
        cache.copy(0, 1, 0);
        cache.truncate(0, 20);
        assert_eq!([cache.len(0), cache.len(1), cache.len(2)], [20, 0, 37]);
        for layer in 0..2 {
            let ([keys, values], _) = cache.layer(layer, 2..3);
            for (keys, values) in keys.chunks(shape.rows()).zip(values.chunks(shape.rows())) {
                for position in 0..37 {
                    let want = key(position, layer)[0];
                    let key = shape.keys(keys, 37).panel(position / WIDTH)[49][position % WIDTH];
                    let value = shape.values(values, 37).panel(1)[position][17];
                    assert_eq!([key, value], [want, want], "{position} of layer {layer}");
                }
            }
            let (other, _) = cache.layer(layer, 1..2);
            assert!(other.iter().all(|rows| rows.as_flattened().iter().all(|x| *x == 0.0)));
        }
    }
}
