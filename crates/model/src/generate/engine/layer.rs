//! One transformer block: the computation of `model::Block` on packed weights.

use burn::module::Param;
use burn::tensor::Tensor;

use super::adapters::Products;
use super::{host, linear, norm, scale, scaled_linear, scaled_norm};
use crate::config::ModelConfig;
use crate::{Block, Norm, Target};
use tinderbox_kernels::decode::{
    Activation, Angles, Buffers, Cache, ColumnNorm, Heads, PackedLinear, PackedRows, Precision, RowNorm, Rows, Stream,
    attend,
};

#[derive(Debug)]
pub(super) struct Layer {
    /// The norm of what attention reads, if there is one.
    attention_norm: Option<RowNorm>,
    /// The factors of the residual stream and the embedding, if the layer has an embedding skip.
    skip_factors: Option<[f32; 2]>,
    qkv: PackedLinear,
    /// The factors of this layer's values and the first layer's values, in later layers with a value residual.
    value_factors: Option<[f32; 2]>,
    is_first: bool,
    /// The norms of each head's queries and keys.
    qk_norm: Option<[Vec<f32>; 2]>,
    /// The norms of the queries and keys of all heads together.
    across_heads: Option<[ColumnNorm; 2]>,
    /// The number of positions that a query sees.
    window: Option<usize>,
    /// Whether queries and keys are rotated.
    rotates: bool,
    output: PackedLinear,
    /// The norm of what attention writes, if there is one.
    post_attention_norm: Option<RowNorm>,
    /// The norm of what the MLP reads, if there is one.
    mlp_norm: Option<RowNorm>,
    up: PackedLinear,
    activation: Activation,
    gate: Option<PackedLinear>,
    down: PackedLinear,
    /// The norm of what the MLP writes, if there is one.
    post_mlp_norm: Option<RowNorm>,
}

/// Memory for the intermediate results of a pass, as rows of the current sequences.
#[derive(Debug)]
pub(super) struct Work {
    /// The residual stream, `[n, C]`.
    pub(super) x: Rows,
    /// `[n, C]`
    pub(super) normed: PackedRows,
    /// The input of the first layer, `[n, C]`, if later layers use it.
    embedding: Rows,
    /// The values of the first layer, `[n, Hkv D]`, if later layers use them.
    first_values: Rows,
    qkv: Rows,
    context: PackedRows,
    gate: PackedRows,
    hidden: PackedRows,
    buffers: Buffers,
}

impl Layer {
    pub(super) fn new(block: &Block, block_idx: usize, config: &ModelConfig, precision: Precision) -> Self {
        let (attention, mlp) = (&block.attention, &block.mlp);
        let to_residual = scale_of_written(config);
        let post_norm =
            |norm: &Option<Norm>| norm.as_ref().map(|norm| scaled_norm(norm, config.norm, config.residual_scale));
        let pre_norm = |of: &Option<Norm>| of.as_ref().map(|of| norm(of, config.norm));
        let qk_norm = attention.q_norm.as_ref().zip(attention.k_norm.as_ref());
        let qk_norm = qk_norm.map(|(q, k)| [q, k].map(scale));
        let (of_heads, across_heads) = match qk_norm {
            Some([q, k]) if config.qk_norm_across_heads => {
                let (first_key, epsilon) = (q.len(), config.qk_norm_eps());
                (None, Some([ColumnNorm::new(0, q, epsilon), ColumnNorm::new(first_key, k, epsilon)]))
            }
            of_heads => (of_heads, None),
        };
        Self {
            attention_norm: pre_norm(&block.attention_norm),
            skip_factors: block.skip_factors.as_ref().map(pair),
            qkv: linear(&attention.qkv, precision),
            value_factors: attention.value_factors.as_ref().map(pair),
            is_first: block_idx == 0,
            qk_norm: of_heads,
            across_heads,
            window: config.attention_window_of(block_idx),
            rotates: config.rotates(block_idx),
            output: scaled_linear(&attention.output, precision, to_residual),
            post_attention_norm: post_norm(&block.post_attention_norm),
            mlp_norm: pre_norm(&block.mlp_norm),
            up: linear(&mlp.expand, precision),
            activation: config.mlp,
            gate: mlp.gate.as_ref().map(|gate| linear(gate, precision)),
            down: scaled_linear(&mlp.contract, precision, to_residual),
            post_mlp_norm: post_norm(&block.post_mlp_norm),
        }
    }

    /// The size of all weight matrices in bytes.
    pub(super) fn bytes(&self) -> usize {
        let always = [&self.qkv, &self.output, &self.up, &self.down];
        always.into_iter().chain(&self.gate).map(PackedLinear::bytes).sum()
    }

    /// The matrix with this target in it, and the factor by which it is multiplied.
    pub(super) fn linear(&self, target: Target, config: &ModelConfig) -> (&PackedLinear, f64) {
        match target {
            Target::Q | Target::K | Target::V => (&self.qkv, 1.0),
            Target::AttentionOutput => (&self.output, scale_of_written(config)),
            Target::Gate => (self.gate.as_ref().expect("a gate has adapters only if there is one"), 1.0),
            Target::Up => (&self.up, 1.0),
            Target::Down => (&self.down, scale_of_written(config)),
        }
    }

