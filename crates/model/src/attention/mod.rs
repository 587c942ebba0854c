//! Attention: the query of each position is compared with the keys of the positions it may see, and the output is a sum
//! of their values, weighted by how well the keys match.
//!
//! [`MultiHeadAttention`] is the model's layer. [`scaled_dot_product_attention`] is the plain formula, which also
//! returns the weights, and [`steps`] has one function for each step of the formula.

mod explicit;
mod kv_cache;
mod rope;
pub mod steps;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::placeholders::Placeholders;
use super::probe::{NoProbe, Pass, Point, Probe};
use super::{Linear, Norm, Parameter};
use crate::config::{ModelConfig, NormKind};
use tinderbox_kernels::attention::AttentionShape;
use tinderbox_kernels::{
    self as kernels, CausalAttention, MatmulPrecision, Operations, QkNorm, SelfAttention, TrainingMemory,
};

use explicit::attention_with;
pub use explicit::{causal_mask, scaled_dot_product_attention};
pub use kv_cache::{KvCache, LayerCache};
pub use rope::Rotation;

/// The configuration of a [`MultiHeadAttention`].
#[allow(clippy::struct_excessive_bools, reason = "independent choices")]
#[derive(Clone, Debug, PartialEq)]
pub struct MultiHeadAttentionConfig {
    /// Width of the input and output vectors.
    pub d_model: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Whether the output projection adds a bias.
    pub bias: bool,
    /// Whether the projections to queries, keys and values add a bias.
    pub qkv_bias: bool,
    /// The epsilon of the RMS norms of queries and keys; `None` without these norms.
    ///
    /// Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters", section 2.
    pub qk_norm: Option<f64>,
    /// Whether these norms are over the queries, or keys, of all heads together, instead of each head's.
    pub qk_norm_across_heads: bool,
    /// Whether the norms of queries and keys have learned scales.
    pub norm_weights: bool,
    /// The block's role in the value residual; `None` without a value residual.
    pub value_residual: Option<ValueResidual>,
    /// Whether a position sees only itself and the positions before it.
    pub causal: bool,
    /// Multiplies the attention scores.
    pub scale: f64,
    /// The cap of attention scores: see [`softcap`](tinderbox_kernels::softcap).
    pub softcap: Option<f64>,
    /// Sliding window: the number of positions that a query of a causal attention sees, including its own; `None` for
    /// its own and all earlier positions.
    ///
    /// Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", section 4.2.
    pub window: Option<usize>,
    /// Probability of dropping an attention weight in training, in `[0, 1)`.
    pub dropout: f64,
}

impl MultiHeadAttentionConfig {
    /// Causal attention with as many key/value heads as query heads, with biases, and without dropout or `qk_norm`.
    ///
    /// # Panics
    /// If `n_heads` does not divide `d_model`.
    pub fn new(d_model: usize, n_heads: usize) -> Self {
        assert!(d_model.is_multiple_of(n_heads), "{n_heads} heads in {d_model} dimensions");
        let config = ModelConfig { d_model, n_heads, n_kv_heads: n_heads, bias: true, ..ModelConfig::default() };
        Self::from_model(&config.with_derived(), 0)
    }

    /// The causal attention of the block at index `block_idx`.
    pub fn from_model(config: &ModelConfig, block_idx: usize) -> Self {
        let ModelConfig { d_model, n_heads, n_kv_heads, head_dim, bias, qkv_bias, qk_norm, dropout, .. } = *config;
        let value_residual = if block_idx == 0 { ValueResidual::First } else { ValueResidual::Later };
        Self {
            d_model,
            n_heads,
            n_kv_heads,
            head_dim,
            bias,
            qkv_bias,
            qk_norm: qk_norm.then(|| config.qk_norm_eps()),
            qk_norm_across_heads: config.qk_norm_across_heads,
            norm_weights: config.norm_weights,
            value_residual: config.value_residual.then_some(value_residual),
            causal: true,
            scale: config.attention_scale(),
            softcap: config.attention_softcap,
            window: config.attention_window_of(block_idx),
            dropout,
        }
    }

