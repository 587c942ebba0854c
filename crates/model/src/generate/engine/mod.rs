//! A trained model on the CPU without tensors: its weights are packed once and read sequentially for each new token.
//! The tests compare every result with the tensor implementation of the model.

mod adapters;
mod decoder;
mod layer;

use burn::tensor::Tensor;

use self::adapters::PackedAdapters;
use self::layer::Layer;
use crate::attention::Rotation;
use crate::config::{ModelConfig, NormKind, PositionKind};
use crate::device;
use crate::{Gpt, Linear, Lora, Norm, Parameter};
use tinderbox_kernels as kernels;
use tinderbox_kernels::decode::{PackedLinear, RowNorm};

pub use self::decoder::Decoder;
pub use tinderbox_kernels::decode::Precision;

/// A model without gradients on the CPU, with its weight matrices in some [`Precision`] and everything else in f32.
#[derive(Debug)]
pub struct Engine {
    config: ModelConfig,
    vocab_size: usize,
    /// `[V, C]`; `None` if it is tied to the output layer, whose columns are then the embeddings.
    token_embedding: Option<Vec<f32>>,
    /// `[context_length, C]`
    position_embedding: Option<Vec<f32>>,
    /// The cosines and sines, `[context_length, R / 2]` each.
    rotation: Option<[Vec<f32>; 2]>,
    /// Those of layers with wavelengths of their own.
    local_rotation: Option<[Vec<f32>; 2]>,
    layers: Vec<Layer>,
    norm: RowNorm,
    /// `[C, V]`
    output: PackedLinear,
    /// Those that a sequence may have, in f32.
    adapters: Vec<PackedAdapters>,
}

impl Engine {
    /// Packs the weights of `model` and frees each one once it is packed, so that a large model is never in memory
    /// twice.
    ///
    /// # Panics
    /// If the model's device fails.
    pub fn new(model: Gpt, precision: Precision) -> Self {
        // Destructured in full, so that a new option does not compile until the engine supports it too.
        let ModelConfig {
            context_length,
            d_model,
            n_layers: _,
            n_heads: _, // used by Layer, as are the next three
            n_kv_heads: _,
            head_dim: _,
            d_ff: _,
            position,
            rope_theta: _, // used by Rotation, as are rotary_fraction and rope_scaling
            rotary_fraction: _,
            norm: _, // passed on with the norm's weights, as is norm_eps
            norm_eps: _,
            mlp: _, // used by Layer
            bias: _,
            qkv_bias: _,
            qk_norm: _,
            qk_norm_across_heads: _,
            parallel_residual: _, // used by Layer, as are the next three
            attention_window: _,
            attention_scale: _,
            attention_softcap: _,
            tie_embeddings: _,
            zero_init_projections: _, // matters only before training
            norm_weights: _,          // follows from the norm's weights
            value_residual: _,        // used by Layer, as is embedding_skip
            embedding_skip: _,
            logit_softcap: _, // used by Decoder
            vocab_size: _,    // taken from the weights
            dropout: _,       // used only in training
            embedding_scale: _,
            residual_scale: _, // part of the weights of the projections that write to the residual stream
            logit_scale: _,    // part of the last norm
            rope_layers: _,    // used by Layer
            rope_scaling: _,
            post_norm: _, // used by Layer
            pre_norm: _,
            rope_local_theta: _,
        } = model.config();
        let (context_length, d_model, position) = (*context_length, *d_model, *position);
        let vocab_size = model.vocab_size();
        let embedding = model.token_embedding.weight();
        let (output, token_embedding) = if let Some(output) = &model.output {
            (linear(output, precision), Some(host(embedding)))
        } else {
            let pack = |values: &[f32]| {
                let at = |c: usize, token: usize| values[token * d_model + c];
                PackedLinear::pack(precision, [d_model, vocab_size], at, None)
            };
            (with_values(embedding, pack), None)
        };
        let config = model.config().clone();
        let rotates = position == PositionKind::Rope;
        let Gpt { position_embedding, blocks, norm: last_norm, .. } = model;
        Self {
            vocab_size,
            token_embedding,
            position_embedding: position_embedding.map(|embedding| host(embedding.weight())),
            rotation: rotates.then(|| Rotation::tables(0..context_length, &config, false)),
            local_rotation: config
                .rope_local_theta
                .filter(|_| rotates)
                .map(|_| Rotation::tables(0..context_length, &config, true)),
            layers: (0..).zip(blocks).map(|(i, block)| Layer::new(&block, i, &config, precision)).collect(),
            norm: scaled_norm(&last_norm, config.norm, config.logit_scale),
            output,
            adapters: Vec::new(),
            config,
        }
    }

