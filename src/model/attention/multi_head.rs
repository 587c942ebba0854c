//! Multi-head attention: several attentions side by side, with learned projections around them.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Bool, Device, Tensor, module};

use super::{LayerCache, Rotation, causal_mask, scaled_dot_product_attention};
use crate::model::norm::RMS_NORM_EPSILON;
use crate::model::parameters::zeros_linear;
use crate::model::probe::{Point, Probe};
use crate::model::{Norm, Pass};
use tinderbox_kernels::{self as kernels, MatmulPrecision, QkNorm, SelfAttention};

/// The shape of a [`MultiHeadAttention`].
#[derive(Clone, Debug, PartialEq)]
pub struct MultiHeadAttentionConfig {
    /// Width of the vectors that come in and go out.
    pub d_model: usize,
    /// Number of query heads; divides `d_model`.
    pub n_heads: usize,
    /// Number of key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Whether the projections add a bias.
    pub bias: bool,
    /// Whether each head's queries and keys go through an RMS norm of their own.
    ///
    /// Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters", section 2.
    pub qk_norm: bool,
    /// Whether a position sees only itself and what came before it.
    pub causal: bool,
    /// Probability with which a weight is dropped in training, in `[0, 1)`.
    pub dropout: f64,
}

impl MultiHeadAttentionConfig {
    /// A causal attention with as many key as query heads, biases, and neither dropout nor `qk_norm`.
    #[must_use]
    pub fn new(d_model: usize, n_heads: usize) -> Self {
        Self {
            d_model,
            n_heads,
            n_kv_heads: n_heads,
            bias: true,
            qk_norm: false,
            causal: true,
            dropout: 0.0,
        }
    }

    /// The module with all projections at zero: values are drawn by name, or loaded.
    ///
    /// # Panics
    /// If the heads do not divide the width, or the key heads the query heads.
    #[must_use]
    pub fn init(&self, device: &Device) -> MultiHeadAttention {
        let Self { d_model, n_heads, n_kv_heads, bias, qk_norm, causal, dropout } = *self;
        assert!(
            d_model.is_multiple_of(n_heads) && n_heads.is_multiple_of(n_kv_heads),
            "{n_heads} heads over {n_kv_heads} key heads in {d_model} dimensions"
        );
        let head_dim = d_model / n_heads;
        let norm = || qk_norm.then(|| Norm::rms_norm(head_dim, device));
        MultiHeadAttention {
            qkv: zeros_linear(d_model, (n_heads + 2 * n_kv_heads) * head_dim, bias, device),
            output: zeros_linear(d_model, d_model, bias, device),
            q_norm: norm(),
            k_norm: norm(),
            n_heads,
            n_kv_heads,
            head_dim,
            causal,
            dropout,
        }
    }
}

/// Attention with learned query, key, value and output projections, in `n_heads` heads.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
#[derive(Module, Debug)]
pub struct MultiHeadAttention {
    /// The fused projection `[C, (H + 2 Hkv) D]`: queries, then keys, then values.
    pub qkv: Linear,
    /// Mixes the heads again, `[C, C]`.
    pub output: Linear,
    /// Norm of each head's queries, where configured.
    pub q_norm: Option<Norm>,
    /// Norm of each head's keys, where configured.
    pub k_norm: Option<Norm>,
    #[module(skip)]
    n_heads: usize,
    #[module(skip)]
    n_kv_heads: usize,
    #[module(skip)]
    head_dim: usize,
    #[module(skip)]
    causal: bool,
    #[module(skip)]
    dropout: f64,
}

/// What attention gives when it is asked for everything.
#[derive(Clone, Debug)]
pub struct Attended {
    /// The new vectors, `[B, T, C]`.
    pub output: Tensor<3>,
    /// Who looked at whom, `[B, H, T, S]`, each row summing to 1.
    pub weights: Tensor<4>,
}

