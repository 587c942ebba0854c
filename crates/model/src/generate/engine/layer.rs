//! One transformer block: the computation of [`Block::forward`] on packed weights.

use burn::module::Param;
use burn::tensor::Tensor;

use super::adapters::Products;
use super::{host, in_f32, linear, scale, scaled_linear, scaled_norm};
use crate::attention::{MultiHeadAttention, MultiHeadAttentionConfig};
use crate::{Block, Mlp, Norm, Target};
use tinderbox_kernels::decode::{
    Activation, Angles, Buffers, Cache, ColumnNorm, Heads, PackedLinear, PackedRows, Precision, RowNorm, Rows, Stream,
    attend,
};

#[derive(Debug)]
pub(super) struct Layer {
    is_first: bool,
    /// The factors of the residual stream and the embedding, if the layer has an embedding skip.
    skip_factors: Option<[f32; 2]>,
    attention_norm: Option<RowNorm>,
    qkv: PackedLinear,
    /// The factors of this layer's values and the first layer's values, in later layers with a value residual.
    value_factors: Option<[f32; 2]>,
    /// The heads, without their norms and rotation.
    heads: Heads<'static>,
    /// The norms of each head's queries and keys.
    qk_norm: Option<[Vec<f32>; 2]>,
    /// The norms of the queries and keys of all heads together.
    across_heads: Option<[ColumnNorm; 2]>,
    output: PackedLinear,
    post_attention_norm: Option<RowNorm>,
    /// Whether the MLP reads the layer's input too.
    parallel_residual: bool,
    mlp_norm: Option<RowNorm>,
    up: PackedLinear,
    activation: Activation,
    gate: Option<PackedLinear>,
    down: PackedLinear,
    post_mlp_norm: Option<RowNorm>,
    /// Multiplies the projections to the residual stream. 1 if norms follow them, which are multiplied instead.
    to_residual: f64,
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
    pub(super) fn new(block: &Block, block_idx: usize, precision: Precision) -> Self {
        let Block {
            attention_norm,
            attention,
            post_attention_norm,
            mlp_norm,
            mlp,
            post_mlp_norm,
            skip_factors,
            parallel_residual,
            residual_scale,
            dropout: _,
        } = block;
        let MultiHeadAttention { qkv, output, q_norm, k_norm, value_factors, config: attention } = attention;
        let Mlp { expand: up, gate, contract: down, activation } = mlp;
        let pre_norm = |norm: &Option<Norm>| norm.as_ref().map(|norm| scaled_norm(norm, 1.0));
        let post_norm = |norm: &Option<Norm>| norm.as_ref().map(|norm| scaled_norm(norm, *residual_scale));
        let to_residual = if post_attention_norm.is_some() { 1.0 } else { *residual_scale };
        let qk_norm = q_norm.as_ref().zip(k_norm.as_ref());
        let across_heads = qk_norm.filter(|_| attention.qk_norm_across_heads).map(|(q, k)| {
            [(0, q), (q.dim(), k)].map(|(first, norm)| ColumnNorm::new(first, scale(norm), norm.epsilon()))
        });
        let of_heads = qk_norm.filter(|_| !attention.qk_norm_across_heads);
        Self {
            is_first: block_idx == 0,
            skip_factors: skip_factors.as_ref().map(pair),
            attention_norm: pre_norm(attention_norm),
            qkv: linear(qkv, precision),
            value_factors: value_factors.as_ref().map(pair),
            heads: heads(attention),
            qk_norm: of_heads.map(|(q, k)| [q, k].map(scale)),
            across_heads,
            output: scaled_linear(output, precision, to_residual),
            post_attention_norm: post_norm(post_attention_norm),
            parallel_residual: *parallel_residual,
            mlp_norm: pre_norm(mlp_norm),
            up: linear(up, precision),
            activation: *activation,
            gate: gate.as_ref().map(|gate| linear(gate, precision)),
            down: scaled_linear(down, precision, to_residual),
            post_mlp_norm: post_norm(post_mlp_norm),
            to_residual,
        }
    }

    /// Whether norms follow the projections to the residual stream.
    pub(super) fn has_post_norms(&self) -> bool {
        self.post_attention_norm.is_some()
    }

    /// The size of all weight matrices in bytes.
    pub(super) fn bytes(&self) -> usize {
        let always = [&self.qkv, &self.output, &self.up, &self.down];
        always.into_iter().chain(&self.gate).map(PackedLinear::bytes).sum()
    }

