//! The table of a model's parameters: the path, shape, role and initial values of each tensor, computed from the config
//! alone, without allocating any tensor.

use super::attention::{MultiHeadAttentionConfig, ValueResidual};
use crate::config::{ModelConfig, NormKind, PositionKind};

/// The standard deviation of initial weights.
///
/// Source: Radford et al. 2019 (GPT-2), section 2.3, also for the projections to the residual stream: their
/// standard deviation is divided by the square root of their number.
const STANDARD_DEVIATION: f64 = 0.02;

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name in checkpoints, such as `blocks.0.attention.qkv.weight`.
    pub path: String,
    /// The sizes of its dimensions. Matrices are `[in, out]`, embeddings one row per token or position.
    pub shape: Vec<usize>,
    /// The layer that it belongs to, as its weight or its bias.
    pub role: Role,
    /// Its values before training.
    pub initial: Initial,
    /// Whether training changes it, so that it has a gradient and optimizer state.
    pub is_trained: bool,
}

/// The kind of layer that a parameter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One vector per token; also the output layer, if that is tied.
    TokenEmbedding,
    /// One vector per position.
    PositionEmbedding,
    /// The norm before attention.
    AttentionNorm,
    /// The fused projection to queries, keys and values, which lie side by side in columns of these numbers.
    Qkv([usize; 3]),
    /// The norm of queries.
    QNorm,
    /// The norm of keys.
    KNorm,
    /// The output projection of attention.
    AttentionOutput,
    /// The norm of the attention's output.
    PostAttentionNorm,
    /// The norm before the MLP.
    MlpNorm,
    /// The norm of the MLP's output.
    PostMlpNorm,
    /// The gate projection of a gated MLP.
    Gate,
    /// The up projection of an MLP.
    Up,
    /// The down projection of an MLP.
    Down,
    /// The learned factors of a sum.
    Factors,
    /// The norm after the last block.
    FinalNorm,
    /// The output layer, if it is not tied to the token embedding.
    Output,
    /// One of the two matrices of an [adapter](crate::Adapter).
    Adapter,
}

/// The parts of a block whose parameters and FLOPs are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPart {
    /// The projection to queries, keys and values.
    Qkv,
    /// The output projection of attention.
    AttentionOutput,
    /// The feed-forward layer.
    Mlp,
    /// The norms, including those of queries and keys.
    Norms,
    /// The learned factors of sums.
    Factors,
}

impl Role {
    /// The part of a block that it belongs to; `None` outside the blocks, and for adapters.
    pub fn block_part(self) -> Option<BlockPart> {
        match self {
            Self::Qkv(_) => Some(BlockPart::Qkv),
            Self::AttentionOutput => Some(BlockPart::AttentionOutput),
            Self::Gate | Self::Up | Self::Down => Some(BlockPart::Mlp),
            Self::AttentionNorm
            | Self::QNorm
            | Self::KNorm
            | Self::PostAttentionNorm
            | Self::MlpNorm
            | Self::PostMlpNorm => Some(BlockPart::Norms),
            Self::Factors => Some(BlockPart::Factors),
            Self::TokenEmbedding | Self::PositionEmbedding | Self::FinalNorm | Self::Output | Self::Adapter => None,
        }
    }

    /// Whether it is a norm.
    pub fn is_norm(self) -> bool {
        self == Self::FinalNorm || self.block_part() == Some(BlockPart::Norms)
    }
}

/// The values of a parameter before training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Drawn from a normal distribution around 0 with this standard deviation; if that is 0, zeros.
    Normal(f64),
    /// Drawn uniformly between the negative of this number and the number.
    Uniform(f64),
    /// All the same.
    Constant(f32),
    /// These two.
    Pair([f32; 2]),
}

impl Parameter {
    /// The index of the block that the parameter at `path` belongs to.
    pub fn block_of(path: &str) -> Option<usize> {
        path.strip_prefix("blocks.")?.split('.').next()?.parse().ok()
    }

    /// All parameters of a model, in the order of its fields.
    pub fn all(config: &ModelConfig, vocab_size: usize) -> impl Iterator<Item = Self> {
        let [embeddings, last] = Self::outside_blocks(config, vocab_size);
        let blocks = (0..config.n_layers).flat_map(|block_idx| Self::of_block(config, block_idx));
        embeddings.into_iter().chain(blocks).chain(last)
    }

    /// The parameters before and after the blocks.
    pub fn outside_blocks(config: &ModelConfig, vocab_size: usize) -> [Vec<Self>; 2] {
        let c = config.d_model;
        let [mut embeddings, mut last] = [(); 2].map(|()| Section::new(String::new()));
        embeddings.matrix("token_embedding", Role::TokenEmbedding, [vocab_size, c], STANDARD_DEVIATION);
        if config.position == PositionKind::Learned {
            let shape = [config.context_length, c];
            embeddings.matrix("position_embedding", Role::PositionEmbedding, shape, STANDARD_DEVIATION);
        }
        last.norm("norm", Role::FinalNorm, config);
        if !config.tie_embeddings {
            last.matrix("output", Role::Output, [c, vocab_size], STANDARD_DEVIATION);
        }
        [embeddings.rows, last.rows]
    }