impl MultiHeadAttention {
    /// Self-attention: every position gathers from those that it may see.
    ///
    /// # Shapes
    /// `x: [B, T, C]` -> output `[B, T, C]`, weights `[B, H, T, T]`
    #[must_use]
    pub fn attend(&self, x: Tensor<3>) -> Attended {
        let [_, t, _] = x.dims();
        let mask = self.causal.then(|| causal_mask(t, t, &x.device()));
        let [q, k, v] = self.project(x, MatmulPrecision::F32);
        self.gather(q, k, v, mask)
    }

    /// Cross-attention: the positions of `x` ask, those of `context` answer, all of them visible.
    ///
    /// # Shapes
    /// `x: [B, T, C]`, `context: [B, S, C]` -> output `[B, T, C]`, weights `[B, H, T, S]`
    #[must_use]
    pub fn attend_to(&self, x: Tensor<3>, context: Tensor<3>) -> Attended {
        let [q, k, v] = self.project_both(x, context);
        self.gather(q, k, v, None)
    }

    /// Self-attention inside a model: positions rotated, probes asked, dropout and cache applied.
    ///
    /// # Shapes
    /// `x: [B, T, C]` -> `[B, T, C]`
    #[must_use]
    pub fn forward<P: Probe>(
        &self,
        x: Tensor<3>,
        rotation: Option<&Rotation>,
        cache: Option<&mut LayerCache>,
        pass: &mut Pass<'_, P>,
    ) -> Tensor<3> {
        let precision = pass.precision();
        if self.causal && cache.is_none() && !P::ACTIVE {
            let attention = self.self_attention(rotation, pass);
            let qkv = linear(&self.qkv, x, precision); // [B, T, (H + 2 Hkv) D]
            let heads = kernels::self_attention(qkv, attention); // [B, T, C]
            return linear(&self.output, heads, precision);
        }
        let [_, t, _] = x.dims();
        let [mut q, mut k, v] = self.project(x, precision); // [B, H, T, D], twice [B, Hkv, T, D]
        if let Some(rotation) = rotation {
            (q, k) = (rotation.apply(q), rotation.apply(k));
        }
        q = pass.visit(Point::Queries, q);
        k = pass.visit(Point::Keys, k);
        let mut v = pass.visit(Point::Values, v);
        if let Some(cache) = cache {
            (k, v) = cache.append(k, v); // each [B, Hkv, S, D]
        }
        let heads = if self.causal && !P::ACTIVE {
            let dropout = pass.dropout(Point::Weights, self.dropout);
            kernels::causal_attention(q, k, v, dropout) // [B, H, T, D]
        } else {
            let [_, _, s, _] = k.dims();
            let mask = self.causal.then(|| causal_mask(t, s, &k.device()));
            self.weigh(q, k, v, mask, pass)
        };
        self.finish(heads, pass)
    }

    /// Cross-attention inside a model: as [`MultiHeadAttention::attend_to`], with probes asked and dropout
    /// applied.
    ///
    /// # Shapes
    /// `x: [B, T, C]`, `context: [B, S, C]` -> `[B, T, C]`
    #[must_use]
    pub fn forward_to<P: Probe>(
        &self,
        x: Tensor<3>,
        context: Tensor<3>,
        pass: &mut Pass<'_, P>,
    ) -> Tensor<3> {
        let [q, k, v] = self.project_both(x, context);
        let q = pass.visit(Point::Queries, q);
        let k = pass.visit(Point::Keys, k);
        let v = pass.visit(Point::Values, v);
        let heads = self.weigh(q, k, v, None, pass);
        self.finish(heads, pass)
    }

    /// What the fused path is told.
    fn self_attention<P: Probe>(
        &self,
        rotation: Option<&Rotation>,
        pass: &Pass<'_, P>,
    ) -> SelfAttention {
        let norm = self.q_norm.as_ref().zip(self.k_norm.as_ref());
        SelfAttention {
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            norm: norm.map(|(q, k)| QkNorm {
                q: q.weight.val(),
                k: k.weight.val(),
                epsilon: RMS_NORM_EPSILON,
            }),
            rotation: rotation.map(Rotation::angles),
            dropout: pass.dropout(Point::Weights, self.dropout),
        }
    }

