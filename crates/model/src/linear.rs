//! The layers that hold a matrix, and the only places at which it is read.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, module};

use super::Adapter;
use super::placeholders::Placeholders;
use super::probe::{Pass, Probe};
use tinderbox_kernels as kernels;

/// A linear layer: `x weight + bias`, whose weight may be changed by [adapters](Adapter).
#[derive(Module, Debug)]
pub struct Linear {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
    /// Each of different columns.
    adapters: Vec<Adapter>,
}

impl Linear {
    /// The layer with this weight, `[in, out]`, and bias, `[out]`.
    pub fn new(weight: Tensor<2>, bias: Option<Tensor<1>>) -> Self {
        Self { weight: Param::from_tensor(weight), bias: bias.map(Param::from_tensor), adapters: Vec::new() }
    }

    /// The layer with this name; `None` if the parameter table has none.
    pub(crate) fn placeholder(module: &Placeholders<'_>, name: &str) -> Option<Self> {
        let layer = module.of(name);
        Some(Self { weight: layer.get("weight")?, bias: layer.get("bias"), adapters: Vec::new() })
    }

    /// Gives the layer adapters.
    pub(crate) fn adapt(&mut self, adapters: Vec<Adapter>) {
        self.adapters = adapters;
    }

    /// Whether adapters change the weight.
    pub fn has_adapters(&self) -> bool {
        !self.adapters.is_empty()
    }

    /// The weight that multiplies the input, `[in, out]`, with the changes of adapters. Everything that uses it reads it
    /// here.
    pub fn weight(&self) -> Tensor<2> {
        self.adapters.iter().fold(self.weight.val(), |weight, adapter| adapter.merged_into(weight))
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

    /// Applies the layer by the fused operations, with matrix products in the precision of the pass. Adapters are not
    /// merged with the weight, whose gradient they spare.
    ///
    /// # Shapes
    /// `x: [.., in]` -> `[.., out]`
    pub fn forward_fused<const D: usize, P: Probe>(&self, x: Tensor<D>, pass: &Pass<'_, P>) -> Tensor<D> {
        let out = kernels::linear(x.clone(), self.weight.val(), self.bias(), pass.precision());
        self.adapters.iter().fold(out, |out, adapter| adapter.add_to(out, x.clone(), pass))
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
