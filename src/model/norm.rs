//! The norm layers of a model: layer norm and RMS norm.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::config::NormKind;
use tinderbox_kernels as kernels;

/// Layer norm or RMS norm over the last dimension.
#[derive(Module, Debug)]
pub struct Norm {
    /// The learned scale, `[C]`, starting at 1.
    pub weight: Param<Tensor<1>>,
    /// The learned shift, `[C]`, starting at 0; never in an RMS norm.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    kind: NormKind,
    #[module(skip)]
    epsilon: f64,
}

impl Norm {
    /// A norm over `dim` numbers; `bias` is ignored by an RMS norm. `epsilon` is added under the root.
    pub fn new(kind: NormKind, dim: usize, bias: bool, epsilon: f64, device: &Device) -> Self {
        let bias = bias && kind == NormKind::LayerNorm;
        Self {
            weight: Param::from_tensor(Tensor::ones([dim], device)),
            bias: bias.then(|| Param::from_tensor(Tensor::zeros([dim], device))),
            kind,
            epsilon,
        }
    }

    /// The number that is added to the variance, or to the mean square, under the root.
    pub fn epsilon(&self) -> f64 {
        self.epsilon
    }

    /// # Shapes
    /// `x: [.., C]` -> `[.., C]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (self.weight.val(), self.bias.as_ref().map(Param::val));
        match self.kind {
            NormKind::LayerNorm => kernels::layer_norm(x, weight, bias, self.epsilon),
            NormKind::RmsNorm => kernels::rms_norm(x, weight, self.epsilon),
        }
    }
}
