//! Named sites in a forward pass, and probes that read or replace the values there, like forward hooks in PyTorch.
//!
//! Probes serve to capture attention weights, to ablate a head, and to patch in activations from another pass. The
//! empty probe costs nothing, and only with it does attention take its fused path, which never stores the weights.

use std::fmt;
use std::sync::Arc;

use burn::tensor::Tensor;

use super::init::name_id;
use tinderbox_kernels::{self as kernels, Dropout, DropoutKey, MatmulPrecision};

/// The kind of value at a [`Site`]. Points from `Queries` to `Residual` belong to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// `embedding`: token (and position) vectors, `[B, T, C]`.
    Embedding,
    /// `blocks.i.attention.queries`: after norm and rotation, `[B, H, T, D]`.
    Queries,
    /// `blocks.i.attention.keys`: after norm and rotation, without cached keys, `[B, Hkv, T, D]`.
    Keys,
    /// `blocks.i.attention.values`: without cached values, `[B, Hkv, T, D]`.
    Values,
    /// `blocks.i.attention.weights`: each row sums to 1, `[B, H, T, S]`.
    Weights,
    /// `blocks.i.attention.heads`: the output of each head before the output projection, `[B, H, T, D]`.
    Heads,
    /// `blocks.i.attention.output`: the attention output that is added to the residual stream, `[B, T, C]`.
    Attention,
    /// `blocks.i.mlp.output`: the feed-forward output that is added to the residual stream, `[B, T, C]`.
    Mlp,
    /// `blocks.i.residual`: the residual stream after the block, `[B, T, C]`.
    Residual,
    /// `norm`: the normalized residual stream, from which the logits are computed, `[B, T, C]`.
    Norm,
    /// `logits`: `[B, T, V]`.
    Logits,
}

/// A named site in a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// The index of the block, counted from 0; `None` before and after the blocks.
    pub block_idx: Option<usize>,
    /// The kind of value.
    pub point: Point,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.point {
            Point::Embedding => "embedding",
            Point::Queries => "attention.queries",
            Point::Keys => "attention.keys",
            Point::Values => "attention.values",
            Point::Weights => "attention.weights",
            Point::Heads => "attention.heads",
            Point::Attention => "attention.output",
            Point::Mlp => "mlp.output",
            Point::Residual => "residual",
            Point::Norm => "norm",
            Point::Logits => "logits",
        };
        match self.block_idx {
            Some(block_idx) => write!(f, "blocks.{block_idx}.{name}"),
            None => f.write_str(name),
        }
    }
}

/// Observes or changes the values in a forward pass.
pub trait Probe {
    /// False only for the empty probe.
    const ACTIVE: bool = true;

    /// Receives the value at `site` and returns the value that the pass continues with: the same or another one of the
    /// same shape.
    fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D>;
}

/// The empty probe, which costs nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProbe;

impl Probe for NoProbe {
    const ACTIVE: bool = false;

    fn visit<const D: usize>(&mut self, _: Site, value: Tensor<D>) -> Tensor<D> {
        value
    }
}

/// The state of one forward pass: the probe, the dropout key, the precision of matrix products, and the current block.
#[derive(Debug)]
pub struct Pass<'a, P: Probe> {
    probe: &'a mut P,
    dropout: Option<DropoutKey>,
    precision: MatmulPrecision,
    block_idx: Option<usize>,
    /// The lengths of the sequences that are packed in the only row; `None` if each row is one.
    pub(super) lengths: Option<Arc<[usize]>>,
    /// The input of the first block, kept for the embedding skip of later blocks, `[B, T, C]`.
    pub(super) embedding: Option<Tensor<3>>,
    /// The values of the first block, kept for the value residual of later blocks, `[B, T, Hkv D]`.
    pub(super) first_values: Option<Tensor<3>>,
}

impl<'a, P: Probe> Pass<'a, P> {
    /// A pass before the first block. `precision` applies to the matrix products of the blocks' projections. Without a
    /// `dropout` key, dropout is off.
    pub fn new(probe: &'a mut P, precision: MatmulPrecision, dropout: Option<DropoutKey>) -> Self {
        Self { probe, dropout, precision, block_idx: None, lengths: None, embedding: None, first_values: None }
    }

    /// The precision of the matrix products of the blocks' projections.
    pub fn precision(&self) -> MatmulPrecision {
        self.precision
    }

    /// Sets the current block for the points that follow.
    pub fn enter(&mut self, block_idx: Option<usize>) {
        self.block_idx = block_idx;
    }

    /// Passes `value` to the probe and returns the value to continue with.
    pub fn visit<const D: usize>(&mut self, point: Point, value: Tensor<D>) -> Tensor<D> {
        self.probe.visit(self.site(point), value)
    }

    /// The dropout at `point`; `None` in evaluation.
    pub fn dropout(&self, point: Point, probability: f64) -> Option<Dropout> {
        self.dropout_at(name_id(&self.site(point).to_string()), probability)
    }

    fn dropout_at(&self, site: u64, probability: f64) -> Option<Dropout> {
        let key = self.dropout.filter(|_| probability > 0.0)?;
        Some(Dropout { probability, key, site })
    }

    /// Applies dropout to `value`, with a mask that depends on the number of the site.
    pub(crate) fn drop_at<const D: usize>(&self, site: u64, value: Tensor<D>, probability: f64) -> Tensor<D> {
        match self.dropout_at(site, probability) {
            Some(dropout) => kernels::dropout(value, dropout),
            None => value,
        }
    }

    /// Applies dropout to `value`, with a mask that depends on `point`.
    pub fn drop<const D: usize>(&self, point: Point, value: Tensor<D>, probability: f64) -> Tensor<D> {
        self.drop_at(name_id(&self.site(point).to_string()), value, probability)
    }

    fn site(&self, point: Point) -> Site {
        Site { block_idx: self.block_idx, point }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Device, Int};

    use super::*;
    use crate::Gpt;
    use crate::config::ModelConfig;

    /// Records the names of the visited sites. If the probe is not `ACTIVE`, it must not see attention weights.
    struct Sites<const ACTIVE: bool>(Vec<String>);

    impl<const ACTIVE: bool> Probe for Sites<ACTIVE> {
        const ACTIVE: bool = ACTIVE;

        fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
            self.0.push(site.to_string());
            value
        }
    }

    fn visited<const ACTIVE: bool>() -> Vec<String> {
        let config = ModelConfig { d_model: 8, n_layers: 2, n_heads: 2, n_kv_heads: 2, ..ModelConfig::default() };
        let config = config.with_derived();
        let gpt = Gpt::new(&config, 5, 1, &Device::flex());
        let tokens = Tensor::<2, Int>::from_data([[1, 2, 3]], &Device::flex());
        let mut probe = Sites::<ACTIVE>(Vec::new());
        let _ = gpt.forward_with(tokens, None, &mut probe);
        probe.0
    }

    #[test]
    fn only_active_probes_see_attention_weights() {
        let (active, empty) = (visited::<true>(), visited::<false>());
        let weights = |site: &&String| site.ends_with("attention.weights");
        assert_eq!(active.iter().filter(weights).count(), 2, "{active:?}");
        assert_eq!(empty.iter().filter(weights).count(), 0, "{empty:?}");
        assert!(empty.iter().all(|site| active.contains(site)), "{empty:?}");
    }
}
