//! The KV cache: the keys and values of earlier positions, kept so that a new token needs a forward pass over one
//! position only.

use burn::tensor::{Device, Tensor, assert_shape};

/// The keys and values of one attention layer, in buffers that are allocated once.
#[derive(Clone, Debug)]
pub struct LayerCache {
    keys: Tensor<4>,   // [B, Hkv, capacity, D]
    values: Tensor<4>, // [B, Hkv, capacity, D]
    len: usize,
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
        let [b, h_kv, capacity, d] = self.keys.dims();
        let [_, _, t, _] = k.dims();
        assert_shape!(k, [b, h_kv, t, d]);
        assert_shape!(v, [b, h_kv, t, d]);
        let end = self.len + t;
        assert!(end <= capacity, "{end} positions do not fit a cache of {capacity}");
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
        let buffer = || Tensor::zeros([b, h_kv, capacity, d], device);
        let layer = || LayerCache { keys: buffer(), values: buffer(), len: 0 };
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

    /// Drops all positions but the first `n` and keeps the buffers.
    pub fn truncate(&mut self, n: usize) {
        self.layers.iter_mut().for_each(|layer| layer.len = layer.len.min(n));
    }

    pub(crate) fn layer(&mut self, layer_idx: usize) -> &mut LayerCache {
        &mut self.layers[layer_idx]
    }
}
