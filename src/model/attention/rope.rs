//! Rotary position embedding: positions as angles of queries and keys.

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};

use tinderbox_kernels as kernels;

/// The base of the geometric series of wavelengths.
///
/// Source: Su et al. 2021, "RoFormer", section 3.3; the value of Llama 1 and 2.
const THETA: f64 = 10_000.0;

/// The rotation of a range of positions: after it, the product of a query and a key depends on their distance alone.
///
/// Dimension `i` turns together with dimension `i + D / 2` (halves, as in Llama and Qwen checkpoints;
/// the paper pairs neighbours, which is the same up to a fixed permutation of the dimensions).
///
/// Source: Su et al. 2021, "RoFormer", eq. 34.
#[derive(Clone, Debug)]
pub struct Rotation {
    cos: Tensor<4>, // [1, 1, T, D / 2]
    sin: Tensor<4>, // [1, 1, T, D / 2]
}

impl Rotation {
    /// The rotation of `positions` for heads of `head_dim` dimensions.
    ///
    /// # Panics
    /// If `head_dim` is odd.
    pub fn new(positions: Range<usize>, head_dim: usize, device: &Device) -> Self {
        let shape = [1, 1, positions.len(), head_dim / 2];
        let table = |values: Vec<f32>| Tensor::from_data(TensorData::new(values, shape), device);
        let [cos, sin] = Self::tables(positions, head_dim).map(table);
        Self { cos, sin }
    }

    /// Cosines and sines of the angles of `positions`, each `[T, D / 2]`, on the host.
    ///
    /// # Panics
    /// If `head_dim` is odd.
    pub fn tables(positions: Range<usize>, head_dim: usize) -> [Vec<f32>; 2] {
        assert!(head_dim.is_multiple_of(2), "rotary halves need an even head_dim, not {head_dim}");
        let angles: Vec<f64> = positions
            .flat_map(|position| {
                (0..head_dim / 2).map(move |i| position as f64 * THETA.powf(-2.0 * i as f64 / head_dim as f64))
            })
            .collect();
        #[allow(clippy::cast_possible_truncation, reason = "everything is computed in f32")]
        let table = |f: fn(f64) -> f64| angles.iter().map(|angle| f(*angle) as f32).collect();
        [table(f64::cos), table(f64::sin)]
    }

    /// Turns each head's vector by the angle of its position.
    ///
    /// # Shapes
    /// `x: [B, H, T, D]` -> `[B, H, T, D]`
    ///
    /// # Panics
    /// If T or D is not what the rotation was made for.
    pub fn apply(&self, x: Tensor<4>) -> Tensor<4> {
        kernels::rotate(x, self.cos.clone(), self.sin.clone())
    }

    /// Cosines and sines of the angles, each `[1, 1, T, D / 2]`.
    pub fn angles(&self) -> [Tensor<4>; 2] {
        [self.cos.clone(), self.sin.clone()]
    }
}
