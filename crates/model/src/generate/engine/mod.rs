//! A trained model on the CPU without tensors: its weights are packed once and read sequentially for each new token.
//! The tests compare every result with the tensor implementation of the model.

mod adapters;
mod decoder;
mod layer;

use burn::tensor::Tensor;

use self::adapters::PackedAdapters;
use self::layer::Layer;
use crate::attention::Rotation;
use crate::config::{ModelConfig, PositionKind};
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
    /// The same for layers with wavelengths of their own.
    local_rotation: Option<[Vec<f32>; 2]>,
    layers: Vec<Layer>,
    norm: RowNorm,
    /// `[C, V]`
    output: PackedLinear,
    /// The adapters that a sequence may use, in f32.
    adapters: Vec<PackedAdapters>,
}

impl Engine {
    /// Packs the weights of `model` and frees each one once it is packed, so that a large model is never in memory
    /// twice.
    ///
    /// # Panics
    /// If the model's device fails.
    pub fn new(model: Gpt, precision: Precision) -> Self {
        // The modules are destructured without `..`, here and in `Layer`: a new field does not compile until it is used.
        let Gpt { token_embedding, position_embedding, blocks, norm: last_norm, output, config, lora: _ } = model;
        let (vocab_size, d_model) = (token_embedding.n_vectors(), config.d_model);
        let embedding = token_embedding.weight();
        drop(token_embedding);
        let (output, token_embedding) = if let Some(output) = output {
            (linear(&output, precision), Some(host(embedding)))
        } else {
            let pack = |values: &[f32]| {
                let at = |c: usize, token: usize| values[token * d_model + c];
                PackedLinear::pack(precision, [d_model, vocab_size], at, None)
            };
            (with_values(embedding, pack), None)
        };
        let positions = 0..config.context_length;
        let rotates = config.position == PositionKind::Rope;
        let has_local = rotates && config.rope_local_theta.is_some();
        Self {
            vocab_size,
            token_embedding,
            position_embedding: position_embedding.map(|embedding| host(embedding.weight())),
            rotation: rotates.then(|| Rotation::tables(positions.clone(), &config, false)),
            local_rotation: has_local.then(|| Rotation::tables(positions, &config, true)),
            layers: blocks.into_iter().enumerate().map(|(i, block)| Layer::new(&block, i, precision)).collect(),
            norm: scaled_norm(&last_norm, config.logit_scale),
            output,
            adapters: Vec::new(),
            config,
        }
    }

    /// Adds adapters beside the weights, for the sequences of a [`Decoder`] that [use](Decoder::set_adapters) them, and
    /// returns their index. `values` returns the values of a parameter, as many as its shape has.
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

    /// The number of bytes read for each new token: the size of all weight matrices.
    pub fn bytes_per_token(&self) -> usize {
        self.layers.iter().map(Layer::bytes).sum::<usize>() + self.output.bytes()
    }

    fn has_post_norms(&self) -> bool {
        self.layers.iter().any(Layer::has_post_norms)
    }

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

fn scaled_norm(norm: &Norm, by: f64) -> RowNorm {
    let by = in_f32(by);
    let times = |values: Vec<f32>| values.into_iter().map(|x| x * by).collect();
    let bias = norm.bias.as_ref().map(|bias| times(host(bias.val())));
    RowNorm::new(times(scale(norm)), bias, norm.is_centred(), norm.epsilon())
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
