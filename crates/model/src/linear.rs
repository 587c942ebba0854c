//! The layers that hold a matrix, and the only functions that read it.

use burn::module::{Module, Param};
use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData, module};

use super::Adapter;
use super::placeholders::Placeholders;
use super::probe::{Pass, Probe};
use tinderbox_kernels::decode::Precision;
use tinderbox_kernels::{self as kernels, FrozenWeight};

/// A linear layer: `x weight + bias`, whose weight may be changed by [adapters](Adapter).
#[derive(Module, Debug)]
pub struct Linear {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
    /// Each of different columns.
    adapters: Vec<Adapter>,
    /// Changes of some columns, one per row, of an output layer.
    token_rows: Option<Param<Tensor<2>>>,
    /// The columns that they change.
    #[module(skip)]
    tokens: Vec<u32>,
    /// The weight in fewer bytes, in place of `weight`, which has no rows then.
    #[module(skip)]
    frozen: Option<FrozenWeight>,
}

impl Linear {
    /// The layer with this weight, `[in, out]`, and bias, `[out]`.
    pub fn new(weight: Tensor<2>, bias: Option<Tensor<1>>) -> Self {
        Self::from_parts(Param::from_tensor(weight), bias.map(Param::from_tensor))
    }

    fn from_parts(weight: Param<Tensor<2>>, bias: Option<Param<Tensor<1>>>) -> Self {
        Self { weight, bias, adapters: Vec::new(), token_rows: None, tokens: Vec::new(), frozen: None }
    }

    /// The layer with this name; `None` if the parameter table has none.
    pub(crate) fn placeholder(module: &Placeholders<'_>, name: &str) -> Option<Self> {
        let layer = module.child(name);
        Some(Self::from_parts(layer.get("weight")?, layer.get("bias")))
    }

    pub(crate) fn adapt(&mut self, adapters: Vec<Adapter>) {
        self.adapters = adapters;
    }

    /// Lets the columns of these tokens change, and no others.
    pub(crate) fn train_tokens(&mut self, tokens: &[u32]) {
        self.token_rows = no_changes(tokens, self.weight.shape()[0], &self.weight.device());
        self.tokens = tokens.to_vec();
    }

    /// Keeps the weight, which is not trained, in this precision.
    pub(crate) fn freeze(&mut self, precision: Precision) {
        let (device, [_, n_columns]) = (self.weight.device(), self.weight.val().dims());
        self.frozen = Some(FrozenWeight::new(self.weight.val(), precision));
        self.weight = Param::from_tensor(Tensor::zeros([0, n_columns], &device)).no_grad();
    }

    pub(crate) fn base_weight(&self) -> Tensor<2> {
        match &self.frozen {
            Some(frozen) => frozen.widened(&self.weight.device()),
            None => self.weight.val(),
        }
    }

    /// Whether the layer is a plain f32 matrix without adapters.
    pub fn is_plain(&self) -> bool {
        self.adapters.is_empty() && self.frozen.is_none()
    }

    /// The weight that multiplies the input, `[in, out]`, with the changes of adapters. Everything that uses it reads it
    /// here.
    pub fn weight(&self) -> Tensor<2> {
        let weight = match &self.token_rows {
            Some(rows) => with_rows(self.base_weight(), 1, rows.val().transpose(), &self.tokens),
            None => self.base_weight(),
        };
        self.adapters.iter().fold(weight, |weight, adapter| adapter.merged_into(weight))
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
        let has_magnitudes = self.adapters.iter().any(Adapter::has_magnitude);
        let bias = self.bias().filter(|_| !has_magnitudes);
        let out = match &self.frozen {
            Some(frozen) => kernels::frozen_linear(x.clone(), frozen, bias, pass.precision()),
            None => kernels::linear(x.clone(), self.weight.val(), bias, pass.precision()),
        };
        let out = self.adapters.iter().fold(out, |out, adapter| adapter.add_to(out, x.clone(), pass));
        if !has_magnitudes {
            return out;
        }
        // Each adapter has columns of its own, so that the factors of all are their product.
        let factors = self.adapters.iter().map(|adapter| adapter.factors(self.base_weight()));
        let factors = factors.reduce(|all, factors| all * factors).expect("an adapter has magnitudes");
        let out = out * factors.unsqueeze();
        match self.bias() {
            Some(bias) => out + bias.unsqueeze(),
            None => out,
        }
    }
}

/// A table of vectors: one per token, or one per position.
#[derive(Module, Debug)]
pub struct Embedding {
    weight: Param<Tensor<2>>,
    token_rows: Option<Param<Tensor<2>>>,
    #[module(skip)]
    tokens: Vec<u32>,
}

/// Changes of the vectors of tokens that are still zero; `None` without tokens.
fn no_changes(tokens: &[u32], width: usize, device: &Device) -> Option<Param<Tensor<2>>> {
    (!tokens.is_empty()).then(|| Param::from_tensor(Tensor::zeros([tokens.len(), width], device)))
}

/// `weight` with `values` added to the rows, or with `dim = 1` to the columns, of these tokens.
fn with_rows(weight: Tensor<2>, dim: usize, values: Tensor<2>, tokens: &[u32]) -> Tensor<2> {
    let ids: Vec<i64> = tokens.iter().map(|id| i64::from(*id)).collect();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [tokens.len()]), &weight.device());
    weight.select_assign(dim, ids, values, IndexingUpdateOp::Add)
}

impl Embedding {
    pub(crate) fn placeholder(module: &Placeholders<'_>, name: &str) -> Option<Self> {
        Some(Self { weight: module.child(name).get("weight")?, token_rows: None, tokens: Vec::new() })
    }

    pub(crate) fn train_tokens(&mut self, tokens: &[u32]) {
        self.token_rows = no_changes(tokens, self.weight.shape()[1], &self.weight.device());
        self.tokens = tokens.to_vec();
    }

    /// The vectors, `[n, C]`. Everything that uses them reads them here: a lookup, and a tied output layer.
    pub fn weight(&self) -> Tensor<2> {
        match &self.token_rows {
            Some(rows) => with_rows(self.weight.val(), 0, rows.val(), &self.tokens),
            None => self.weight.val(),
        }
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
