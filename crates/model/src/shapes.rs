//! The names and shapes of a model's tensors, computed from the config alone, without allocating any tensor.

use crate::config::{ModelConfig, NormKind, PositionKind};

/// The name of a tensor in checkpoints, such as `blocks.0.attention.qkv.weight`, and the sizes of its dimensions.
pub type NamedShape = (String, Vec<usize>);

/// All parameter tensors, in the order of the model's fields.
pub fn of_config(config: &ModelConfig, vocab_size: usize) -> impl Iterator<Item = NamedShape> {
    // The first block has no `value_factors`, since it has no earlier values to mix in.
    let is_there = |(name, _): &NamedShape| name != "blocks.0.attention.value_factors";
    let named = |(name, shape): (&str, Vec<usize>)| (name.to_owned(), shape);
    let is_embedding = |(name, _): &(&str, Vec<usize>)| name.contains("embedding");
    let before = outer_tensors(config, vocab_size).filter(is_embedding);
    let after = outer_tensors(config, vocab_size).filter(move |tensor| !is_embedding(tensor));
    let of_block = move |block_idx: usize| {
        block_tensors(config).map(move |(name, shape)| (format!("blocks.{block_idx}.{name}"), shape))
    };
    let of_blocks = (0..config.n_layers).flat_map(of_block).filter(is_there);
    before.map(named).chain(of_blocks).chain(after.map(named))
}

/// The tensors before and after the blocks.
pub fn outer_tensors(
    config: &ModelConfig,
    vocab_size: usize,
) -> impl Iterator<Item = (&'static str, Vec<usize>)> + use<> {
    let c = config.d_model;
    let learned = config.position == PositionKind::Learned;
    let has_shift = config.norm_weights && config.bias && config.norm == NormKind::LayerNorm;
    [
        Some(("token_embedding.weight", vec![vocab_size, c])),
        learned.then(|| ("position_embedding.weight", vec![config.context_length, c])),
        config.norm_weights.then(|| ("norm.weight", vec![c])),
        has_shift.then(|| ("norm.bias", vec![c])),
        (!config.tie_embeddings).then(|| ("output.weight", vec![c, vocab_size])),
    ]
    .into_iter()
    .flatten()
}

/// The tensors of any block but the first, named without the prefix `blocks.N.`
pub fn block_tensors(config: &ModelConfig) -> impl Iterator<Item = (&'static str, Vec<usize>)> + use<> {
    let (c, f, d) = (config.d_model, config.d_ff, config.head_dim);
    let gathered = config.n_heads * d;
    let qkv = (config.n_heads + 2 * config.n_kv_heads) * d;
    let has_shift = config.norm_weights && config.bias && config.norm == NormKind::LayerNorm;
    let scale = |name| config.norm_weights.then(|| (name, vec![c]));
    let shift = |name| has_shift.then(|| (name, vec![c]));
    let bias = |name, n| config.bias.then(|| (name, vec![n]));
    let of_heads = |name| (config.qk_norm && config.norm_weights).then(|| (name, vec![d]));
    let gated = config.is_gated();
    [
        scale("attention_norm.weight"),
        shift("attention_norm.bias"),
        Some(("attention.qkv.weight", vec![c, qkv])),
        config.qkv_bias.then(|| ("attention.qkv.bias", vec![qkv])),
        Some(("attention.output.weight", vec![gathered, c])),
        bias("attention.output.bias", c),
        of_heads("attention.q_norm.weight"),
        of_heads("attention.k_norm.weight"),
        config.value_residual.then(|| ("attention.value_factors", vec![2])),
        scale("mlp_norm.weight"),
        shift("mlp_norm.bias"),
        Some(("mlp.expand.weight", vec![c, f])),
        bias("mlp.expand.bias", f),
        gated.then(|| ("mlp.gate.weight", vec![c, f])),
        bias("mlp.gate.bias", f).filter(|_| gated),
        Some(("mlp.contract.weight", vec![f, c])),
        bias("mlp.contract.bias", c),
        config.embedding_skip.then(|| ("skip_factors", vec![2])),
    ]
    .into_iter()
    .flatten()
}

/// The number of elements of a tensor of this shape.
pub fn numbers(shape: &[usize]) -> u64 {
    shape.iter().map(|size| *size as u64).fold(1, u64::saturating_mul)
}
