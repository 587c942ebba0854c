//! The language model: tokens in, logits for the next token out.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::attention::{KvCache, Rotation};
use super::placeholders::Placeholders;
use super::probe::{NoProbe, Pass, Point, Probe};
use super::{Adapter, AdapterRows, Block, Embedding, Linear, Lora, Norm, Parameter, init};
use crate::config::{ModelConfig, PositionKind};
use crate::device;
use tinderbox_kernels::decode::Precision;
use tinderbox_kernels::{self as kernels, DropoutKey, MatmulPrecision, Output, Positions, Targets};

/// A decoder-only transformer.
///
/// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2). The config options also
/// cover the Llama and Qwen3 architectures.
#[derive(Module, Debug)]
pub struct Gpt {
    /// One vector per token of the vocabulary, `[V, C]`.
    pub token_embedding: Embedding,
    /// One vector per position, `[context_length, C]`; `None` with rotary positions.
    pub position_embedding: Option<Embedding>,
    /// The blocks, in order.
    pub blocks: Vec<Block>,
    /// The final norm, before the output layer.
    pub norm: Norm,
    /// The output layer, `[C, V]`; `None` if it is tied to the token embedding.
    pub output: Option<Linear>,
    #[module(skip)]
    pub(crate) config: ModelConfig,
    /// The adapters in its blocks, if there are any.
    #[module(skip)]
    pub(crate) lora: Option<Lora>,
}

impl Gpt {
    /// A new model with weights drawn from `seed`.
    pub fn new(config: &ModelConfig, vocab_size: usize, seed: u64, device: &Device) -> Self {
        init::initialize(Self::zeros(config, vocab_size, device), seed)
    }

    /// A model with identity norms and all other weights zero, ready for weights to be loaded into it.
    pub fn zeros(config: &ModelConfig, vocab_size: usize, device: &Device) -> Self {
        let block = |model: &Placeholders<'_>, i| Block::new(config, i, &model.child(&format!("blocks.{i}")));
        Placeholders::make(Parameter::all(config, vocab_size), device, |model| Self {
            token_embedding: Embedding::placeholder(model, "token_embedding").expect("the table has a token embedding"),
            position_embedding: Embedding::placeholder(model, "position_embedding"),
            blocks: (0..config.n_layers).map(|block_idx| block(model, block_idx)).collect(),
            norm: Norm::of_residual(config, &model.child("norm")),
            output: Linear::placeholder(model, "output"),
            config: config.clone(),
            lora: None,
        })
    }

    /// The model with new adapters, initialized from `seed`, beside its weights, which are frozen.
    #[must_use]
    pub fn adapted(self, lora: &Lora, seed: u64) -> Self {
        let table: Vec<Parameter> = self.parameters().collect();
        let mut model = Self { lora: Some(lora.clone()), ..self.no_grad() };
        let mut adapters: BTreeMap<String, Vec<AdapterRows>> = BTreeMap::new();
        for rows in lora.adapters(&table) {
            adapters.entry(rows.weight.clone()).or_default().push(rows);
        }
        for (block_idx, block) in model.blocks.iter_mut().enumerate() {
            for (name, layer) in block.layers_mut() {
                let rows = adapters.remove(&format!("blocks.{block_idx}.{name}.weight")).unwrap_or_default();
                let weight = layer.base_weight();
                layer.adapt(rows.iter().map(|rows| Adapter::new(rows, lora, seed, &weight)).collect());
            }
        }
        if !lora.tokens.is_empty() {
            model.token_embedding.train_tokens(&lora.tokens);
            model.output.iter_mut().for_each(|output| output.train_tokens(&lora.tokens));
        }
        debug_assert!(adapters.is_empty(), "the blocks have all the layers");
        model
    }

    /// The model with the weights of its blocks' linear layers kept in this precision. They cannot be trained or saved
    /// any more.
    #[must_use]
    pub fn with_frozen_weights(mut self, precision: Precision) -> Self {
        self.blocks.iter_mut().flat_map(Block::layers_mut).for_each(|(_, layer)| layer.freeze(precision));
        self
    }

    /// The same model with another context.
    ///
    /// # Panics
    /// If it has learned positions, of which there is one for each.
    #[must_use]
    pub fn with_context_length(mut self, context_length: usize) -> Self {
        assert!(self.position_embedding.is_none(), "learned positions end with the context");
        self.config.context_length = context_length;
        self
    }

