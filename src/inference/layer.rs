//! One block: what `model::Block` computes, on panels.

use super::engine::{host, linear, norm};
use crate::config::{MlpKind, ModelConfig};
use crate::model::Block;
use tinderbox_kernels::decode::{
    Cache, Heads, Norm, Precision, Room, Rotation, Row, Stream, Then, Weights, attend, n_panels,
    product,
};

/// A projection: packed weights `[K, N]`, and a bias.
#[derive(Debug)]
pub(super) struct Linear {
    pub(super) weights: Weights,
    pub(super) bias: Option<Vec<Row>>,
}

/// The weights of a block.
#[derive(Debug)]
pub(super) struct Layer {
    attention_norm: Norm,
    qkv: Linear,
    /// Weights of the RMS norms of queries and keys, and what these add to the mean square.
    qk_norm: Option<([Vec<f32>; 2], f32)>,
    output: Linear,
    mlp_norm: Norm,
    expand: Linear,
    activation: Activation,
    contract: Linear,
    d_model: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

#[derive(Debug)]
enum Activation {
    Gelu,
    ReluSquared,
    Swiglu { gate: Linear },
}

/// Room for what a pass computes, in panels of as many rows as it has.
#[derive(Debug)]
pub(super) struct Work {
    /// The residual stream, `[n, C]`.
    pub(super) x: Vec<Row>,
    /// `[n, C]`
    pub(super) normed: Vec<Row>,
    qkv: Vec<Row>,
    context: Vec<Row>,
    gate: Vec<Row>,
    hidden: Vec<Row>,
    room: Room,
}

impl Layer {
    pub(super) fn new(block: &Block, config: &ModelConfig, precision: Precision) -> Self {
        let attention = &block.attention;
        let activation = match (config.mlp, &block.mlp.gate) {
            (MlpKind::Gelu, _) => Activation::Gelu,
            (MlpKind::ReluSquared, _) => Activation::ReluSquared,
            (MlpKind::Swiglu, Some(gate)) => Activation::Swiglu { gate: linear(gate, precision) },
            (MlpKind::Swiglu, None) => unreachable!("a SwiGLU is made with its gate"),
        };
        #[allow(clippy::cast_possible_truncation, reason = "everything here is computed in f32")]
        let qk_norm = match (&attention.q_norm, &attention.k_norm) {
            (Some(q), Some(k)) => Some(([host(&q.weight), host(&k.weight)], q.epsilon() as f32)),
            _ => None,
        };
        Self {
            attention_norm: norm(&block.attention_norm, config.norm),
            qkv: linear(&attention.qkv, precision),
            qk_norm,
            output: linear(&attention.output, precision),
            mlp_norm: norm(&block.mlp_norm, config.norm),
            expand: linear(&block.mlp.expand, precision),
            activation,
            contract: linear(&block.mlp.contract, precision),
            d_model: config.d_model,
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim(),
        }
    }

    /// Bytes of all matrices.
    pub(super) fn bytes(&self) -> usize {
        let gate = match &self.activation {
            Activation::Swiglu { gate } => gate.weights.bytes(),
            Activation::Gelu | Activation::ReluSquared => 0,
        };
        let always = [&self.qkv, &self.output, &self.expand, &self.contract];
        gate + always.map(|linear| linear.weights.bytes()).iter().sum::<usize>()
    }

    /// Takes the residual stream in `work` through the block.
    pub(super) fn forward(
        &self,
        work: &mut Work,
        cache: (&mut Cache, usize),
        stream: &Stream<'_>,
        rotation: Option<&Rotation>,
    ) {
        let n_rows = stream.n_rows;
        let Work { x, normed, qkv, context, gate, hidden, room } = work;
        let width = n_panels(self.d_model) * n_rows;
        let (x, normed, context) = (&mut x[..width], &mut normed[..width], &mut context[..width]);
        self.attention_norm.apply(x, normed, n_rows);
        let qkv = self.qkv.apply(normed, Then::Store, qkv, n_rows);
        attend(self.heads(rotation), stream, cache, qkv, room, context);
        self.output.apply(context, Then::Add, x, n_rows);
        self.mlp_norm.apply(x, normed, n_rows);
        let then = match &self.activation {
            Activation::Gelu => Then::Gelu,
            Activation::ReluSquared => Then::ReluSquared,
            Activation::Swiglu { gate: linear } => {
                Then::Gate(linear.apply(normed, Then::Store, gate, n_rows))
            }
        };
        let hidden = self.expand.apply(normed, then, hidden, n_rows);
        self.contract.apply(hidden, Then::Add, x, n_rows);
    }

    fn heads<'a>(&'a self, rotation: Option<&'a Rotation>) -> Heads<'a> {
        let norms = self.qk_norm.as_ref();
        Heads {
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            norms: norms.map(|([q, k], _)| [&q[..], &k[..]]),
            epsilon: norms.map_or(0.0, |(_, epsilon)| *epsilon),
            rotation,
        }
    }
}

impl Work {
    /// Room for passes with any of these pairs of numbers of samples and of new positions, over a cache of this
    /// capacity.
    pub(super) fn new(config: &ModelConfig, capacity: usize, streams: &[[usize; 2]]) -> Self {
        let (n_heads, n_kv_heads) = (config.n_heads, config.n_kv_heads);
        let heads = Heads {
            n_heads,
            n_kv_heads,
            head_dim: config.head_dim(),
            norms: None,
            epsilon: 0.0,
            rotation: None,
        };
        let n_rows = streams.iter().map(|[n, t]| n * t).max().unwrap_or(0);
        let rows = |columns: usize| vec![Row::ZERO; n_panels(columns) * n_rows];
        let is_gated = config.mlp == MlpKind::Swiglu;
        Self {
            x: rows(config.d_model),
            normed: rows(config.d_model),
            qkv: rows((n_heads + 2 * n_kv_heads) * config.head_dim()),
            context: rows(config.d_model),
            gate: rows(if is_gated { config.d_ff } else { 0 }),
            hidden: rows(config.d_ff),
            room: Room::new(heads, capacity, streams),
        }
    }
}

impl Linear {
    /// Writes to the first rows of `out`, and returns these.
    fn apply<'a>(
        &self,
        x: &[Row],
        then: Then<'_>,
        out: &'a mut [Row],
        n_rows: usize,
    ) -> &'a mut [Row] {
        let out = &mut out[..n_panels(self.weights.outputs()) * n_rows];
        product(&self.weights, x, self.bias.as_deref(), then, out, n_rows);
        out
    }
}