    /// The parameters of one block. All blocks but the first have the same.
    pub fn of_block(config: &ModelConfig, block_idx: usize) -> Vec<Self> {
        let ModelConfig { d_model: c, d_ff: f, n_layers, bias, .. } = *config;
        let std = STANDARD_DEVIATION;
        let std_to_residual = if config.zero_init_projections { 0.0 } else { std / (2.0 * n_layers as f64).sqrt() };

        let mut block = Section::new(format!("blocks.{block_idx}."));
        if config.pre_norm {
            block.norm("attention_norm", Role::AttentionNorm, config);
        }
        let attention = MultiHeadAttentionConfig::from_model(config, block_idx);
        block.attention("attention.", &attention, std_to_residual);
        if config.post_norm {
            block.norm("post_attention_norm", Role::PostAttentionNorm, config);
        }
        if config.pre_norm {
            block.norm("mlp_norm", Role::MlpNorm, config);
        }
        block.linear("mlp.expand", Role::Up, [c, f], std, bias);
        if config.mlp.is_gated() {
            block.linear("mlp.gate", Role::Gate, [c, f], std, bias);
        }
        block.linear("mlp.contract", Role::Down, [f, c], std_to_residual, bias);
        if config.post_norm {
            block.norm("post_mlp_norm", Role::PostMlpNorm, config);
        }
        if config.embedding_skip {
            block.add("skip_factors", Role::Factors, vec![2], Initial::Pair([1.0, 0.0]));
        }
        block.rows
    }

    /// The parameters of an attention layer outside a model, in the order of its fields.
    pub(crate) fn of_attention(config: &MultiHeadAttentionConfig) -> Vec<Self> {
        let mut attention = Section::new(String::new());
        attention.attention("", config, STANDARD_DEVIATION);
        attention.rows
    }

    /// The number of values.
    pub fn n_numbers(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).fold(1, u64::saturating_mul)
    }

    /// Whether it is the matrix of a linear layer, `[in, out]`.
    pub fn is_linear(&self) -> bool {
        self.shape.len() == 2 && !matches!(self.role, Role::TokenEmbedding | Role::PositionEmbedding)
    }

    /// Whether it is the bias of its layer, rather than the weight.
    pub fn is_bias(&self) -> bool {
        self.path.rsplit('.').next() == Some("bias")
    }

    /// The widths of the matrices that lie side by side in a matrix of a block: queries, keys and values, or the only
    /// one. `None` for any other parameter.
    pub fn hidden_widths(&self) -> Option<Vec<usize>> {
        let is_hidden = self.is_linear() && self.role != Role::Output;
        is_hidden.then(|| match self.role {
            Role::Qkv(widths) => widths.to_vec(),
            _ => vec![self.shape[1]],
        })
    }
}

/// Some rows of the table, whose paths start with `prefix`.
struct Section {
    prefix: String,
    rows: Vec<Parameter>,
}

impl Section {
    fn new(prefix: String) -> Self {
        Self { prefix, rows: Vec::new() }
    }

    fn add(&mut self, name: &str, role: Role, shape: Vec<usize>, initial: Initial) {
        let path = format!("{}{name}", self.prefix);
        self.rows.push(Parameter { path, shape, role, initial, is_trained: true });
    }

    /// `std` is the standard deviation of the initial values.
    fn matrix(&mut self, name: &str, role: Role, shape: [usize; 2], std: f64) {
        self.add(&format!("{name}.weight"), role, shape.to_vec(), Initial::Normal(std));
    }

    fn bias(&mut self, name: &str, role: Role, n: usize) {
        self.add(&format!("{name}.bias"), role, vec![n], Initial::Constant(0.0));
    }

    fn linear(&mut self, name: &str, role: Role, shape: [usize; 2], std: f64, bias: bool) {
        self.matrix(name, role, shape, std);
        if bias {
            self.bias(name, role, shape[1]);
        }
    }

    fn scale(&mut self, name: &str, role: Role, n: usize) {
        self.add(&format!("{name}.weight"), role, vec![n], Initial::Constant(1.0));
    }

    fn norm(&mut self, name: &str, role: Role, config: &ModelConfig) {
        if config.norm_weights {
            self.scale(name, role, config.d_model);
            if config.bias && config.norm == NormKind::LayerNorm {
                self.bias(name, role, config.d_model);
            }
        }
    }

    /// An attention layer, each of whose names starts with `at`.
    fn attention(&mut self, at: &str, config: &MultiHeadAttentionConfig, std_to_residual: f64) {
        let MultiHeadAttentionConfig { d_model: c, n_heads, head_dim, .. } = *config;
        let (qkv, std) = (config.qkv_widths(), STANDARD_DEVIATION);
        self.linear(&format!("{at}qkv"), Role::Qkv(qkv), [c, qkv.iter().sum()], std, config.qkv_bias);
        self.linear(
            &format!("{at}output"),
            Role::AttentionOutput,
            [n_heads * head_dim, c],
            std_to_residual,
            config.bias,
        );
        if let Some(widths) = config.qk_norm_widths().filter(|_| config.norm_weights) {
            self.scale(&format!("{at}q_norm"), Role::QNorm, widths[0]);
            self.scale(&format!("{at}k_norm"), Role::KNorm, widths[1]);
        }
        // The first block has no earlier values to mix in.
        if config.value_residual == Some(ValueResidual::Later) {
            self.add(&format!("{at}value_factors"), Role::Factors, vec![2], Initial::Pair([0.5, 0.5]));
        }
    }
}