    pub(crate) fn qkv_widths(&self) -> [usize; 3] {
        [self.n_heads, self.n_kv_heads, self.n_kv_heads].map(|n| n * self.head_dim)
    }

    pub(crate) fn qk_norm_widths(&self) -> Option<[usize; 2]> {
        self.qk_norm?;
        let n_heads = if self.qk_norm_across_heads { [self.n_heads, self.n_kv_heads] } else { [1, 1] };
        Some(n_heads.map(|n| n * self.head_dim))
    }

    /// The module with all projections zero, ready for its weights to be initialized or loaded by name.
    ///
    /// # Panics
    /// If `n_kv_heads` does not divide `n_heads`.
    pub fn init(&self, device: &Device) -> MultiHeadAttention {
        Placeholders::make(Parameter::of_attention(self), device, |attention| self.module(attention))
    }

    pub(crate) fn module(&self, attention: &Placeholders<'_>) -> MultiHeadAttention {
        let Self { n_heads, n_kv_heads, qk_norm, .. } = *self;
        assert!(n_heads.is_multiple_of(n_kv_heads), "{n_heads} heads over {n_kv_heads} key heads");
        let norm = |of: usize, name| {
            let (epsilon, widths) = qk_norm.zip(self.qk_norm_widths())?;
            Some(Norm::new(NormKind::RmsNorm, widths[of], epsilon, &attention.child(name)))
        };
        MultiHeadAttention {
            qkv: Linear::placeholder(attention, "qkv").expect("the table has the projection of every attention"),
            output: Linear::placeholder(attention, "output").expect("the table has the projection of every attention"),
            q_norm: norm(0, "q_norm"),
            k_norm: norm(1, "k_norm"),
            value_factors: attention.get("value_factors"),
            config: self.clone(),
        }
    }

    /// The memory of [`MultiHeadAttention::forward`] over `rows` (B, T) in training, without that of its input.
    pub(crate) fn training_memory(&self, operations: Operations, rows @ [b, t]: [usize; 2]) -> AttentionMemory {
        let Self { d_model, n_heads, n_kv_heads, head_dim, .. } = *self;
        let [q, k, v] = self.qkv_widths();
        let of_width = |width: usize| [b, t, width];
        let qkv = of_width(q + k + v); // [B, T, (H + 2 Hkv) D]
        let values = match self.value_residual {
            Some(ValueResidual::Later) => kernels::mix::saved_bytes(qkv, Some(of_width(v))),
            Some(ValueResidual::First) | None => 0.0,
        };
        let norms_all = self.qk_norm.is_some() && self.qk_norm_across_heads;
        // The norms over all heads, and the projection with their outputs in it.
        let across_heads = match norms_all {
            true => kernels::norm::saved_bytes(of_width(q + k)) + kernels::norm::saved_bytes(qkv) / 2.0,
            false => 0.0,
        };
        let qk_norm = self.qk_norm.is_some() && !norms_all;
        let shape = AttentionShape { rows, n_heads, n_kv_heads, head_dim, qk_norm, softcap: self.softcap.is_some() };
        let heads = kernels::attention::training_memory(operations, shape);
        AttentionMemory {
            projection: kernels::linear::training_memory(operations, rows, [d_model, q + k + v]),
            heads: TrainingMemory { saved: heads.saved + values + across_heads, ..heads },
            weights: kernels::attention::weights_memory(operations, shape, self.dropout > 0.0),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionMemory {
    /// The projection to queries, keys and values.
    pub(crate) projection: TrainingMemory,
    /// From queries, keys and values to the output.
    pub(crate) heads: TrainingMemory,
    /// Attention weights in the backward pass.
    pub(crate) weights: f64,
}

/// The role of a block in the value residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueResidual {
    /// The first block, whose values the later blocks mix into theirs.
    First,
    /// Any later block.
    Later,
}

/// Multi-head attention with learned projections to queries, keys, values and the output.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
#[derive(Module, Debug)]
pub struct MultiHeadAttention {
    /// The fused projection `[C, (H + 2 Hkv) D]`: queries, then keys, then values.
    pub qkv: Linear,
    /// The output projection, which mixes the heads, `[H D, C]`.
    pub output: Linear,
    /// Norm of queries, if configured.
    pub q_norm: Option<Norm>,
    /// Norm of keys, if configured.
    pub k_norm: Option<Norm>,
    /// The weights of the block's values and of the first block's values, `[2]`, each initialized to one half; `None`
    /// in the first block and without a value residual.
    pub value_factors: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) config: MultiHeadAttentionConfig,
}

impl MultiHeadAttention {
    /// Self-attention over `x`: every position gathers values from the positions it may see.
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
        let qkv = self.norm_across_heads(self.qkv.forward_fused(x, pass)); // [B, T, (H + 2 Hkv) D]
        let qkv = self.with_first_values(qkv, pass);
        let context = if self.config.causal && cache.is_none() && !P::ACTIVE {
            let attention = self.fused(rotation, pass, &qkv.device());
            kernels::self_attention(qkv, attention) // [B, T, H D]
        } else {
            let heads = self.attend_stepwise(qkv, rotation, cache, pass); // [B, H, T, D]
            kernels::merge_heads(pass.visit(Point::Heads, heads)) // [B, T, H D]
        };
        let output = self.output.forward_fused(context, pass); // [B, T, C]
        pass.visit(Point::Attention, output)
    }

