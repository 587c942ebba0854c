//! What a model has learned, packed to be read from the first number to the last for each new token.

use burn::module::Param;
use burn::nn;
use burn::tensor::Tensor;

use super::layer::Layer;
use crate::config::{ModelConfig, NormKind, PositionKind};
use crate::device;
use crate::model::attention::Rotation;
use crate::model::{self, Gpt};
use tinderbox_kernels as kernels;
use tinderbox_kernels::decode::{PackedLinear, Precision, RowNorm};

/// A model without gradients on the CPU, its matrices in some [`Precision`], everything else in f32.
#[derive(Debug)]
pub struct Engine {
    config: ModelConfig,
    vocab_size: usize,
    token_embedding: TokenEmbedding,
    /// `[context_length, C]`
    position_embedding: Option<Vec<f32>>,
    /// Cosines and sines, `[context_length, D / 2]`.
    pub(super) rotation: Option<[Vec<f32>; 2]>,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: RowNorm,
    /// `[C, V]`
    pub(super) output: PackedLinear,
}

#[derive(Debug)]
enum TokenEmbedding {
    /// The columns of the output's weights.
    Tied,
    /// `[V, C]`
    Own(Vec<f32>),
}

impl Engine {
    /// Packs the weights of `model`.
    ///
    /// # Panics
    /// If the model's device fails.
    #[must_use]
    pub fn new(model: &Gpt, precision: Precision) -> Self {
        Self::from_owned(model.clone(), precision)
    }

    /// Packs the weights of `model`, each freed where nobody else has it as soon as it is packed: a large model is
    /// not in memory twice.
    ///
    /// # Panics
    /// If the model's device fails.
    #[must_use]
    pub fn from_owned(model: Gpt, precision: Precision) -> Self {
        // Taken apart in full: a new option does not compile until it is computed here as well.
        let ModelConfig {
            context_length,
            d_model,
            n_layers: _,
            n_heads,
            n_kv_heads: _, // Layer
            d_ff: _,
            position,
            norm: _, // its kind goes with the norm's weights
            mlp: _,  // Layer
            bias: _,
            qk_norm: _,
            tie_embeddings: _,
            dropout: _, // in training only
        } = *model.config();
        let vocab_size = model.vocab_size();
        let embedding = &model.token_embedding.weight;
        let shape = [d_model, vocab_size];
        let (output, token_embedding) = match &model.output {
            Some(output) => (linear(output, precision), TokenEmbedding::Own(host(embedding))),
            None => (
                with_values(embedding, |values| {
                    let at = |c: usize, token: usize| values[token * d_model + c];
                    PackedLinear::pack(precision, shape, at, None)
                }),
                TokenEmbedding::Tied,
            ),
        };
        let config = model.config().clone();
        let Gpt { position_embedding, blocks, norm: last_norm, .. } = model;
        Self {
            vocab_size,
            token_embedding,
            position_embedding: position_embedding.map(|embedding| host(&embedding.weight)),
            rotation: (position == PositionKind::Rope).then(|| Rotation::tables(0..context_length, d_model / n_heads)),
            layers: blocks.into_iter().map(|block| Layer::new(&block, &config, precision)).collect(),
            norm: norm(&last_norm, config.norm),
            output,
            config,
        }
    }

    /// Whether the engine is the faster way to compute what `model` computes, on the device where it is: burn's
    /// own CPU backend.
    #[must_use]
    pub fn is_for(model: &Gpt) -> bool {
        device::is_flex(&model.device())
    }

    /// What the model was made from.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Number of tokens in the vocabulary.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// How the matrices are kept.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.output.precision()
    }

    /// Bytes that are read for each new token: those of all matrices.
    #[must_use]
    pub fn bytes_per_token(&self) -> usize {
        let of_layers: usize = self.layers.iter().map(Layer::bytes).sum();
        of_layers + self.output.bytes()
    }

    /// Writes the sum of a token's and a position's embedding.
    pub(super) fn embed(&self, token: u32, position: usize, out: &mut [f32]) {
        let (token, width) = (token as usize, self.config.d_model);
        assert!(token < self.vocab_size, "token {token} of {}", self.vocab_size);
        match &self.token_embedding {
            TokenEmbedding::Tied => {
                for (c, x) in out.iter_mut().enumerate() {
                    *x = self.output.value(c, token);
                }
            }
            TokenEmbedding::Own(embedding) => {
                out.copy_from_slice(&embedding[token * width..][..width]);
            }
        }
        if let Some(positions) = &self.position_embedding {
            let position = &positions[position * width..][..width];
            out.iter_mut().zip(position).for_each(|(x, position)| *x += position);
        }
    }
}

/// The numbers of a parameter.
pub(super) fn host<const D: usize>(param: &Param<Tensor<D>>) -> Vec<f32> {
    with_values(param, <[f32]>::to_vec)
}

/// What `f` makes of the numbers of a parameter.
fn with_values<const D: usize, R>(param: &Param<Tensor<D>>, f: impl FnOnce(&[f32]) -> R) -> R {
    let flat = param.val().inner().reshape([param.shape().num_elements()]);
    kernels::with_values(&flat, f).expect("the model's device works")
}

/// A projection with its bias.
pub(super) fn linear(linear: &nn::Linear, precision: Precision) -> PackedLinear {
    let [inputs, outputs] = linear.weight.dims();
    let bias = linear.bias.as_ref().map(host);
    with_values(&linear.weight, |values| {
        let at = |input: usize, output: usize| values[input * outputs + output];
        PackedLinear::pack(precision, [inputs, outputs], at, bias)
    })
}

/// A norm of this kind.
pub(super) fn norm(norm: &model::Norm, kind: NormKind) -> RowNorm {
    let bias = norm.bias.as_ref().map(host);
    RowNorm::new(host(&norm.weight), bias, kind == NormKind::LayerNorm, norm.epsilon())
}
