//! Keys and values of the positions already read, as matrices to multiply with.

use std::ops::Range;

use super::block::Whole;
use super::pages::Pages;
use super::{WIDTH, n_panels};

/// The keys and values of all layers, for some samples, in room that is allocated once.
///
/// Of each head, positions are columns of the keys and rows of the values: a product with queries gives scores,
/// and one with weights what is gathered.
#[derive(Debug)]
pub struct Cache {
    keys: Pages<Whole>,
    values: Pages<Whole>,
    lens: Vec<usize>,
    capacity: usize,
    head_dim: usize,
    n_layers: usize,
    /// Of one sample in one layer.
    n_blocks: usize,
}

/// The part of a [`Cache`] that a layer has of some samples.
pub(super) struct LayerCache<'a> {
    /// Head after head, sample after sample.
    pub(super) keys: &'a mut [Whole],
    /// In the same order.
    pub(super) values: &'a mut [Whole],
    /// How many positions each sample had before.
    pub(super) lens: &'a [usize],
}

impl Cache {
    /// Room for `capacity` positions of `n_samples` samples in `n_layers` layers of `n_kv_heads` heads that are
    /// `head_dim` wide.
    #[must_use]
    pub fn new(
        [n_layers, n_samples]: [usize; 2],
        capacity: usize,
        [n_kv_heads, head_dim]: [usize; 2],
    ) -> Self {
        let n_blocks = n_kv_heads * blocks_of_head(capacity, head_dim);
        let room = || Pages::zeros(n_layers * n_samples * n_blocks);
        Self {
            keys: room(),
            values: room(),
            lens: vec![0; n_samples],
            capacity,
            head_dim,
            n_layers,
            n_blocks,
        }
    }

    /// For how many positions there is room.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many positions sample `sample` has.
    #[must_use]
    pub fn len(&self, sample: usize) -> usize {
        self.lens[sample]
    }

    /// How many samples there are.
    #[must_use]
    pub fn n_samples(&self) -> usize {
        self.lens.len()
    }

    /// Forgets all positions of a sample and keeps the room.
    pub fn clear(&mut self, sample: usize) {
        self.lens[sample] = 0;
    }

    /// Notes that every layer has got `n` more positions of a sample.
    pub fn advance(&mut self, sample: usize, n: usize) {
        self.lens[sample] += n;
    }

    /// Gives sample `to` everything that sample `from` has.
    pub fn copy(&mut self, from: usize, to: usize) {
        let used = n_panels(self.lens[from]);
        let (room, dim_panels) = (n_panels(self.capacity), n_panels(self.head_dim));
        let n_heads = self.n_blocks / (room * dim_panels);
        for layer in 0..self.n_layers {
            let start = |sample: usize| (layer * self.lens.len() + sample) * self.n_blocks;
            let (from, to) = (start(from), start(to));
            for head in (0..n_heads).map(|head| head * room * dim_panels) {
                let keys = from + head..from + head + used * dim_panels;
                self.keys.copy_within(keys, to + head);
                for panel in (0..dim_panels).map(|panel| head + panel * room) {
                    let values = from + panel..from + panel + used;
                    self.values.copy_within(values, to + panel);
                }
            }
        }
        self.lens[to] = self.lens[from];
    }

    pub(super) fn layer(&mut self, layer: usize, samples: Range<usize>) -> LayerCache<'_> {
        let start = layer * self.lens.len();
        let blocks = (start + samples.start) * self.n_blocks..(start + samples.end) * self.n_blocks;
        LayerCache {
            keys: &mut self.keys[blocks.clone()],
            values: &mut self.values[blocks],
            lens: &self.lens[samples],
        }
    }
}

/// Blocks that hold the keys, or the values, of one head.
pub(super) fn blocks_of_head(capacity: usize, head_dim: usize) -> usize {
    n_panels(capacity) * n_panels(head_dim)
}

/// The block of keys with this position and dimension, and its row and column there.
pub(super) fn key_place(position: usize, dim: usize, head_dim: usize) -> (usize, usize, usize) {
    let block = position / WIDTH * n_panels(head_dim) + dim / WIDTH;
    (block, dim % WIDTH, position % WIDTH)
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "numbers are copied here, not computed")]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_what_the_first_has_and_clearing_touches_no_other() {
        let mut cache = Cache::new([2, 3], 40, [2, 50]);
        for layer in 0..2 {
            let part = cache.layer(layer, 0..1);
            part.keys.iter_mut().for_each(|block| block.0[0].0[0] = 1.0 + layer as f32);
            part.values.iter_mut().for_each(|block| block.0[1].0[2] = 5.0 + layer as f32);
        }
        cache.advance(0, 37);
        cache.copy(0, 2);
        cache.clear(0);
        assert_eq!([cache.len(0), cache.len(1), cache.len(2)], [0, 0, 37]);
        for layer in 0..2 {
            let part = cache.layer(layer, 2..3);
            assert!(part.keys.iter().all(|block| block.0[0].0[0] == 1.0 + layer as f32));
            assert!(part.values.iter().all(|block| block.0[1].0[2] == 5.0 + layer as f32));
            let other = cache.layer(layer, 1..2);
            assert!(other.keys.iter().all(|block| block.0[0].0[0] == 0.0));
        }
    }
}
