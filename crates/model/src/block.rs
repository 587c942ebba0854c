//! The transformer block: attention mixes information between positions, then the feed-forward layer transforms each
//! position separately.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::attention::{AttentionMemory, LayerCache, MultiHeadAttention, MultiHeadAttentionConfig, Rotation};
use super::gpt::scaled;
use super::placeholders::Placeholders;
use super::probe::{Pass, Point, Probe};
use super::{Linear, Mlp, Norm};
use crate::config::ModelConfig;
use tinderbox_kernels::{self as kernels, Operations, TrainingMemory};

/// A transformer block. Both layers read the residual stream and add their output to it, either one after the other or in
/// parallel, where both read the block's input. A norm may precede each layer, follow it, or both.
///
/// Source: Radford et al. 2019 (GPT-2), section 2.3; Xiong et al. 2020, "On Layer Normalization in the
/// Transformer Architecture", figure 1 b. Norms after the layers: Liu et al. 2021, "Swin Transformer V2". Parallel
/// residual: Wang and Komatsuzaki 2021 (GPT-J).
#[derive(Module, Debug)]
pub struct Block {
    /// Norm before the attention; `None` if it reads the residual stream as it is.
    pub attention_norm: Option<Norm>,
    /// The attention layer.
    pub attention: MultiHeadAttention,
    /// Norm of the attention's output; `None` if the output is added as it is.
    pub post_attention_norm: Option<Norm>,
    /// Norm before the feed-forward layer; `None` if it reads the residual stream as it is.
    pub mlp_norm: Option<Norm>,
    /// The feed-forward layer.
    pub mlp: Mlp,
    /// Norm of the feed-forward layer's output; `None` if the output is added as it is.
    pub post_mlp_norm: Option<Norm>,
    /// The weights of the residual stream and of the embedding in the block's input, `[2]`, initialized to 1 and 0;
    /// `None` without the skip connection from the embedding (x0 skip).
    pub skip_factors: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) parallel_residual: bool,
    #[module(skip)]
    pub(crate) residual_scale: f64,
    #[module(skip)]
    pub(crate) dropout: f64,
}

/// The memory of a block in training, by the parts of its backward pass, which it computes from the last to the first.
#[derive(Clone, Copy, Debug)]
pub struct BlockMemory {
    /// The norm before attention, and the projection to queries, keys and values.
    pub projection: TrainingMemory,
    /// From queries, keys and values to the attention's output.
    pub attention: TrainingMemory,
    /// Attention weights in attention's backward pass.
    pub attention_weights: f64,
    /// The feed-forward layer and its norms.
    pub mlp: TrainingMemory,
}

impl Block {
    pub(crate) fn new(config: &ModelConfig, block_idx: usize, block: &Placeholders<'_>) -> Self {
        let norm = |is_there: bool, name: &str| is_there.then(|| Norm::of_residual(config, &block.child(name)));
        Self {
            attention_norm: norm(config.pre_norm, "attention_norm"),
            attention: MultiHeadAttentionConfig::from_model(config, block_idx).module(&block.child("attention")),
            post_attention_norm: norm(config.post_norm, "post_attention_norm"),
            mlp_norm: norm(config.pre_norm, "mlp_norm"),
            mlp: Mlp::new(config, &block.child("mlp")),
            post_mlp_norm: norm(config.post_norm, "post_mlp_norm"),
            skip_factors: block.get("skip_factors"),
            parallel_residual: config.parallel_residual,
            residual_scale: config.residual_scale,
            dropout: config.dropout,
        }
    }

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
    pub fn input(&self, x: Tensor<3>, embedding: Option<Tensor<3>>) -> Tensor<3> {
        match &self.skip_factors {
            Some(factors) => {
                kernels::mix(x, embedding.expect("a pass keeps the embedding for the skip"), factors.val())
            }
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
        let block_input = self.input(x, pass.embedding.clone());
        let normed = self.attention_input(block_input.clone());
        let attended = self.attention.forward(normed, rotation, cache, pass);
        let attended = self.to_residual(attended, self.post_attention_norm.as_ref());
        let parallel_input = self.parallel_residual.then(|| block_input.clone());
        let x = block_input + pass.drop(Point::Attention, attended, self.dropout);
        let normed = normalized(self.mlp_norm.as_ref(), parallel_input.unwrap_or_else(|| x.clone()));
        let processed = self.mlp.forward(normed, pass);
        let processed = self.to_residual(processed, self.post_mlp_norm.as_ref());
        let x = x + pass.drop(Point::Mlp, processed, self.dropout);
        pass.visit(Point::Residual, x)
    }

    /// The memory of [`Block::forward`] over `rows` (B, T) in training, in any block but the first.
    pub fn training_memory(config: &ModelConfig, operations: Operations, rows @ [b, t]: [usize; 2]) -> BlockMemory {
        let stream = [b, t, config.d_model]; // [B, T, C]
        let n_bytes = size_of::<f32>() as f64 * stream.map(|size| size as f64).iter().product::<f64>();
        let has_dropout = config.dropout > 0.0;
        let dropout = if has_dropout { kernels::dropout::training_memory(stream) } else { TrainingMemory::default() };
        // Blocks share the embedding.
        let skip = if config.embedding_skip { kernels::mix::saved_bytes(stream, None) } else { 0.0 };
        let norm = kernels::norm::saved_bytes(stream);
        // Without a norm, a layer reads the residual stream, which is saved all the same.
        let attention_norm = if config.pre_norm { norm } else { n_bytes };
        let shares_input = config.parallel_residual && operations == Operations::Fused;
        let mlp_norm = if shares_input { attention_norm - n_bytes } else { attention_norm };
        let post_norm = if config.post_norm { norm } else { 0.0 };
        let to_residual = post_norm + dropout.saved;

        let attention = MultiHeadAttentionConfig::from_model(config, 1);
        let AttentionMemory { projection, heads, weights } = attention.training_memory(operations, rows);
        let mlp = kernels::mlp::training_memory(operations, config.mlp, rows, [config.d_model, config.d_ff]);
        // The gradient of the residual stream, and that of the block's output, which dropout makes different.
        let upstream = n_bytes + dropout.temporary;
        let part = |memory: TrainingMemory, saved: f64| TrainingMemory {
            saved: memory.saved + saved,
            temporary: memory.temporary + upstream,
        };
        BlockMemory {
            projection: part(projection, skip + attention_norm),
            attention: part(heads, to_residual),
            attention_weights: weights,
            mlp: part(mlp, mlp_norm + to_residual),
        }
    }

    /// The input of attention: the block's input, normalized if there is a norm.
    ///
    /// # Shapes
    /// `x: [B, T, C]` -> `[B, T, C]`
    pub fn attention_input(&self, x: Tensor<3>) -> Tensor<3> {
        normalized(self.attention_norm.as_ref(), x)
    }

    fn to_residual(&self, output: Tensor<3>, norm: Option<&Norm>) -> Tensor<3> {
        scaled(normalized(norm, output), self.residual_scale)
    }
}

fn normalized(norm: Option<&Norm>, x: Tensor<3>) -> Tensor<3> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}