    /// The model's config.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The table of the model's parameters, in the order of its fields, with adapters at its end.
    pub fn parameters(&self) -> impl Iterator<Item = Parameter> {
        let mut table: Vec<Parameter> = Parameter::all(&self.config, self.vocab_size()).collect();
        if let Some(lora) = &self.lora {
            let trained = lora.parameters(&table);
            for row in &mut table {
                row.is_trained = false;
            }
            table.extend(trained);
        }
        table.into_iter()
    }

    /// Number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.token_embedding.n_vectors()
    }

    /// The device that holds the weights.
    pub fn device(&self) -> Device {
        self.token_embedding.device()
    }

    /// An empty KV cache for `batch_size` sequences of up to `context_length` tokens.
    pub fn kv_cache(&self, batch_size: usize) -> KvCache {
        let ModelConfig { n_layers, context_length, n_kv_heads, .. } = self.config;
        let shape = [batch_size, n_kv_heads, self.config.head_dim];
        KvCache::new(n_layers, context_length, shape, &self.device())
    }

    /// The logits for the token after each position, given the tokens up to and including that position.
    ///
    /// # Shapes
    /// `tokens: [B, T]`, T at most `context_length` -> logits `[B, T, V]`
    ///
    /// # Panics
    /// If T is longer than the context.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.forward_with(tokens, None, &mut NoProbe)
    }

    /// Like [`Gpt::forward`], for tokens that follow those in `cache`; appends the new tokens to the cache.
    ///
    /// # Panics
    /// If the tokens do not fit the cache.
    pub fn forward_cached(&self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> Tensor<3> {
        self.forward_with(tokens, Some(cache), &mut NoProbe)
    }

    /// Like both, with a probe that sees the values of these tokens at each [site](super::probe).
    pub fn forward_with(
        &self,
        tokens: Tensor<2, Int>,
        cache: Option<&mut KvCache>,
        probe: &mut impl Probe,
    ) -> Tensor<3> {
        let mut pass = Pass::new(probe, MatmulPrecision::F32, None);
        let hidden = self.hidden(tokens, cache, &mut pass); // [B, T, C]
        pass.visit(Point::Logits, self.logits(hidden)) // [B, T, V]
    }

    /// The mean cross-entropy in nats per token, which training minimizes and evaluation reports. Targets that are
    /// [`kernels::IGNORE_INDEX`] do not count.
    ///
    /// `precision` applies to the matrix products of the blocks' projections, forward and backward, and to those that
    /// compute the gradients of the output layer; the logits are always f32. Without a `dropout` key, dropout is off.
    ///
    /// `lengths` are those of sequences that are packed in the only row, each computed as if it were alone; `None` if each
    /// row is one sequence.
    ///
    /// # Shapes
    /// `tokens: [B, T]`, one target for each -> `[1]`
    ///
    /// # Panics
    /// If there are more or fewer targets than tokens, the sum of the lengths is not T, or `precision` is bf16 and the
    /// backend is not flex, the only backend that supports bf16.
    pub fn loss(
        &self,
        tokens: Tensor<2, Int>,
        lengths: Option<Arc<[usize]>>,
        targets: impl Into<Targets>,
        precision: MatmulPrecision,
        dropout: Option<DropoutKey>,
    ) -> Tensor<1> {
        let loss = self.loss_while(tokens, lengths, targets, precision, dropout, &mut || true);
        loss.expect("nothing stops this pass")
    }

    /// Like [`Gpt::loss`]; `None` if `goes_on`, which is asked before each block and before the output layer, says no.
    ///
    /// # Panics
    /// As [`Gpt::loss`].
    pub fn loss_while(
        &self,
        tokens: Tensor<2, Int>,
        lengths: Option<Arc<[usize]>>,
        targets: impl Into<Targets>,
        precision: MatmulPrecision,
        dropout: Option<DropoutKey>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<Tensor<1>> {
        let [b, t] = tokens.dims();
        let hidden = self.hidden_for_loss(tokens, lengths, precision, dropout, goes_on)?;
        let hidden = hidden.reshape([b * t, self.config.d_model]); // [B T, C]
        Some(kernels::cross_entropy(hidden, self.loss_output(), targets, self.config.logit_softcap, precision)) // [1]
    }

    /// The mean cross-entropy of each row in nats per token, like [`Gpt::loss_while`] of all rows. The loss of a row is 0
    /// if none of its targets counts.
    ///
    /// # Shapes
    /// `tokens: [B, T]`, as many targets -> `[B]`
    ///
    /// # Panics
    /// As [`Gpt::loss`].
    pub fn row_losses(
        &self,
        tokens: Tensor<2, Int>,
        targets: &[i32],
        precision: MatmulPrecision,
        dropout: Option<DropoutKey>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<Tensor<1>> {
        let ([_, t], device) = (tokens.dims(), tokens.device());
        let hidden = self.hidden_for_loss(tokens, None, precision, dropout, goes_on)?; // [B, T, C]
        let row = |(row, targets): (usize, &[i32])| {
            if targets.iter().all(|target| *target == kernels::IGNORE_INDEX) {
                return Tensor::zeros([1], &device);
            }
            let hidden = hidden.clone().narrow(0, row, 1).reshape([t, self.config.d_model]); // [T, C]
            let targets = Targets::new(targets.to_vec(), &device);
            kernels::cross_entropy(hidden, self.loss_output(), targets, self.config.logit_softcap, precision) // [1]
        };
        Some(Tensor::cat(targets.chunks(t).enumerate().map(row).collect(), 0)) // [B]
    }

    /// The scaled input of the output layer, from which the loss is computed.
    ///
    /// # Shapes
    /// `tokens: [B, T]` -> `[B, T, C]`
    fn hidden_for_loss(
        &self,
        tokens: Tensor<2, Int>,
        lengths: Option<Arc<[usize]>>,
        precision: MatmulPrecision,
        dropout: Option<DropoutKey>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<Tensor<3>> {
        assert!(precision == MatmulPrecision::F32 || device::is_flex(&tokens.device()), "only flex multiplies in bf16");
        let mut probe = NoProbe;
        let mut pass = Pass::new(&mut probe, precision, dropout);
        pass.lengths = lengths;
        let hidden = self.hidden_while(tokens, None, &mut pass, goes_on)?;
        Some(scaled(hidden, self.config.logit_scale))
    }

    fn loss_output(&self) -> Output {
        match &self.output {
            Some(output) => Output::Own(output.weight()),
            None => Output::Tied(self.token_embedding.weight()),
        }
    }

    /// The model as it was before it had adapters.
    #[must_use]
    pub fn without_adapters(mut self) -> Self {
        self.blocks.iter_mut().flat_map(Block::layers_mut).for_each(|(_, layer)| layer.adapt(Vec::new()));
        self.token_embedding.train_tokens(&[]);
        self.output.iter_mut().for_each(|output| output.train_tokens(&[]));
        Self { lora: None, ..self }
    }

    /// The normalized residual stream after the last block, from which the output layer computes the logits.
    ///
    /// # Shapes
    /// `tokens: [B, T]`, T at most `context_length` -> `[B, T, C]`
    ///
    /// # Panics
    /// If T is longer than the context.
    pub fn stream(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.hidden(tokens, None, &mut Pass::new(&mut NoProbe, MatmulPrecision::F32, None))
    }

    /// # Shapes
    /// `tokens: [B, T]` -> `[B, T, C]`
    fn hidden<P: Probe>(
        &self,
        tokens: Tensor<2, Int>,
        cache: Option<&mut KvCache>,
        pass: &mut Pass<'_, P>,
    ) -> Tensor<3> {
        self.hidden_while(tokens, cache, pass, &mut || true).expect("nothing stops this pass")
    }

    /// `None` if `goes_on`, which is asked before each block and after the last, says no.
    ///
    /// # Shapes
    /// `tokens: [B, T]` -> `[B, T, C]`
    fn hidden_while<P: Probe>(
        &self,
        tokens: Tensor<2, Int>,
        mut cache: Option<&mut KvCache>,
        pass: &mut Pass<'_, P>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<Tensor<3>> {
        let start = cache.as_ref().map_or(0, |cache| cache.len());
        let longest =
            pass.lengths.as_ref().map_or(tokens.dims()[1], |lengths| lengths.iter().copied().max().unwrap_or(0));
        let (end, context_length) = (start + longest, self.config.context_length);
        assert!(end <= context_length, "position {end} is past the context of {context_length}");
        let learned = self.position_embedding.as_ref();
        let packed =
            learned.zip(pass.lengths.as_deref()).map(|(embedding, lengths)| at_each(&embedding.weight(), lengths));
        let learned = learned.filter(|_| packed.is_none());
        let positions = learned.map(|embedding| Positions { weight: embedding.weight(), first: start });
        let rotates = self.config.position == PositionKind::Rope;
        let rotation = |is_local| rotates.then(|| Rotation::new(start..end, &self.config, is_local, &tokens.device()));
        let (rotation, local) = (rotation(false), self.config.rope_local_theta.and_then(|_| rotation(true)));

        let mut x = self.embed(tokens, positions); // [B, T, C]
        if let Some(positions) = packed {
            x = x + positions;
        }
        x = pass.visit(Point::Embedding, x);
        x = pass.drop(Point::Embedding, x, self.config.dropout);
        pass.embedding = self.config.embedding_skip.then(|| x.clone());
        for (block_idx, block) in self.blocks.iter().enumerate() {
            if !goes_on() {
                return None;
            }
            pass.enter(Some(block_idx));
            let cache = cache.as_mut().map(|cache| cache.layer(block_idx));
            let rotation = if self.config.has_local_rope(block_idx) { &local } else { &rotation };
            let rotation = rotation.as_ref().filter(|_| self.config.rotates(block_idx));
            x = block.forward(x, rotation, cache, pass);
        }
        pass.enter(None);
        goes_on().then(|| pass.visit(Point::Norm, self.norm.forward(x)))
    }

    /// The embedding of each token, without that of its position.
    ///
    /// # Shapes
    /// `tokens: [B, T]` -> `[B, T, C]`
    pub fn embed_tokens(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.embed(tokens, None)
    }

    /// # Shapes
    /// `tokens: [B, T]` -> `[B, T, C]`
    fn embed(&self, tokens: Tensor<2, Int>, positions: Option<Positions>) -> Tensor<3> {
        let (weight, scale) = (self.token_embedding.weight(), self.config.embedding_scale);
        if is_one(scale) {
            return kernels::embed(tokens, weight, positions);
        }
        let t = tokens.dims()[1];
        let x = kernels::embed(tokens, weight, None) * scale;
        match positions {
            Some(Positions { weight, first }) => x + weight.narrow(0, first, t).unsqueeze(),
            None => x,
        }
    }

    /// Maps a residual stream to logits through the final norm and the output layer.
    ///
    /// # Shapes
    /// `residual: [B, T, C]` -> `[B, T, V]`
    pub fn unembed(&self, residual: Tensor<3>) -> Tensor<3> {
        self.logits(self.norm.forward(residual))
    }

    /// Maps the normalized residual stream to logits, `[C, V]`.
    pub fn unembedding(&self) -> Tensor<2> {
        let matrix = match &self.output {
            Some(output) => output.weight(),
            None => self.token_embedding.weight().transpose(),
        };
        scaled(matrix, self.config.logit_scale)
    }

    /// # Shapes
    /// `x: [B, T, C]` -> `[B, T, V]`
    fn logits(&self, x: Tensor<3>) -> Tensor<3> {
        let x = scaled(x, self.config.logit_scale);
        let logits = match &self.output {
            Some(output) => output.forward(x),
            None => x.matmul(self.token_embedding.weight().transpose().unsqueeze()),
        };
        match self.config.logit_softcap {
            Some(cap) => kernels::softcap(logits, cap),
            None => logits,
        }
    }
}

/// The vectors of the positions of packed sequences: each begins with the first.
///
/// # Shapes
/// `weight: [P, C]` -> `[1, T, C]`
fn at_each(weight: &Tensor<2>, lengths: &[usize]) -> Tensor<3> {
    let positions = lengths
        .iter()
        .flat_map(|length| 0..*length)
        .map(|position| i64::try_from(position).expect("a position fits an i64"));
    let positions: Vec<i64> = positions.collect();
    let n = positions.len();
    weight.clone().select(0, Tensor::from_data(TensorData::new(positions, [n]), &weight.device())).unsqueeze()
}

fn is_one(scale: f64) -> bool {
    (scale - 1.0).abs() <= 0.0
}

/// `x` times `scale`, which is usually 1.
pub(crate) fn scaled<const D: usize>(x: Tensor<D>, scale: f64) -> Tensor<D> {
    if is_one(scale) { x } else { x * scale }
}