    /// Passes the residual stream in `work` through the block.
    pub(super) fn forward(
        &self,
        config: &ModelConfig,
        work: &mut Work,
        cache: (&mut Cache, usize),
        stream: &Stream<'_>,
        rotation: Option<Angles<'_>>,
        mut products: Products<'_>,
    ) {
        let Work { x, normed, embedding, first_values, qkv, context, gate, hidden, buffers } = work;
        let norms = self.qk_norm.as_ref().map(|[q, k]| [&q[..], &k[..]]);
        let rotation = rotation.filter(|_| self.rotates);
        let heads = Heads { norms, rotation, window: self.window, ..heads(config) };
        self.mix(x, embedding, self.skip_factors, stream.n_rows);
        read(self.attention_norm.as_ref(), x, stream.n_rows, normed);
        products.store(&self.qkv, |of| &of.qkv, normed, qkv);
        self.across_heads.iter().flatten().for_each(|norm| norm.apply(qkv, stream.n_rows));
        self.mix(qkv, first_values, self.value_factors, stream.n_rows);
        attend(heads, stream, cache, qkv, buffers, context);
        if config.parallel_residual {
            read(self.mlp_norm.as_ref(), x, stream.n_rows, normed); // the block's input
        }
        products.add(&self.output, |of| &of.output, self.post_attention_norm.as_ref(), context, x);
        if !config.parallel_residual {
            read(self.mlp_norm.as_ref(), x, stream.n_rows, normed);
        }
        if let Some(weights) = &self.gate {
            products.pack_into(weights, |of| &of.gate, normed, gate);
        }
        products.activate(&self.up, |of| &of.up, normed, self.activation, [gate, hidden]);
        products.add(&self.down, |of| &of.down, self.post_mlp_norm.as_ref(), hidden, x);
    }
}

impl Layer {
    /// Applies the embedding skip or the value residual: mixes the last columns of `rows` with those of the first
    /// layer, which saves its columns in `first`.
    fn mix(&self, rows: &mut Rows, first: &mut Rows, factors: Option<[f32; 2]>, n_rows: usize) {
        for row in 0..n_rows {
            let first = first.row_mut(row);
            let x = rows.row_mut(row);
            let before = x.len() - first.len();
            let x = &mut x[before..];
            if self.is_first {
                first.copy_from_slice(x);
            }
            if let Some([a, b]) = factors {
                x.iter_mut().zip(first).for_each(|(x, first)| *x = a * *x + b * *first);
            }
        }
    }
}

/// Packs the first rows of the residual stream, normalized if there is a norm.
fn read(norm: Option<&RowNorm>, x: &Rows, n_rows: usize, out: &mut PackedRows) {
    match norm {
        Some(norm) => norm.apply(x, 0..n_rows, out),
        None => out.pack(x, n_rows),
    }
}

/// The factor of the matrices that write to the residual stream. After a norm it is part of the norm.
fn scale_of_written(config: &ModelConfig) -> f64 {
    if config.post_norm { 1.0 } else { config.residual_scale }
}

/// The values of a parameter that holds two learned factors.
fn pair(factors: &Param<Tensor<1>>) -> [f32; 2] {
    host(factors.val()).try_into().expect("two")
}

/// The heads of a layer, without norms, rotation or window.
fn heads<'a>(config: &ModelConfig) -> Heads<'a> {
    #[allow(clippy::cast_possible_truncation, reason = "everything here is computed in f32")]
    let epsilon = config.qk_norm_eps() as f32;
    Heads {
        n_heads: config.n_heads,
        n_kv_heads: config.n_kv_heads,
        head_dim: config.head_dim,
        norms: None,
        epsilon,
        rotation: None,
        scale: config.attention_scale(),
        softcap: config.attention_softcap,
        window: None,
    }
}

impl Work {
    /// Memory for passes over a cache of `capacity`; each pair in `streams` is a number of sequences and of new
    /// positions.
    pub(super) fn new(config: &ModelConfig, capacity: usize, streams: &[[usize; 2]]) -> Self {
        let (n_heads, n_kv_heads, head_dim) = (config.n_heads, config.n_kv_heads, config.head_dim);
        let n_rows = streams.iter().map(|[n, t]| n * t).max().unwrap_or(0);
        let d_gate = if config.is_gated() { config.d_ff } else { 0 };
        Self {
            x: Rows::new(n_rows, config.d_model),
            normed: PackedRows::new(n_rows, config.d_model),
            embedding: Rows::new(n_rows, if config.embedding_skip { config.d_model } else { 0 }),
            first_values: Rows::new(n_rows, if config.value_residual { n_kv_heads * head_dim } else { 0 }),
            qkv: Rows::new(n_rows, (n_heads + 2 * n_kv_heads) * head_dim),
            context: PackedRows::new(n_rows, n_heads * head_dim),
            gate: PackedRows::new(n_rows, d_gate),
            hidden: PackedRows::new(n_rows, config.d_ff),
            buffers: Buffers::new(heads(config), capacity, streams),
        }
    }
}
