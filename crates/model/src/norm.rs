//! The normalization layers: layer norm and RMS norm.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::placeholders::Placeholders;
use crate::config::{ModelConfig, NormKind};
use tinderbox_kernels as kernels;

/// Layer norm or RMS norm over the last dimension.
#[derive(Module, Debug)]
pub struct Norm {
    /// The learned scale, `[C]`, initialized to 1; `None` in a norm without parameters.
    pub weight: Option<Param<Tensor<1>>>,
    /// The learned shift, `[C]`, initialized to 0; always `None` in an RMS norm.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    dim: usize,
    #[module(skip)]
    kind: NormKind,
    #[module(skip)]
    epsilon: f64,
}

impl Norm {
    pub(crate) fn of_residual(config: &ModelConfig, norm: &Placeholders<'_>) -> Self {
        Self::new(config.norm, config.d_model, config.norm_eps, norm)
    }

    /// A norm over `dim` numbers. `epsilon` is added under the root.
    pub(crate) fn new(kind: NormKind, dim: usize, epsilon: f64, norm: &Placeholders<'_>) -> Self {
        Self { weight: norm.get("weight"), bias: norm.get("bias"), dim, kind, epsilon }
    }

    /// The size of the normalized dimension.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The scale, `[C]`; without a learned scale, ones on `device`.
    pub fn scale(&self, device: &Device) -> Tensor<1> {
        match &self.weight {
            Some(weight) => weight.val(),
            None => Tensor::ones([self.dim], device),
        }
    }

    /// Whether it subtracts the mean, as a layer norm does.
    pub(crate) fn is_centred(&self) -> bool {
        self.kind == NormKind::LayerNorm
    }

    /// The number that is added to the variance (or to the mean square, in an RMS norm) under the root.
    pub fn epsilon(&self) -> f64 {
        self.epsilon
    }

    /// Normalizes `x` over the last dimension.
    ///
    /// # Shapes
    /// `x: [.., C]` -> `[.., C]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (self.scale(&x.device()), self.bias.as_ref().map(Param::val));
        match self.kind {
            NormKind::LayerNorm => kernels::layer_norm(x, weight, bias, self.epsilon),
            NormKind::RmsNorm => kernels::rms_norm(x, weight, self.epsilon),
        }
    }
}