    /// What each head gathers, by weights in the open: `[B, H, T, D]`.
    fn weigh<P: Probe>(
        &self,
        q: Tensor<4>,
        k: Tensor<4>,
        v: Tensor<4>,
        mask: Option<Tensor<4, Bool>>,
        pass: &mut Pass<'_, P>,
    ) -> Tensor<4> {
        let k = kernels::repeat_kv(k, self.n_heads);
        let v = kernels::repeat_kv(v, self.n_heads);
        let weights = kernels::attention_weights(q, k, mask); // [B, H, T, S]
        let weights = pass.visit(Point::Weights, weights);
        pass.drop(Point::Weights, weights, self.dropout).matmul(v)
    }

    fn finish<P: Probe>(&self, heads: Tensor<4>, pass: &mut Pass<'_, P>) -> Tensor<3> {
        let heads = pass.visit(Point::Heads, heads);
        let output = self.merge(heads, pass.precision()); // [B, T, C]
        pass.visit(Point::Attention, output)
    }

    /// Queries, keys and values of each head: `[B, H, T, D]` and twice `[B, Hkv, T, D]`.
    fn project(&self, x: Tensor<3>, precision: MatmulPrecision) -> [Tensor<4>; 3] {
        let qkv = linear(&self.qkv, x, precision); // [B, T, (H + 2 Hkv) D]
        let [q, k, v] = kernels::split_heads(qkv, self.n_heads, self.n_kv_heads);
        let [q, k] = self.norm(q, k);
        [q, k, v]
    }

    /// Queries of `x`, keys and values of `context`, in f32: `[B, H, T, D]` and twice `[B, Hkv, S, D]`.
    fn project_both(&self, x: Tensor<3>, context: Tensor<3>) -> [Tensor<4>; 3] {
        let n_q = self.n_heads * self.head_dim;
        let [_, n_all] = self.qkv.weight.dims();
        let part = |input: Tensor<3>, start: usize, end: usize| {
            let weight = self.qkv.weight.val().narrow(1, start, end - start);
            let bias = self.qkv.bias.as_ref().map(|bias| bias.val().narrow(0, start, end - start));
            module::linear(input, weight, bias)
        };
        let q = self.split(part(x, 0, n_q), self.n_heads); // [B, H, T, D]
        let kv = part(context, n_q, n_all); // [B, S, 2 Hkv D]
        let n_k = (n_all - n_q) / 2;
        let k = self.split(kv.clone().narrow(2, 0, n_k), self.n_kv_heads); // [B, Hkv, S, D]
        let v = self.split(kv.narrow(2, n_k, n_k), self.n_kv_heads); // [B, Hkv, S, D]
        let [q, k] = self.norm(q, k);
        [q, k, v]
    }

    fn norm(&self, q: Tensor<4>, k: Tensor<4>) -> [Tensor<4>; 2] {
        let apply = |norm: &Option<Norm>, x| match norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        [apply(&self.q_norm, q), apply(&self.k_norm, k)]
    }

    /// `[B, T, n D]` -> `[B, n, T, D]`
    fn split(&self, x: Tensor<3>, n: usize) -> Tensor<4> {
        let [b, t, _] = x.dims();
        x.reshape([b, t, n, self.head_dim]).swap_dims(1, 2)
    }

    /// `[B, H, T, D]` -> `[B, T, C]`, through the output projection.
    fn merge(&self, heads: Tensor<4>, precision: MatmulPrecision) -> Tensor<3> {
        linear(&self.output, kernels::merge_heads(heads), precision)
    }

    fn gather(
        &self,
        q: Tensor<4>,
        k: Tensor<4>,
        v: Tensor<4>,
        mask: Option<Tensor<4, Bool>>,
    ) -> Attended {
        let k = kernels::repeat_kv(k, self.n_heads);
        let v = kernels::repeat_kv(v, self.n_heads);
        let (heads, weights) = scaled_dot_product_attention(q, k, v, mask);
        Attended { output: self.merge(heads, MatmulPrecision::F32), weights }
    }
}

fn linear(layer: &Linear, x: Tensor<3>, precision: MatmulPrecision) -> Tensor<3> {
    let bias = layer.bias.as_ref().map(Param::val);
    kernels::linear(x, layer.weight.val(), bias, precision)
}
