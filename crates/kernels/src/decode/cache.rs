//! The KV cache: the keys and values of all positions processed so far, as packed matrices.

use std::ops::Range;

use rayon::prelude::*;

use super::pages::Pages;
use crate::gemm::{PackedRef, Row, WIDTH, n_panels};

/// The keys and values of all layers, for several samples. The memory of a sample follows its positions: it doubles when
/// they no longer fit, and is moved to a smaller place when most of them are dropped.
///
/// For each head, positions are the columns of the key matrix and the rows of the value matrix: queries times keys
/// gives attention scores, and attention weights times values gives the weighted sums of values.
#[derive(Debug)]
pub struct Cache {
    samples: Vec<Sample>,
    capacity: usize,
    n_layers: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

/// The keys and values of one sample, ordered by layer and head.
#[derive(Debug)]
pub(crate) struct Sample {
    keys: Pages,
    values: Pages,
    shape: HeadShape,
    len: usize,
}

/// The layout of the keys, or values, of one head, as rows of packed panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadShape {
    /// The number of positions that the memory holds.
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

impl Sample {
    /// The number of positions in the cache.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn shape(&self) -> HeadShape {
        self.shape
    }

    /// The keys and values of the heads of a layer.
    pub(crate) fn layer(&mut self, layer: usize, n_kv_heads: usize) -> [&mut [Row]; 2] {
        let n = n_kv_heads * self.shape.rows();
        [&mut self.keys, &mut self.values].map(|rows| &mut rows[layer * n..][..n])
    }

    /// Replaces the positions by the first `len` ones of another sample.
    fn fill(&mut self, from: &Self, len: usize) {
        self.len = len;
        if len == 0 {
            return;
        }
        let (shape, old) = (self.shape, from.shape);
        let keys = self.keys.par_chunks_mut(shape.rows()).zip(from.keys.par_chunks(old.rows()));
        let n_rows = n_panels(len) * shape.key_rows();
        keys.for_each(|(keys, from)| keys[..n_rows].copy_from_slice(&from[..n_rows]));
        let values = self.values.par_chunks_mut(shape.value_rows()).zip(from.values.par_chunks(old.value_rows()));
        values.for_each(|(values, from)| values[..len].copy_from_slice(&from[..len]));
    }
}

impl Cache {
    /// An empty cache for up to `capacity` positions of each of `n_samples` samples, in `n_layers` layers of
    /// `n_kv_heads` heads of width `head_dim`.
    pub fn new([n_layers, n_samples]: [usize; 2], capacity: usize, [n_kv_heads, head_dim]: [usize; 2]) -> Self {
        let mut cache = Self { samples: Vec::new(), capacity, n_layers, n_kv_heads, head_dim };
        cache.samples = (0..n_samples).map(|_| cache.sample(0)).collect();
        cache
    }

    /// The bytes of the keys and values of one position in one layer.
    pub fn position_bytes(n_kv_heads: usize, head_dim: usize) -> usize {
        2 * n_kv_heads * n_panels(head_dim) * size_of::<Row>()
    }

    /// The bytes of memory allocated now. A sample takes those of its positions, rounded up to a power of two of at
    /// least 32, and after [`Cache::truncate`] at most twice as many.
    pub fn bytes(&self) -> usize {
        self.samples.iter().map(|sample| size_of_val(&sample.keys[..]) + size_of_val(&sample.values[..])).sum()
    }

    /// The maximum number of positions per sample.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The number of cached positions of a sample.
    pub fn len(&self, sample: usize) -> usize {
        self.samples[sample].len
    }

    /// The number of samples.
    pub fn n_samples(&self) -> usize {
        self.samples.len()
    }

    /// Drops all positions of a sample but the first `n`.
    ///
    /// # Panics
    /// If the sample has fewer than `n` positions.
    pub fn truncate(&mut self, sample: usize, n: usize) {
        assert!(n <= self.len(sample), "{n} of {} positions", self.len(sample));
        self.samples[sample].len = n;
        if self.samples[sample].shape.capacity > 2 * self.rounded(n) {
            self.copy(sample, sample, n);
        }
    }

    /// Records that `n` positions of a sample were appended in every layer.
    pub fn advance(&mut self, sample: usize, n: usize) {
        self.samples[sample].len += n;
    }

    /// Replaces the positions of sample `to` by the first `len` positions of sample `from`.
    ///
    /// # Panics
    /// If sample `from` has fewer than `len` positions.
    pub fn copy(&mut self, from: usize, to: usize, len: usize) {
        assert!(len <= self.len(from), "{len} of {} positions", self.len(from));
        let capacity = self.rounded(len);
        if let Ok([from, to]) = self.samples.get_disjoint_mut([from, to])
            && to.shape.capacity == capacity
        {
            to.fill(from, len);
        } else {
            self.samples[to] = self.copied(from, len, capacity);
        }
    }

