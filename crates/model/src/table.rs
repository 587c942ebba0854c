//! The table of a model's parameters: the path, shape, role and initial values of each tensor, computed from the config
//! alone, without allocating any tensor.

use crate::config::{ModelConfig, NormKind, PositionKind};

/// The standard deviation of initial weights.
///
/// Source: Radford et al. 2019 (GPT-2), section 2.3, also for the projections that write to the residual stream: their
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
    /// The norm of each head's queries.
    QNorm,
    /// The norm of each head's keys.
    KNorm,
    /// The output projection of attention.
    AttentionOutput,
    /// The norm before the MLP.
    MlpNorm,
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
}

/// The values of a parameter before training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Drawn from a normal distribution around 0 with this standard deviation; if that is 0, zeros.
    Normal(f64),
    /// All the same.
    Constant(f32),
    /// These two.
    Pair([f32; 2]),
}

impl Parameter {
    /// All parameters of a model, in the order of its fields.
    pub fn all(config: &ModelConfig, vocab_size: usize) -> impl Iterator<Item = Self> {
        let [embeddings, last] = Self::outside_blocks(config, vocab_size);
        let blocks = (0..config.n_layers).flat_map(|block_idx| Self::of_block(config, block_idx));
        embeddings.into_iter().chain(blocks).chain(last)
    }

    /// The parameters before and after the blocks.
    #[must_use]
    pub fn outside_blocks(config: &ModelConfig, vocab_size: usize) -> [Vec<Self>; 2] {
        let c = config.d_model;
        let [mut embeddings, mut last] = [(); 2].map(|()| Section::new(config, String::new()));
        embeddings.matrix("token_embedding", Role::TokenEmbedding, [vocab_size, c], STANDARD_DEVIATION);
        if config.position == PositionKind::Learned {
            let shape = [config.context_length, c];
            embeddings.matrix("position_embedding", Role::PositionEmbedding, shape, STANDARD_DEVIATION);
        }
        last.norm("norm", Role::FinalNorm);
        if !config.tie_embeddings {
            last.matrix("output", Role::Output, [c, vocab_size], STANDARD_DEVIATION);
        }
        [embeddings.rows, last.rows]
    }

    /// The parameters of one block. All blocks but the first have the same.
    #[must_use]
    pub fn of_block(config: &ModelConfig, block_idx: usize) -> Vec<Self> {
        let ModelConfig { d_model: c, d_ff: f, head_dim, n_heads, n_kv_heads, n_layers, bias, .. } = *config;
        let (d_heads, d_kv) = (n_heads * head_dim, n_kv_heads * head_dim);
        let qkv = [d_heads, d_kv, d_kv];
        let std = STANDARD_DEVIATION;
        let std_to_residual = if config.zero_init_projections { 0.0 } else { std / (2.0 * n_layers as f64).sqrt() };

        let mut block = Section::new(config, format!("blocks.{block_idx}."));
        block.norm("attention_norm", Role::AttentionNorm);
        block.linear("attention.qkv", Role::Qkv(qkv), [c, qkv.iter().sum()], std, config.qkv_bias);
        block.linear("attention.output", Role::AttentionOutput, [d_heads, c], std_to_residual, bias);
        if config.qk_norm {
            block.scale("attention.q_norm", Role::QNorm, head_dim);
            block.scale("attention.k_norm", Role::KNorm, head_dim);
        }
        // The first block has no earlier values to mix in.
        if config.value_residual && block_idx > 0 {
            block.add("attention.value_factors", Role::Factors, vec![2], Initial::Pair([0.5, 0.5]));
        }
        block.norm("mlp_norm", Role::MlpNorm);
        block.linear("mlp.expand", Role::Up, [c, f], std, bias);
        if config.is_gated() {
            block.linear("mlp.gate", Role::Gate, [c, f], std, bias);
        }
        block.linear("mlp.contract", Role::Down, [f, c], std_to_residual, bias);
        if config.embedding_skip {
            block.add("skip_factors", Role::Factors, vec![2], Initial::Pair([1.0, 0.0]));
        }
        block.rows
    }

    /// The number of values.
    #[must_use]
    pub fn n_numbers(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).fold(1, u64::saturating_mul)
    }

    /// Whether it is the matrix of a linear layer, `[in, out]`.
    #[must_use]
    pub fn is_linear(&self) -> bool {
        self.shape.len() == 2 && !matches!(self.role, Role::TokenEmbedding | Role::PositionEmbedding)
    }

    /// Whether it is the bias of its layer, rather than the weight.
    #[must_use]
    pub fn is_bias(&self) -> bool {
        self.path.rsplit('.').next() == Some("bias")
    }

    /// The widths of the matrices that lie side by side in a matrix of a block: queries, keys and values, or the only
    /// one. `None` for any other parameter.
    #[must_use]
    pub fn hidden_widths(&self) -> Option<Vec<usize>> {
        let is_hidden = self.is_linear() && self.role != Role::Output;
        is_hidden.then(|| match self.role {
            Role::Qkv(widths) => widths.to_vec(),
            _ => vec![self.shape[1]],
        })
    }
}

/// Some rows of the table, whose paths start with `prefix`.
struct Section<'a> {
    config: &'a ModelConfig,
    prefix: String,
    rows: Vec<Parameter>,
}

impl<'a> Section<'a> {
    fn new(config: &'a ModelConfig, prefix: String) -> Self {
        Self { config, prefix, rows: Vec::new() }
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

    /// A norm without a shift.
    fn scale(&mut self, name: &str, role: Role, n: usize) {
        if self.config.norm_weights {
            self.add(&format!("{name}.weight"), role, vec![n], Initial::Constant(1.0));
        }
    }

    /// A norm of the residual stream.
    fn norm(&mut self, name: &str, role: Role) {
        let ModelConfig { d_model, norm_weights, bias, norm, .. } = *self.config;
        self.scale(name, role, d_model);
        if norm_weights && bias && norm == NormKind::LayerNorm {
            self.bias(name, role, d_model);
        }
    }
}