    /// The matrix that holds this target, and the factor that its weights were multiplied by.
    pub(super) fn linear(&self, target: Target) -> (&PackedLinear, f64) {
        match target {
            Target::Q | Target::K | Target::V => (&self.qkv, 1.0),
            Target::AttentionOutput => (&self.output, self.to_residual),
            Target::Gate => (self.gate.as_ref().expect("only a gated MLP has adapters of the gate"), 1.0),
            Target::Up => (&self.up, 1.0),
            Target::Down => (&self.down, self.to_residual),
        }
    }

    pub(super) fn forward(
        &self,
        work: &mut Work,
        cache: (&mut Cache, usize),
        stream: &Stream<'_>,
        rotation: Option<Angles<'_>>,
        mut products: Products<'_>,
    ) {
        let Work { x, normed, embedding, first_values, qkv, context, gate, hidden, buffers } = work;
        let norms = self.qk_norm.as_ref().map(|[q, k]| [&q[..], &k[..]]);
        let heads = Heads { norms, rotation, ..self.heads };
        self.mix(x, embedding, self.skip_factors, stream.n_rows); // the block's input
        normalize(self.attention_norm.as_ref(), x, stream.n_rows, normed);
        products.store(&self.qkv, |of| &of.qkv, normed, qkv);
        self.across_heads.iter().flatten().for_each(|norm| norm.apply(qkv, stream.n_rows));
        self.mix(qkv, first_values, self.value_factors, stream.n_rows);
        attend(heads, stream, cache, qkv, buffers, context);
        if self.parallel_residual {
            normalize(self.mlp_norm.as_ref(), x, stream.n_rows, normed); // the block's input
        }
        products.add(&self.output, |of| &of.output, self.post_attention_norm.as_ref(), context, x);
        if !self.parallel_residual {
            normalize(self.mlp_norm.as_ref(), x, stream.n_rows, normed);
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
fn normalize(norm: Option<&RowNorm>, x: &Rows, n_rows: usize, out: &mut PackedRows) {
    match norm {
        Some(norm) => norm.apply(x, 0..n_rows, out),
        None => out.pack(x, n_rows),
    }
}

fn pair(factors: &Param<Tensor<1>>) -> [f32; 2] {
    host(factors.val()).try_into().expect("the table gives it two values")
}

/// The heads of an attention layer, without their norms and rotation.
fn heads(attention: &MultiHeadAttentionConfig) -> Heads<'static> {
    // Without `..`: a new option does not compile until the engine supports it.
    let MultiHeadAttentionConfig {
        d_model: _, // the shapes of the weights, as are biases and the norms' scales
        n_heads,
        n_kv_heads,
        head_dim,
        bias: _,
        qkv_bias: _,
        qk_norm,
        qk_norm_across_heads: _, // in `Layer::new`
        norm_weights: _,
        value_residual: _, // follows from the factors
        causal: _,         // always, in a model
        scale,
        softcap,
        window,
        dropout: _, // only in training
    } = *attention;
    let epsilon = in_f32(qk_norm.unwrap_or_default());
    Heads { n_heads, n_kv_heads, head_dim, norms: None, epsilon, rotation: None, scale, softcap, window }
}

impl Work {
    /// Memory for passes through `layers`; each pair in `streams` is a number of sequences and of new positions.
    pub(super) fn new(layers: &[Layer], streams: &[[usize; 2]]) -> Self {
        let Layer { qkv, heads, output, gate, up, .. } = &layers[0];
        let n_rows = streams.iter().map(|[n, t]| n * t).max().unwrap_or(0);
        let ([d_model, qkv_width], [context_width, _], [_, d_ff]) = (qkv.shape(), output.shape(), up.shape());
        // The columns that a layer keeps for later ones, if any of these uses them.
        let kept = |is_used: fn(&Layer) -> bool, width| if layers.iter().any(is_used) { width } else { 0 };
        Self {
            x: Rows::new(n_rows, d_model),
            normed: PackedRows::new(n_rows, d_model),
            embedding: Rows::new(n_rows, kept(|layer| layer.skip_factors.is_some(), d_model)),
            first_values: Rows::new(
                n_rows,
                kept(|layer| layer.value_factors.is_some(), heads.n_kv_heads * heads.head_dim),
            ),
            qkv: Rows::new(n_rows, qkv_width),
            context: PackedRows::new(n_rows, context_width),
            gate: PackedRows::new(n_rows, if gate.is_some() { d_ff } else { 0 }),
            hidden: PackedRows::new(n_rows, d_ff),
            buffers: Buffers::new(*heads, streams),
        }
    }
}