    /// Returns the output and the attention weights, computed in f32 and without rotary positions, for lessons. With a
    /// `context`, this is cross-attention: queries come from `x`, keys and values from `context`, and every query sees
    /// all keys.
    ///
    /// # Shapes
    /// `x: [B, T, C]`, `context: [B, S, C]` -> output `[B, T, C]`, weights `[B, H, T, S]`, each row summing to 1
    pub fn attend(&self, x: Tensor<3>, context: Option<Tensor<3>>) -> (Tensor<3>, Tensor<4>) {
        let [_, t, _] = x.dims();
        let is_causal = self.config.causal && context.is_none();
        let mask = is_causal.then(|| kernels::unseen(0..t, t, self.config.window, &x.device())); // [1, 1, T, T]
        let mut probe = NoProbe;
        let pass = Pass::new(&mut probe, MatmulPrecision::F32, None);
        let project = |x| self.split(self.norm_across_heads(self.qkv.forward_fused(x, &pass)));
        let [q, mut k, mut v] = project(x); // [B, H, T, D], twice [B, Hkv, T, D]
        if let Some(context) = context {
            [_, k, v] = project(context); // twice [B, Hkv, S, D]
        }
        let [k, v] = [k, v].map(|x| kernels::repeat_kv(x, self.config.n_heads)); // each [B, H, S, D]
        let (heads, weights) = attention_with(q, k, v, mask, self.config.scale, self.config.softcap); // [B, H, T, D]
        let context = kernels::merge_heads(heads); // [B, T, H D]
        (self.output.forward_fused(context, &pass), weights) // [B, T, C]
    }

    /// Applies the value residual, if configured: the first block stores its values in `pass`, and later blocks mix
    /// them into theirs.
    fn with_first_values<P: Probe>(&self, qkv: Tensor<3>, pass: &mut Pass<'_, P>) -> Tensor<3> {
        match (self.config.value_residual, &self.value_factors) {
            (Some(ValueResidual::First), _) => {
                let n_values = self.config.n_kv_heads * self.config.head_dim;
                let before = qkv.dims()[2] - n_values;
                pass.first_values = Some(qkv.clone().narrow(2, before, n_values)); // [B, T, Hkv D]
                qkv
            }
            (Some(ValueResidual::Later), Some(factors)) => {
                let first = pass.first_values.clone().expect("the first block keeps its values");
                kernels::mix(qkv, first, factors.val())
            }
            _ => qkv,
        }
    }

    fn norms_of_heads(&self) -> Option<(&Norm, &Norm)> {
        self.q_norm.as_ref().zip(self.k_norm.as_ref()).filter(|_| !self.config.qk_norm_across_heads)
    }

