//! One block: attention moves information between positions, the feed-forward layer works on each position alone.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::attention::{LayerCache, MultiHeadAttention, MultiHeadAttentionConfig, Rotation};
use super::parameters::zeros;
use super::probe::{Pass, Point, Probe};
use super::{Mlp, Norm};
use crate::config::ModelConfig;
use tinderbox_kernels as kernels;

/// A pre-norm transformer block. Both layers read the normalized residual stream and add their output to it, one after
/// the other, or in parallel, when both read the block's input.
///
/// Source: Radford et al. 2019 (GPT-2), section 2.3; Xiong et al. 2020, "On Layer Normalization in the
/// Transformer Architecture", figure 1 b. In parallel: Wang and Komatsuzaki 2021 (GPT-J).
#[derive(Module, Debug)]
pub struct Block {
    /// Norm before the attention.
    pub attention_norm: Norm,
    /// Moves information between positions.
    pub attention: MultiHeadAttention,
    /// Norm before the feed-forward layer.
    pub mlp_norm: Norm,
    /// Works on each position by itself.
    pub mlp: Mlp,
    /// The factors of the residual stream and of the embedding in the block's input, `[2]`, initialized to 1 and 0;
    /// `None` if the block does not read the embedding (x0 skip).
    pub skip_factors: Option<Param<Tensor<1>>>,
    #[module(skip)]
    parallel_residual: bool,
    #[module(skip)]
    dropout: f64,
}

impl Block {
    /// The block with this index, its norms at identity and all other weights at zero.
    pub fn new(config: &ModelConfig, block_idx: usize, device: &Device) -> Self {
        let ModelConfig { parallel_residual, dropout, embedding_skip, .. } = *config;
        Self {
            attention_norm: Norm::of(config, device),
            attention: MultiHeadAttentionConfig::of(config, block_idx).init(device),
            mlp_norm: Norm::of(config, device),
            mlp: Mlp::new(config, device),
            skip_factors: embedding_skip.then(|| Param::from_tensor(zeros([2], device))),
            parallel_residual,
            dropout,
        }
    }

    /// The input of the block: the residual stream, mixed with the embedding if the block reads that too.
    ///
    /// # Shapes
    /// `x, embedding: [B, T, C]` -> `[B, T, C]`
    ///
    /// # Panics
    /// If the block reads the embedding and there is none.
    pub fn read(&self, x: Tensor<3>, embedding: Option<Tensor<3>>) -> Tensor<3> {
        match &self.skip_factors {
            Some(factors) => kernels::mix(x, embedding.expect("the embedding"), factors.val()),
            None => x,
        }
    }

    /// # Shapes
    /// `x: [B, T, C]` -> `[B, T, C]`
    pub fn forward<P: Probe>(
        &self,
        x: Tensor<3>,
        rotation: Option<&Rotation>,
        cache: Option<&mut LayerCache>,
        pass: &mut Pass<'_, P>,
    ) -> Tensor<3> {
        let x = self.read(x, pass.embedding.clone());
        let normed = self.attention_norm.forward(x.clone());
        let attended = self.attention.forward(normed, rotation, cache, pass);
        let came_in = self.parallel_residual.then(|| x.clone());
        let x = x + pass.drop(Point::Attention, attended, self.dropout);
        let normed = self.mlp_norm.forward(came_in.unwrap_or_else(|| x.clone()));
        let processed = self.mlp.forward(normed, pass);
        let x = x + pass.drop(Point::Mlp, processed, self.dropout);
        pass.visit(Point::Residual, x)
    }
}
