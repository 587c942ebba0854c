//! Counts and names the parameters of a model from its config alone.

use serde::Serialize;

use crate::config::ModelConfig;
use tinderbox_model::shapes::{self, NamedShape, block_tensors, numbers, outer_tensors};

/// The parameters of a model, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// A vector for each token.
    pub token_embedding: u64,
    /// A vector for each position; 0 with rotary positions.
    pub position_embedding: u64,
    /// One block.
    pub block: BlockParameters,
    /// The number of blocks.
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
    /// The learned factors of `embedding_skip` and `value_residual`; the first block lacks the latter's two.
    pub factors: u64,
    /// All parameters of the block.
    pub total: u64,
}

/// Counts the parameters of a model.
#[must_use]
pub fn parameters(config: &ModelConfig, vocab_size: usize) -> Parameters {
    let mut counted = Parameters { n_layers: config.n_layers as u64, ..Parameters::default() };
    let block = &mut counted.block;
    for (name, shape) in block_tensors(config) {
        let part = match name {
            _ if name.contains("norm") => &mut block.norms,
            _ if name.ends_with("factors") => &mut block.factors,
            _ if name.starts_with("attention.qkv") => &mut block.attention_qkv,
            _ if name.starts_with("attention.output") => &mut block.attention_output,
            _ => &mut block.mlp,
        };
        *part += numbers(&shape);
        block.total += numbers(&shape);
    }
    counted.total = block.total.saturating_mul(counted.n_layers);
    if config.value_residual {
        counted.total -= 2;
    }
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

/// The names and shapes of all parameters, in the model's order.
#[must_use]
pub fn tensors(config: &ModelConfig, vocab_size: usize) -> Vec<NamedShape> {
    shapes::of_config(config, vocab_size).collect()
}