    /// Applies the norms of the queries and keys of all heads together, if configured.
    ///
    /// # Shapes
    /// `qkv: [B, T, (H + 2 Hkv) D]` -> the same
    pub fn norm_across_heads(&self, qkv: Tensor<3>) -> Tensor<3> {
        let (Some(q_norm), Some(k_norm), true) = (&self.q_norm, &self.k_norm, self.config.qk_norm_across_heads) else {
            return qkv;
        };
        let (d_q, d_k) = (q_norm.dim(), k_norm.dim());
        let part = |first, n| qkv.clone().narrow(2, first, n);
        Tensor::cat(vec![q_norm.forward(part(0, d_q)), k_norm.forward(part(d_q, d_k)), part(d_q + d_k, d_k)], 2)
    }

    fn fused<P: Probe>(&self, rotation: Option<&Rotation>, pass: &Pass<'_, P>, device: &Device) -> SelfAttention {
        SelfAttention {
            n_heads: self.config.n_heads,
            n_kv_heads: self.config.n_kv_heads,
            norm: self.norms_of_heads().map(|(q, k)| {
                let [q_scale, k_scale] = [q, k].map(|norm| norm.scale(device));
                QkNorm { q: q_scale, k: k_scale, epsilon: q.epsilon() }
            }),
            rotation: rotation.map(Rotation::angles),
            scale: self.config.scale,
            softcap: self.config.softcap,
            window: self.config.window,
            dropout: pass.dropout(Point::Weights, self.config.dropout),
            lengths: pass.lengths.clone(),
        }
    }

    /// Attention step by step, for a cache or an active probe. Returns the output of each head, `[B, H, T, D]`.
    fn attend_stepwise<P: Probe>(
        &self,
        qkv: Tensor<3>,
        rotation: Option<&Rotation>,
        cache: Option<&mut LayerCache>,
        pass: &mut Pass<'_, P>,
    ) -> Tensor<4> {
        let [mut q, mut k, v] = self.split(qkv); // [B, H, T, D], twice [B, Hkv, T, D]
        if let Some(rotation) = rotation {
            (q, k) = (rotation.apply(q), rotation.apply(k));
        }
        let q = pass.visit(Point::Queries, q);
        let mut k = pass.visit(Point::Keys, k);
        let mut v = pass.visit(Point::Values, v);
        if let Some(cache) = cache {
            (k, v) = cache.append(k, v); // each [B, Hkv, S, D]
        }
        if self.config.causal && !P::ACTIVE {
            let dropout = pass.dropout(Point::Weights, self.config.dropout);
            let MultiHeadAttentionConfig { scale, softcap, window, .. } = self.config;
            let attention = CausalAttention { scale, softcap, window, dropout };
            return kernels::causal_attention(q, k, v, attention); // [B, H, T, D]
        }
        let ([_, _, t, _], [_, _, s, _]) = (q.dims(), k.dims());
        let mask = self.config.causal.then(|| kernels::unseen(s - t..s, s, self.config.window, &q.device())); // [1, 1, T, S]
        let [k, v] = [k, v].map(|x| kernels::repeat_kv(x, self.config.n_heads)); // each [B, H, S, D]
        let weights = kernels::attention_weights(q, k, mask, self.config.scale, self.config.softcap); // [B, H, T, S]
        let weights = pass.visit(Point::Weights, weights);
        pass.drop(Point::Weights, weights, self.config.dropout).matmul(v) // [B, H, T, D]
    }

    /// Splits `qkv` into the queries, keys and values of each head, `[B, H, T, D]` and twice `[B, Hkv, T, D]`, and
    /// applies the norms of each head's queries and keys, if configured.
    fn split(&self, qkv: Tensor<3>) -> [Tensor<4>; 3] {
        let [q, k, v] = kernels::split_heads(qkv, self.config.n_heads, self.config.n_kv_heads);
        match self.norms_of_heads() {
            Some((q_norm, k_norm)) => [q_norm.forward(q), k_norm.forward(k), v],
            None => [q, k, v],
        }
    }
}