    /// Adds adapters beside the weights, for the sequences of a [`Decoder`] that [use](Decoder::set_adapters) them, and
    /// returns their index. `values` returns those of a parameter, as many as its shape has.
    ///
    /// # Errors
    /// If `values` fails.
    pub fn add_adapters<E>(
        &mut self,
        lora: &Lora,
        values: impl FnMut(&Parameter) -> Result<Vec<f32>, E>,
    ) -> Result<usize, E> {
        let adapters = PackedAdapters::new(self, lora, values)?;
        self.adapters.push(adapters);
        Ok(self.adapters.len() - 1)
    }

    /// Whether the engine is faster than tensors on the device of `model`, which holds for burn's own CPU backend.
    pub fn is_for(model: &Gpt) -> bool {
        device::is_flex(&model.device())
    }

    /// The config of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The precision of the matrices.
    pub fn precision(&self) -> Precision {
        self.output.precision()
    }

    /// The number of bytes read for each new token: those of all weight matrices.
    pub fn bytes_per_token(&self) -> usize {
        self.layers.iter().map(Layer::bytes).sum::<usize>() + self.output.bytes()
    }

    /// Writes the sum of a token embedding and a position embedding to `out`.
    fn embed(&self, token: u32, position: usize, adapters: Option<usize>, out: &mut [f32]) {
        let (idx, width) = (token as usize, self.config.d_model);
        assert!(idx < self.vocab_size, "token {token} of {}", self.vocab_size);
        match &self.token_embedding {
            Some(embedding) => out.copy_from_slice(&embedding[idx * width..][..width]),
            None => out.iter_mut().enumerate().for_each(|(c, x)| *x = self.output.value(c, idx)),
        }
        if let Some(adapters) = adapters {
            self.adapters[adapters].add_to_embedding(token, out);
        }
        let scale = in_f32(self.config.embedding_scale);
        for x in out.iter_mut() {
            *x *= scale;
        }
        if let Some(positions) = &self.position_embedding {
            let position = &positions[position * width..][..width];
            out.iter_mut().zip(position).for_each(|(x, position)| *x += position);
        }
    }
}

fn host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    with_values(x, <[f32]>::to_vec)
}

/// Calls `f` with the values of a parameter and returns its result.
fn with_values<const D: usize, R>(x: Tensor<D>, f: impl FnOnce(&[f32]) -> R) -> R {
    let n = x.shape().num_elements();
    kernels::with_values(&x.inner().reshape([n]), f).expect("the model's device works")
}

fn linear(linear: &Linear, precision: Precision) -> PackedLinear {
    scaled_linear(linear, precision, 1.0)
}

/// A layer whose output is multiplied by `scale`.
fn scaled_linear(linear: &Linear, precision: Precision, scale: f64) -> PackedLinear {
    let scale = in_f32(scale);
    let bias = linear.bias().map(|bias| host(bias).into_iter().map(|x| x * scale).collect());
    let weight = linear.weight();
    let [inputs, outputs] = weight.dims();
    with_values(weight, |values| {
        let at = |input: usize, output: usize| values[input * outputs + output] * scale;
        PackedLinear::pack(precision, [inputs, outputs], at, bias)
    })
}

fn norm(norm: &Norm, kind: NormKind) -> RowNorm {
    scaled_norm(norm, kind, 1.0)
}

/// A norm whose output is multiplied by `by`.
fn scaled_norm(norm: &Norm, kind: NormKind, by: f64) -> RowNorm {
    let by = in_f32(by);
    let times = |values: Vec<f32>| values.into_iter().map(|x| x * by).collect();
    let bias = norm.bias.as_ref().map(|bias| times(host(bias.val())));
    RowNorm::new(times(scale(norm)), bias, kind == NormKind::LayerNorm, norm.epsilon())
}

#[allow(clippy::cast_possible_truncation, reason = "everything here is computed in f32")]
fn in_f32(x: f64) -> f32 {
    x as f32
}

/// The learned scale of a norm, or ones if it has none.
fn scale(norm: &Norm) -> Vec<f32> {
    match &norm.weight {
        Some(weight) => host(weight.val()),
        None => vec![1.0; norm.dim()],
    }
}
