//! The feed-forward layer: the same two-layer network at every position.

use burn::module::Module;
use burn::tensor::Tensor;

use super::Linear;
use super::placeholders::Placeholders;
use super::probe::{Pass, Point, Probe};
use crate::config::ModelConfig;
use tinderbox_kernels::{self as kernels, Activation, mlp::Layer};

/// The feed-forward layer: `down(activation(up(x)))`, or with a gate `down(activation(gate(x)) * up(x))`. Checkpoints call the
/// projections `expand` and `contract`.
///
/// Source: Vaswani et al. 2017, section 3.3; SwiGLU: Shazeer 2020, "GLU Variants Improve Transformer", eq. 6.
#[derive(Module, Debug)]
pub struct Mlp {
    /// The up projection, `[C, F]`.
    pub expand: Linear,
    /// The gate projection, `[C, F]`; only in a SwiGLU or GEGLU.
    pub gate: Option<Linear>,
    /// The down projection, `[F, C]`.
    pub contract: Linear,
    #[module(skip)]
    pub(crate) activation: Activation,
}

impl Mlp {
    pub(crate) fn new(config: &ModelConfig, mlp: &Placeholders<'_>) -> Self {
        Self {
            expand: Linear::placeholder(mlp, "expand").expect("the table has both projections of every MLP"),
            gate: Linear::placeholder(mlp, "gate"),
            contract: Linear::placeholder(mlp, "contract").expect("the table has both projections of every MLP"),
            activation: config.mlp,
        }
    }

    /// Applies the layer to each position.
    ///
    /// # Shapes
    /// `x: [B, T, C]` -> `[B, T, C]`
    pub fn forward<P: Probe>(&self, x: Tensor<3>, pass: &mut Pass<'_, P>) -> Tensor<3> {
        let mut layers = [&self.expand, &self.contract].into_iter().chain(&self.gate);
        if !layers.all(Linear::is_plain) {
            let gate = self.gate.as_ref().map(|gate| gate.forward_fused(x.clone(), pass)); // [B, T, F]
            let up = self.expand.forward_fused(x, pass); // [B, T, F]
            let hidden = kernels::activate(self.activation, up, gate); // [B, T, F]
            let output = self.contract.forward_fused(hidden, pass); // [B, T, C]
            return pass.visit(Point::Mlp, output);
        }
        let layer = |linear: &Linear| Layer { weight: linear.weight(), bias: linear.bias() };
        let mlp = kernels::mlp::Mlp {
            up: layer(&self.expand),
            gate: self.gate.as_ref().map(layer),
            down: layer(&self.contract),
            activation: self.activation,
            precision: pass.precision(),
        };
        pass.visit(Point::Mlp, kernels::mlp(x, mlp))
    }
}
