//! Counts and names the parameters of a model from its config alone.

use serde::Serialize;

use crate::config::ModelConfig;
use tinderbox_model::{BlockPart, Parameter, Role};

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
pub fn parameters(config: &ModelConfig, vocab_size: usize) -> Parameters {
    let [first, later] = [0, 1].map(|block_idx| Parameter::of_block(config, block_idx));
    let outside = Parameter::outside_blocks(config, vocab_size).concat();
    let outside_role = |role| count(&outside, |of| of == role);
    let part = |part| count(&later, |role| role.block_part() == Some(part));
    let block = BlockParameters {
        attention_qkv: part(BlockPart::Qkv),
        attention_output: part(BlockPart::AttentionOutput),
        mlp: part(BlockPart::Mlp),
        norms: part(BlockPart::Norms),
        factors: part(BlockPart::Factors),
        total: count(&later, |_| true),
    };
    let n_layers = config.n_layers as u64;
    let later_blocks = block.total.saturating_mul(n_layers.saturating_sub(1));
    Parameters {
        token_embedding: outside_role(Role::TokenEmbedding),
        position_embedding: outside_role(Role::PositionEmbedding),
        block,
        n_layers,
        final_norm: outside_role(Role::FinalNorm),
        output: outside_role(Role::Output),
        total: [count(&first, |_| true), later_blocks, count(&outside, |_| true)]
            .into_iter()
            .fold(0, u64::saturating_add),
    }
}

/// The number of values in the parameters of some roles.
fn count(rows: &[Parameter], is_counted: impl Fn(Role) -> bool) -> u64 {
    rows.iter().filter(|row| is_counted(row.role)).map(Parameter::n_numbers).fold(0, u64::saturating_add)
}