    /// Makes room for `n` more positions of a sample and returns the number of positions for which there is memory.
    ///
    /// # Panics
    /// If the sample would exceed the cache's capacity.
    pub(crate) fn reserve(&mut self, sample: usize, n: usize) -> usize {
        let len = self.len(sample);
        assert!(len + n <= self.capacity, "{len} and {n} positions in a cache of {}", self.capacity);
        if len + n > self.samples[sample].shape.capacity {
            self.samples[sample] = self.copied(sample, len, self.rounded(len + n));
        }
        self.samples[sample].shape.capacity
    }

    pub(crate) fn samples_mut(&mut self, range: Range<usize>) -> &mut [Sample] {
        &mut self.samples[range]
    }

    /// The number of positions for which a sample of `n` positions has memory.
    fn rounded(&self, n: usize) -> usize {
        if n == 0 { 0 } else { n.max(WIDTH).next_power_of_two().min(self.capacity) }
    }

    fn sample(&self, capacity: usize) -> Sample {
        let shape = HeadShape { capacity, head_dim: self.head_dim };
        let zeros = || Pages::zeros(self.n_layers * self.n_kv_heads * shape.rows());
        Sample { keys: zeros(), values: zeros(), shape, len: 0 }
    }

    /// The first `len` positions of a sample, in memory for `capacity` positions.
    fn copied(&self, sample: usize, len: usize, capacity: usize) -> Sample {
        let mut copy = self.sample(capacity);
        copy.fill(&self.samples[sample], len);
        copy
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "values are copied, not computed")]
mod tests {
    use super::*;

    /// The scalar of a key or value.
    fn scalar(position: usize, layer: usize) -> f32 {
        (position + 1000 * layer) as f32
    }

    /// Appends positions to a sample of 2 layers and 2 heads of width 50.
    fn append(cache: &mut Cache, sample: usize, n: usize) {
        let start = cache.len(sample);
        cache.reserve(sample, n);
        let one = &mut cache.samples_mut(sample..sample + 1)[0];
        let shape = one.shape();
        for layer in 0..2 {
            let [keys, values] = one.layer(layer, 2);
            for (keys, values) in keys.chunks_mut(shape.rows()).zip(values.chunks_mut(shape.rows())) {
                for position in start..start + n {
                    let key = [scalar(position, layer); 50];
                    shape.write([&mut *keys, &mut *values], position, [&key, &key]);
                }
            }
        }
        cache.advance(sample, n);
    }

    /// Checks that a sample holds the first positions.
    fn check(cache: &mut Cache, sample: usize) {
        let len = cache.len(sample);
        let one = &mut cache.samples_mut(sample..sample + 1)[0];
        let shape = one.shape();
        for layer in 0..2 {
            let [keys, values] = one.layer(layer, 2);
            for (keys, values) in keys.chunks(shape.rows().max(1)).zip(values.chunks(shape.rows().max(1))) {
                for position in 0..len {
                    let key = shape.keys(keys, len).panel(position / WIDTH)[49][position % WIDTH];
                    let value = shape.values(values, len).panel(1)[position][17];
                    assert_eq!([key, value], [scalar(position, layer); 2], "{position} of {len}, layer {layer}");
                }
            }
        }
    }

    #[test]
    fn cache_copies_and_truncates_single_samples() {
        let mut cache = Cache::new([2, 3], 40, [2, 50]);
        append(&mut cache, 0, 37);
        cache.copy(0, 2, 37);
        cache.copy(0, 1, 0);
        cache.truncate(0, 20);
        assert_eq!([cache.len(0), cache.len(1), cache.len(2)], [20, 0, 37]);
        (0..3).for_each(|sample| check(&mut cache, sample));
    }

    #[test]
    fn memory_of_cache_follows_its_positions() {
        let mut cache = Cache::new([2, 3], 1000, [2, 50]);
        assert_eq!(cache.bytes(), 0, "empty samples take no memory");
        let position = 2 * Cache::position_bytes(2, 50);
        // Keys and values of 50 scalars, padded to 64, for each layer and head.
        assert_eq!(position, 2 * 2 * 2 * 64 * 4);
        for n in 1..=1000 {
            append(&mut cache, 1, 1);
            assert!(cache.bytes() <= position * (2 * n).clamp(32, 1024), "{n} positions: {} bytes", cache.bytes());
        }
        check(&mut cache, 1);
        assert_eq!(cache.bytes(), position * 1024, "whole panels");
        for n in (0..1000).rev().step_by(9) {
            cache.truncate(1, n);
            check(&mut cache, 1);
            assert!(cache.bytes() <= position * (4 * n).clamp(64, 1024), "{n} positions: {} bytes", cache.bytes());
        }
        cache.truncate(1, 0);
        assert_eq!(cache.bytes(), 0, "a sample that is dropped gives all of it back");
        append(&mut cache, 0, 100);
        cache.copy(0, 2, 33);
        check(&mut cache, 2);
        assert_eq!(cache.bytes(), position * (128 + 64));
    }
}
