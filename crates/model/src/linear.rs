//! The layers that hold a matrix, and the only places at which it is read.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, module};

use super::placeholders::Placeholders;
use tinderbox_kernels::{self as kernels, MatmulPrecision};

/// A linear layer: `x weight + bias`.
#[derive(Module, Debug)]
pub struct Linear {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// The layer with this weight, `[in, out]`, and bias, `[out]`.
    pub fn new(weight: Tensor<2>, bias: Option<Tensor<1>>) -> Self {
        Self { weight: Param::from_tensor(weight), bias: bias.map(Param::from_tensor) }
    }

    /// The layer with this name; `None` if the parameter table has none.
    pub(crate) fn placeholder(module: &Placeholders<'_>, name: &str) -> Option<Self> {
        let layer = module.of(name);
        Some(Self { weight: layer.get("weight")?, bias: layer.get("bias") })
    }

    /// The weight that multiplies the input, `[in, out]`. Everything that uses it reads it here.
    pub fn weight(&self) -> Tensor<2> {
        self.weight.val()
    }

    /// The bias, `[out]`, if there is one.
    pub fn bias(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(Param::val)
    }

    /// Applies the layer by burn's own operations.
    ///
    /// # Shapes
    /// `x: [.., in]` -> `[.., out]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        module::linear(x, self.weight(), self.bias())
    }

    /// Applies the layer by the fused operation, whose matrix products have this `precision`.
    ///
    /// # Shapes
    /// `x: [.., in]` -> `[.., out]`
    pub fn forward_fused<const D: usize>(&self, x: Tensor<D>, precision: MatmulPrecision) -> Tensor<D> {
        kernels::linear(x, self.weight(), self.bias(), precision)
    }
}

/// A table of vectors: one per token, or one per position.
#[derive(Module, Debug)]
pub struct Embedding {
    weight: Param<Tensor<2>>,
}

impl Embedding {
    /// The table with this name; `None` if the parameter table has none.
    pub(crate) fn placeholder(module: &Placeholders<'_>, name: &str) -> Option<Self> {
        Some(Self { weight: module.of(name).get("weight")? })
    }

    /// The vectors, `[n, C]`. Everything that uses them reads them here: a lookup, and a tied output layer.
    pub fn weight(&self) -> Tensor<2> {
        self.weight.val()
    }

    /// The number of vectors.
    pub fn n_vectors(&self) -> usize {
        self.weight.shape()[0]
    }

    /// The device that holds the vectors.
    pub fn device(&self) -> Device {
        self.weight.device()
    }
}
