//! The parameters of a model, counted and named from its config alone.

use serde::Serialize;

use crate::config::{ModelConfig, NormKind, PositionKind};

/// The parameters of a model, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// A vector for each token.
    pub token_embedding: u64,
    /// A vector for each position; 0 with rotary positions.
    pub position_embedding: u64,
    /// One block.
    pub block: BlockParameters,
    /// How many blocks there are.
    pub n_layers: u64,
    /// The norm before the logits.
    pub final_norm: u64,
    /// The output layer; 0 if it is tied to the token embedding.
    pub output: u64,
    /// All parameters.
    pub total: u64,
}

/// The parameters of one block, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockParameters {
    /// Query, key and value projections.
    pub attention_qkv: u64,
    /// The attention's output projection.
    pub attention_output: u64,
    /// The feed-forward layer.
    pub mlp: u64,
    /// The norms, including those of queries and keys.
    pub norms: u64,
    /// All parameters of the block.
    pub total: u64,
}

/// The name of a tensor in checkpoints, such as `blocks.0.attention.qkv.weight`, and the sizes of its dimensions.
pub type NamedShape = (String, Vec<usize>);

/// Counts the parameters of a model.
#[must_use]
pub fn parameters(config: &ModelConfig, vocab_size: usize) -> Parameters {
    let mut counted = Parameters { n_layers: config.n_layers as u64, ..Parameters::default() };
    let block = &mut counted.block;
    for (name, shape) in block_tensors(config) {
        let part = match name {
            _ if name.contains("norm") => &mut block.norms,
            _ if name.starts_with("attention.qkv") => &mut block.attention_qkv,
            _ if name.starts_with("attention.output") => &mut block.attention_output,
            _ => &mut block.mlp,
        };
        *part += numbers(&shape);
        block.total += numbers(&shape);
    }
    counted.total = block.total.saturating_mul(counted.n_layers);
    for (name, shape) in outer_tensors(config, vocab_size) {
        let part = match name {
            "token_embedding.weight" => &mut counted.token_embedding,
            "position_embedding.weight" => &mut counted.position_embedding,
            "output.weight" => &mut counted.output,
            _ => &mut counted.final_norm,
        };
        *part += numbers(&shape);
        counted.total = counted.total.saturating_add(numbers(&shape));
    }
    counted
}

/// Every tensor of parameters, in the order in which the model holds them.
#[must_use]
pub fn tensors(config: &ModelConfig, vocab_size: usize) -> Vec<NamedShape> {
    let outer = outer_tensors(config, vocab_size).map(|(name, shape)| (name.to_owned(), shape));
    let (mut tensors, after): (Vec<_>, Vec<_>) = outer.partition(|(name, _)| name.contains("embedding"));
    for block_idx in 0..config.n_layers {
        tensors.extend(block_tensors(config).map(|(name, shape)| (format!("blocks.{block_idx}.{name}"), shape)));
    }
    tensors.extend(after);
    tensors
}

/// The tensors before and after the blocks.
fn outer_tensors(config: &ModelConfig, vocab_size: usize) -> impl Iterator<Item = (&'static str, Vec<usize>)> {
    let c = config.d_model;
    let learned = config.position == PositionKind::Learned;
    let has_shift = config.bias && config.norm == NormKind::LayerNorm;
    [
        Some(("token_embedding.weight", vec![vocab_size, c])),
        learned.then(|| ("position_embedding.weight", vec![config.context_length, c])),
        Some(("norm.weight", vec![c])),
        has_shift.then(|| ("norm.bias", vec![c])),
        (!config.tie_embeddings).then(|| ("output.weight", vec![c, vocab_size])),
    ]
    .into_iter()
    .flatten()
}

/// The tensors of one block, without `blocks.N.`
fn block_tensors(config: &ModelConfig) -> impl Iterator<Item = (&'static str, Vec<usize>)> {
    let (c, f, d) = (config.d_model, config.d_ff, config.head_dim);
    let gathered = config.n_heads * d;
    let qkv = (config.n_heads + 2 * config.n_kv_heads) * d;
    let has_shift = config.bias && config.norm == NormKind::LayerNorm;
    let shift = |name| has_shift.then(|| (name, vec![c]));
    let bias = |name, n| config.bias.then(|| (name, vec![n]));
    let of_heads = |name| config.qk_norm.then(|| (name, vec![d]));
    let gated = config.is_gated();
    [
        Some(("attention_norm.weight", vec![c])),
        shift("attention_norm.bias"),
        Some(("attention.qkv.weight", vec![c, qkv])),
        config.qkv_bias.then(|| ("attention.qkv.bias", vec![qkv])),
        Some(("attention.output.weight", vec![gathered, c])),
        bias("attention.output.bias", c),
        of_heads("attention.q_norm.weight"),
        of_heads("attention.k_norm.weight"),
        Some(("mlp_norm.weight", vec![c])),
        shift("mlp_norm.bias"),
        Some(("mlp.expand.weight", vec![c, f])),
        bias("mlp.expand.bias", f),
        gated.then(|| ("mlp.gate.weight", vec![c, f])),
        bias("mlp.gate.bias", f).filter(|_| gated),
        Some(("mlp.contract.weight", vec![f, c])),
        bias("mlp.contract.bias", c),
    ]
    .into_iter()
    .flatten()
}

/// The numbers of a tensor of this shape.
pub(super) fn numbers(shape: &[usize]) -> u64 {
    shape.iter().map(|size| *size as u64).fold(1, u64::saturating_mul)
}
