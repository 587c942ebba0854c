//! The feed-forward layer: two projections with an activation between them.

pub(crate) mod epilogue;
mod fused;

use burn::tensor::Tensor;

use crate::activation::{self, Activation};
use crate::linear::composed_linear;
use crate::memory::bytes;
use crate::{MatmulPrecision, Operations, TrainingMemory, flex};

/// The weight `[K, M]` and the bias `[M]` of a projection.
#[derive(Clone, Debug)]
pub struct Layer {
    /// `[K, M]`
    pub weight: Tensor<2>,
    /// `[M]`
    pub bias: Option<Tensor<1>>,
}

/// The projections of a feed-forward layer. Either all projections have a bias, or none has.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// The up projection, `[C, F]`.
    pub up: Layer,
    /// The gate projection, `[C, F]`, if the activation [is gated](Activation::is_gated).
    pub gate: Option<Layer>,
    /// The down projection, `[F, C]`.
    pub down: Layer,
    /// The activation between the projections.
    pub activation: Activation,
    /// The precision of the matrix products.
    pub precision: MatmulPrecision,
}

/// `down(activation(up(x)))`; with SwiGLU, `down(silu(gate(x)) * up(x))`, and with GEGLU the same with GELU.
///
/// Source: Vaswani et al. 2017, section 3.3; SwiGLU: Shazeer 2020, "GLU Variants Improve Transformer", eq. 6.
///
/// # Shapes
/// `x: [B, T, C]` -> `[B, T, C]`
///
/// # Panics
/// If a gated activation has no gate, or an activation without gates has one.
pub fn mlp(x: Tensor<3>, mlp: Mlp) -> Tensor<3> {
    assert_eq!(mlp.gate.is_some(), mlp.activation.is_gated(), "a gate for {:?}", mlp.activation);
    if flex::is_for(&x) {
        return fused::mlp(x, mlp);
    }
    composed_mlp(x, mlp)
}

/// The memory of [`mlp`] in training: for `rows` `[B, T]` and projections `[C, F]`. Its output is not saved.
pub fn training_memory(
    operations: Operations,
    activation: Activation,
    [b, t]: [usize; 2],
    [c, f]: [usize; 2],
) -> TrainingMemory {
    let (x, hidden, weight) = (bytes([b, t, c]), bytes([b, t, f]), bytes([c, f]));
    match operations {
        // The activations, and the derivatives of the activation function. The backward pass holds the gradients of the
        // weights.
        Operations::Fused => {
            let (n_derivatives, n_weights) = if activation.is_gated() { (2.0, 3.0) } else { (1.0, 2.0) };
            TrainingMemory {
                saved: (1.0 + n_derivatives) * hidden,
                temporary: x + n_derivatives * hidden + n_weights * weight,
            }
        }
        // Burn's autodiff saves the factors of every product and the inputs of activations.
        Operations::Composed => {
            let n_hidden = match activation {
                Activation::Gelu | Activation::GeluTanh => 4.0,
                Activation::ReluSquared => 3.0,
                Activation::Swiglu => 5.0, // input, sigmoid and output of the gate; the other factor; the product
                Activation::Geglu => 6.0,  // those of GELU, the other factor, and the product
            };
            TrainingMemory { saved: n_hidden * hidden, temporary: hidden + weight }
        }
    }
}

pub(crate) fn composed_mlp(x: Tensor<3>, mlp: Mlp) -> Tensor<3> {
    let Mlp { up, gate, down, activation: kind, precision: _ } = mlp;
    let apply = |layer: Layer, x| composed_linear(x, layer.weight, layer.bias);
    let gate = gate.map(|gate| apply(gate, x.clone())); // [B, T, F]
    let hidden = apply(up, x); // [B, T, F]
    apply(down, activation::composed(kind, hidden, gate)) // [B, T, C]
}
