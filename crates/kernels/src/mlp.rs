//! The feed-forward layer: two projections, with an activation between them.

use burn::tensor::{Tensor, module};

use super::MatmulPrecision;
use super::activation::{gelu, relu_squared, silu};
use crate::{flex, fused};

/// The weight `[K, M]` and the bias `[M]` of a projection.
#[derive(Clone, Debug)]
pub struct Layer {
    /// `[K, M]`
    pub weight: Tensor<2>,
    /// `[M]`
    pub bias: Option<Tensor<1>>,
}

/// What stands between the projections.
#[allow(clippy::large_enum_variant, reason = "one of them for a layer and a pass, and it is only moved")]
#[derive(Clone, Debug)]
pub enum Activation {
    /// The Gaussian error linear unit.
    Gelu,
    /// The squared rectifier.
    ReluSquared,
    /// The sigmoid linear unit of a gate, times the value; with the gate's projection, `[C, F]`.
    Swiglu(Layer),
}

/// What a feed-forward layer is made of. Either all projections have a bias, or none has.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// `[C, F]`
    pub expand: Layer,
    /// Between the projections.
    pub activation: Activation,
    /// `[F, C]`
    pub contract: Layer,
    /// Of the products with the projections.
    pub precision: MatmulPrecision,
}

/// `contract(activation(expand(x)))`; with SwiGLU, `contract(silu(gate(x)) * expand(x))`.
///
/// Source: Vaswani et al. 2017, section 3.3; SwiGLU: Shazeer 2020, "GLU Variants Improve Transformer", eq. 6.
///
/// # Shapes
/// `x: [B, T, C]` -> `[B, T, C]`
#[must_use]
pub fn mlp(x: Tensor<3>, mlp: Mlp) -> Tensor<3> {
    if flex::is_for(&x) {
        return fused::mlp::mlp(x, mlp);
    }
    composed_mlp(x, mlp)
}

/// [`mlp`] by burn's own operations.
pub(super) fn composed_mlp(x: Tensor<3>, mlp: Mlp) -> Tensor<3> {
    let Mlp { expand, activation, contract, precision: _ } = mlp;
    let apply = |layer: Layer, x| module::linear(x, layer.weight, layer.bias);
    let hidden = match activation {
        Activation::Gelu => gelu(apply(expand, x)),
        Activation::ReluSquared => relu_squared(apply(expand, x)),
        Activation::Swiglu(gate) => silu(apply(gate, x.clone())) * apply(expand, x),
    }; // [B, T, F]
    apply(contract, hidden) // [B, T, C]
}
