//! The KV cache: the keys and values of earlier positions, kept so that a new token needs a forward pass over one
//! position only.

use burn::tensor::{Device, Tensor, assert_shape};

/// The positions that a buffer holds at least.
const LEAST: usize = 32;

/// The keys and values of one attention layer, in buffers that double when they are full.
#[derive(Clone, Debug)]
pub struct LayerCache {
    keys: Tensor<4>,   // [B, Hkv, room, D]
    values: Tensor<4>, // [B, Hkv, room, D]
    len: usize,
    capacity: usize,
}

impl LayerCache {
    /// Appends the keys and values of the newest positions and returns those of all positions, oldest first.
    ///
    /// # Shapes
    /// `k, v: [B, Hkv, T, D]` -> each `[B, Hkv, len + T, D]`
    ///
    /// # Panics
    /// If the new positions exceed the capacity.
    pub fn append(&mut self, k: Tensor<4>, v: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let [b, h_kv, room, d] = self.keys.dims();
        let [_, _, t, _] = k.dims();
        assert_shape!(k, [b, h_kv, t, d]);
        assert_shape!(v, [b, h_kv, t, d]);
        let end = self.len + t;
        assert!(end <= self.capacity, "{end} positions do not fit a cache of {}", self.capacity);
        if end > room {
            self.resize(end);
        }
        let at = [0..b, 0..h_kv, self.len..end, 0..d];
        // `slice_assign` writes in place only if it holds the last reference to the tensor, so the cache drops its
        // reference first.
        let empty = || Tensor::empty([0, 0, 0, 0], &k.device());
        let (keys, values) = (std::mem::replace(&mut self.keys, empty()), std::mem::replace(&mut self.values, empty()));
        self.keys = keys.slice_assign(at.clone(), k);
        self.values = values.slice_assign(at, v);
        self.len = end;
        (self.keys.clone().narrow(2, 0, end), self.values.clone().narrow(2, 0, end))
    }

    /// Moves what is cached to buffers for `n` positions, rounded up to a power of two.
    fn resize(&mut self, n: usize) {
        let room = if n == 0 { 0 } else { n.max(LEAST).next_power_of_two().min(self.capacity) };
        for buffer in [&mut self.keys, &mut self.values] {
            let [b, h_kv, _, d] = buffer.dims();
            let larger = Tensor::empty([b, h_kv, room, d], &buffer.device()); // what is not written is not read
            *buffer = match self.len {
                0 => larger,
                len => larger.slice_assign([0..b, 0..h_kv, 0..len, 0..d], buffer.clone().narrow(2, 0, len)),
            };
        }
    }
}

/// The keys and values of all attention layers of a model, for one sequence per batch row.
#[derive(Clone, Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
}

impl KvCache {
    /// An empty cache of `capacity` positions in each of `n_layers` layers.
    ///
    /// `[b, h_kv, d]` are the batch size, the number of key/value heads and the head dimension.
    pub fn new(n_layers: usize, capacity: usize, [b, h_kv, d]: [usize; 3], device: &Device) -> Self {
        let buffer = || Tensor::empty([b, h_kv, 0, d], device);
        let layer = || LayerCache { keys: buffer(), values: buffer(), len: 0, capacity };
        Self { layers: (0..n_layers).map(|_| layer()).collect() }
    }

    /// The number of cached positions.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.len)
    }

    /// Whether nothing is cached yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all positions but the first `n`, and with the last of them the buffers.
    pub fn truncate(&mut self, n: usize) {
        for layer in &mut self.layers {
            layer.len = layer.len.min(n);
            if layer.len == 0 {
                layer.resize(0);
            }
        }
    }

    /// The bytes of the buffers.
    pub fn bytes(&self) -> usize {
        let buffers = self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]);
        buffers.map(|buffer| buffer.shape().num_elements() * size_of::<f32>()).sum()
    }

    pub(crate) fn layer(&mut self, layer_idx: usize) -> &mut LayerCache {
        &mut self.layers[layer_idx]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_follow_cached_positions() {
        let device = Device::flex();
        let mut cache = KvCache::new(2, 100, [1, 3, 4], &device);
        assert_eq!(cache.bytes(), 0);
        let position = 2 * 2 * 3 * 4 * 4; // layers, keys and values, heads, dimensions, bytes
        for n in 1..=100_usize {
            for layer in 0..2 {
                let new = Tensor::<4>::full([1, 3, 1, 4], n as f32, &device);
                let (keys, values) = cache.layer(layer).append(new.clone(), new);
                for all in [keys, values] {
                    let scalars: Vec<f32> = all.max_dim(3).max_dim(1).reshape([-1]).try_into_vec_as().expect("f32");
                    assert!(scalars.into_iter().eq((1..=n).map(|n| n as f32)), "{n} positions in order");
                }
            }
            assert_eq!((cache.len(), cache.bytes()), (n, position * n.max(32).next_power_of_two().min(100)));
        }
        cache.truncate(40);
        assert_eq!((cache.len(), cache.bytes()), (40, position * 100));
        cache.truncate(0);
        assert_eq!((cache.len(), cache.bytes()), (0, 0));
    }
}
