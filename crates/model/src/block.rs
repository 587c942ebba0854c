//! The transformer block: attention mixes information between positions, then the feed-forward layer transforms each
//! position separately.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::attention::{LayerCache, MultiHeadAttention, MultiHeadAttentionConfig, Rotation};
use super::gpt::scaled;
use super::placeholders::Placeholders;
use super::probe::{Pass, Point, Probe};
use super::{Linear, Mlp, Norm};
use crate::config::ModelConfig;
use tinderbox_kernels as kernels;

/// A transformer block. Both layers read the residual stream and add their output to it, either one after the other or in
/// parallel, where both read the block's input. A norm may precede each layer, follow it, or both.
///
/// Source: Radford et al. 2019 (GPT-2), section 2.3; Xiong et al. 2020, "On Layer Normalization in the
/// Transformer Architecture", figure 1 b. Norms after the layers: Liu et al. 2021, "Swin Transformer V2". Parallel residual: Wang and Komatsuzaki 2021 (GPT-J).
#[derive(Module, Debug)]
pub struct Block {
    /// Norm before the attention; `None` if it reads the residual stream as it is.
    pub attention_norm: Option<Norm>,
    /// The attention layer.
    pub attention: MultiHeadAttention,
    /// Norm after the attention; `None` if what it writes is added as it is.
    pub post_attention_norm: Option<Norm>,
    /// Norm before the feed-forward layer; `None` if it reads the residual stream as it is.
    pub mlp_norm: Option<Norm>,
    /// The feed-forward layer.
    pub mlp: Mlp,
    /// Norm after the feed-forward layer; `None` if what it writes is added as it is.
    pub post_mlp_norm: Option<Norm>,
    /// The weights of the residual stream and of the embedding in the block's input, `[2]`, initialized to 1 and 0;
    /// `None` without the skip connection from the embedding (x0 skip).
    pub skip_factors: Option<Param<Tensor<1>>>,
    #[module(skip)]
    parallel_residual: bool,
    #[module(skip)]
    residual_scale: f64,
    #[module(skip)]
    dropout: f64,
}

impl Block {
    /// The block at index `block_idx`.
    pub(crate) fn new(config: &ModelConfig, block_idx: usize, block: &Placeholders<'_>) -> Self {
        let norm = |is_there: bool, name: &str| is_there.then(|| Norm::of_residual(config, &block.of(name)));
        Self {
            attention_norm: norm(config.pre_norm, "attention_norm"),
            attention: MultiHeadAttentionConfig::from_model(config, block_idx).module(&block.of("attention")),
            post_attention_norm: norm(config.post_norm, "post_attention_norm"),
            mlp_norm: norm(config.pre_norm, "mlp_norm"),
            mlp: Mlp::new(config, &block.of("mlp")),
            post_mlp_norm: norm(config.post_norm, "post_mlp_norm"),
            skip_factors: block.get("skip_factors"),
            parallel_residual: config.parallel_residual,
            residual_scale: config.residual_scale,
            dropout: config.dropout,
        }
    }

    /// Its linear layers, by name.
    pub(crate) fn layers_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Linear)> {
        let Self { attention, mlp, .. } = self;
        let layers = [("attention.qkv", &mut attention.qkv), ("attention.output", &mut attention.output)];
        let of_mlp = [("mlp.expand", &mut mlp.expand), ("mlp.contract", &mut mlp.contract)];
        layers.into_iter().chain(of_mlp).chain(mlp.gate.as_mut().map(|gate| ("mlp.gate", gate)))
    }

    /// The block's input: the residual stream, mixed with the embedding if the block has an embedding skip.
    ///
    /// # Shapes
    /// `x, embedding: [B, T, C]` -> `[B, T, C]`
    ///
    /// # Panics
    /// If the block has an embedding skip and `embedding` is `None`.
    pub fn read(&self, x: Tensor<3>, embedding: Option<Tensor<3>>) -> Tensor<3> {
        match &self.skip_factors {
            Some(factors) => kernels::mix(x, embedding.expect("the embedding"), factors.val()),
            None => x,
        }
    }

    /// Applies the block to the residual stream `x`.
    ///
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
        let read = self.attention_input(x.clone());
        let attended = self.attention.forward(read, rotation, cache, pass);
        let attended = self.written(attended, self.post_attention_norm.as_ref());
        let came_in = self.parallel_residual.then(|| x.clone());
        let x = x + pass.drop(Point::Attention, attended, self.dropout);
        let read = normed(self.mlp_norm.as_ref(), came_in.unwrap_or_else(|| x.clone()));
        let processed = self.mlp.forward(read, pass);
        let processed = self.written(processed, self.post_mlp_norm.as_ref());
        let x = x + pass.drop(Point::Mlp, processed, self.dropout);
        pass.visit(Point::Residual, x)
    }

    /// What attention reads of the block's input.
    ///
    /// # Shapes
    /// `x: [B, T, C]` -> `[B, T, C]`
    pub fn attention_input(&self, x: Tensor<3>) -> Tensor<3> {
        normed(self.attention_norm.as_ref(), x)
    }

    /// What is added to the residual stream of a layer's output.
    fn written(&self, output: Tensor<3>, norm: Option<&Norm>) -> Tensor<3> {
        scaled(normed(norm, output), self.residual_scale)
    }
}

/// `x` after a norm, if there is one.
fn normed(norm: Option<&Norm>, x: Tensor<3>) -> Tensor<3> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}
