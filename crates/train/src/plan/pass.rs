//! The memory of a training pass besides weights and optimizer state, estimated from tensor shapes.
//!
//! The forward pass saves tensors, and the backward pass frees them block by block, from the last to the first, while
//! the gradients of the weights accumulate. [`pass_memory`] adds up what the [operations](Operations) save and need
//! temporarily, and finds the peak.

use serde::Serialize;
use tinderbox_kernels::{MAX_LOSS_LOGITS, MAX_SCORE_BYTES};

use super::parameters;
use crate::config::{MlpKind, ModelConfig};
use tinderbox_model::device::Backend;

/// Bytes of an f32.
const F32: f64 = 4.0;

/// The operations that compute the model, which differ in what they save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// The fused operations of `tinderbox-kernels`, on burn's CPU backend.
    Fused,
    /// Compositions of burn's own operations, on every other backend.
    Composed,
}

impl Operations {
    /// The operations of a backend.
    #[must_use]
    pub fn of(backend: Backend) -> Self {
        match backend {
            Backend::Flex => Self::Fused,
            _ => Self::Composed,
        }
    }
}

/// Bytes that a training pass holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Held {
    /// Saved for the backward pass, without the logits.
    pub activations: f64,
    /// Attention weights of one block of queries, in composed attention's backward pass.
    pub attention_weights: f64,
    /// Logits saved for the backward pass; 0 with a fused loss.
    pub logits: f64,
    /// The gradients of the weights computed so far.
    pub gradients: f64,
    /// Held by an operation while it computes.
    pub temporaries: f64,
}

impl Held {
    /// The sum of all parts.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.activations + self.attention_weights + self.logits + self.gradients + self.temporaries
    }
}

/// The memory of a training pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PassMemory {
    /// Between the forward and the backward pass.
    pub saved: Held,
    /// At the peak.
    pub peak: Held,
    /// The operation at the peak.
    pub peak_during: &'static str,
}

/// Estimates the memory of a training pass over `batch_size` rows of a full context.
#[must_use]
pub fn pass_memory(config: &ModelConfig, vocab_size: usize, batch_size: usize, operations: Operations) -> PassMemory {
    let costs = costs(config, vocab_size, batch_size, operations);
    let parameters = parameters(config, vocab_size).block;
    let block = costs.projection.saved + costs.attention.saved + costs.mlp.saved;
    let mut now = Held {
        activations: costs.mask + config.n_layers as f64 * block + costs.last_norm,
        logits: costs.logits,
        ..Held::default()
    };
    if operations == Operations::Fused {
        now.gradients = costs.output_matrix; // the fused loss computes its gradient in the forward pass
    }
    let mut memory = PassMemory { saved: now, peak: now, peak_during: "the loss" };
    memory.visit("the loss", now, costs.loss);
    if operations == Operations::Composed {
        now.logits = 0.0;
        memory.visit("the output layer's backward pass", now, costs.output);
        now.gradients = costs.output_matrix;
    }
    now.activations -= costs.last_norm;
    for _ in 0..config.n_layers {
        memory.visit("the backward pass of an MLP", now, costs.mlp.temporary);
        now.activations -= costs.mlp.saved;
        now.gradients += F32 * parameters.mlp as f64;
        let attention = Held { attention_weights: costs.attention_weights, ..now };
        memory.visit("the backward pass of attention", attention, costs.attention.temporary);
        now.activations -= costs.attention.saved;
        memory.visit("the backward pass of a projection", now, costs.projection.temporary);
        now.activations -= costs.projection.saved;
        now.gradients += F32 * (parameters.total - parameters.mlp) as f64;
    }
    memory.visit("the embedding's backward pass", now, costs.stream + costs.output_matrix);
    memory
}

impl PassMemory {
    /// Records a moment at which `temporaries` are held too, if it is the peak so far.
    fn visit(&mut self, during: &'static str, now: Held, temporaries: f64) {
        let held = Held { temporaries, ..now };
        if held.total() > self.peak.total() {
            (self.peak, self.peak_during) = (held, during);
        }
    }
}

/// The bytes that a part of a block saves, and those that its backward pass needs temporarily.
struct Cost {
    saved: f64,
    temporary: f64,
}

/// Byte counts of the parts of a pass; shapes as in [`tinderbox_model`].
struct Costs {
    /// `[B, T, C]`
    stream: f64,
    /// A dropout mask of that size; 0 without dropout.
    mask: f64,
    /// `[C, V]`
    output_matrix: f64,
    /// The norm before attention, and the projection to queries, keys and values.
    projection: Cost,
    /// From queries, keys and values to the attention's output.
    attention: Cost,
    /// Attention weights in attention's backward pass.
    attention_weights: f64,
    /// The second norm and the feed-forward layer.
    mlp: Cost,
    /// The bytes saved by the final norm.
    last_norm: f64,
    /// Saved logits.
    logits: f64,
    /// Temporaries of the loss and of the output layer's backward pass.
    loss: f64,
    output: f64,
}

fn costs(config: &ModelConfig, vocab_size: usize, batch_size: usize, operations: Operations) -> Costs {
    let ModelConfig { context_length, d_model, d_ff, n_heads, n_kv_heads, head_dim, mlp, .. } = *config;
    let rows = |width: usize| F32 * batch_size as f64 * context_length as f64 * width as f64; // [B, T, width]
    let matrix = |width: usize| F32 * d_model as f64 * width as f64; // [C, width]
    let (d_gathered, d_shared) = (n_heads * head_dim, n_kv_heads * head_dim);
    let d_qkv = d_gathered + 2 * d_shared;
    let (stream, hidden, logits) = (rows(d_model), rows(d_ff), rows(vocab_size));
    let (gathered, shared_heads, qkv) = (rows(d_gathered), rows(d_shared), rows(d_qkv));
    let (qkv_matrix, mlp_matrix, output_matrix) = (matrix(d_qkv), matrix(d_ff), matrix(vocab_size));
    let row_sums = rows(n_heads); // a number for each row of the attention weights: [B, H, T]
    let has_dropout = config.dropout > 0.0;
    let mask = if has_dropout { stream } else { 0.0 };
    // The gradient of the residual stream, and that of the block's output, which dropout makes different.
    let upstream = stream + mask;
    // Sums with learned factors save both summands.
    let skip = if config.embedding_skip { stream } else { 0.0 };
    let values = if config.value_residual { qkv + shared_heads } else { 0.0 };
    match operations {
        // Each operation saves its inputs, which it shares with adjacent operations, and the values that are expensive
        // to recompute: the MLP its activation and the activation's derivatives, attention a number for each head and
        // position. The backward pass of a layer holds its matrices transposed, and their gradients.
        Operations::Fused => {
            let (n_derivatives, n_matrices) = match mlp {
                MlpKind::Gelu | MlpKind::GeluTanh | MlpKind::ReluSquared => (1.0, 2.0),
                MlpKind::Swiglu => (2.0, 3.0),
            };
            let norm = 2.0 * stream; // input and output
            let second_norm = if config.parallel_residual { stream } else { norm }; // both norms share the input
            Costs {
                stream,
                mask,
                output_matrix,
                projection: Cost { saved: skip + norm + qkv, temporary: upstream + stream + qkv + 2.0 * qkv_matrix },
                attention: Cost { saved: values + gathered + row_sums + mask, temporary: upstream + gathered + qkv },
                attention_weights: 0.0,
                mlp: Cost {
                    saved: second_norm + (1.0 + n_derivatives) * hidden + mask,
                    temporary: upstream + stream + n_derivatives * hidden + 2.0 * n_matrices * mlp_matrix,
                },
                // The norm's input, and its gradient, which the loss computes.
                last_norm: norm,
                logits: 0.0,
                loss: stream + logits.min(F32 * MAX_LOSS_LOGITS as f64),
                output: 0.0,
            }
        }
        // Burn's autodiff saves the factors of every product and the inputs of activations. Attention is one operation,
        // which saves no weights. Burn 0.22 multiplies the rows of a batch one by one if their length is a multiple of
        // 32, and always with the token embedding: it then computes one gradient of the matrix per row and sums them.
        Operations::Composed => {
            let batch_size = batch_size as f64;
            let n_gradients = if context_length.is_multiple_of(32) { batch_size } else { 1.0 };
            let n_output_gradients = if config.tie_embeddings { batch_size } else { n_gradients };
            let n_hidden = match mlp {
                MlpKind::Gelu | MlpKind::GeluTanh => 4.0,
                MlpKind::ReluSquared => 3.0,
                MlpKind::Swiglu => 5.0, // input, sigmoid and output of the gate; the other factor; the product
            };
            let norm = 3.0 * stream; // two factors and the output
            let head_norms = if config.qk_norm { 2.0 * (gathered + shared_heads) } else { 0.0 };
            // The weights of one block of queries, their gradient, that of the scores, and the weights after dropout.
            let n_weights = if has_dropout { 4.0 } else { 3.0 };
            let weights = (row_sums * context_length as f64).min(MAX_SCORE_BYTES as f64); // [B, H, queries, T]
            Costs {
                stream,
                mask,
                output_matrix,
                projection: Cost { saved: skip + norm, temporary: upstream + stream + qkv + n_gradients * qkv_matrix },
                attention: Cost {
                    // Queries, keys and values, the output by head and concatenated, and two numbers for each row of
                    // weights.
                    saved: values + 3.0 * gathered + 2.0 * shared_heads + 2.0 * row_sums + head_norms + mask,
                    temporary: upstream + 2.0 * gathered + 2.0 * shared_heads,
                },
                attention_weights: n_weights * weights,
                mlp: Cost {
                    saved: norm + n_hidden * hidden + mask,
                    temporary: upstream + hidden + n_gradients * mlp_matrix,
                },
                last_norm: norm,
                // Capping saves its output too.
                logits: if config.logit_softcap.is_some() { 2.0 * logits } else { logits },
                loss: 2.0 * logits,
                output: logits + stream + n_output_gradients * output_matrix,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PositionKind;

    const MIB: f64 = 1_048_576.0;

    /// 4 layers, 4 heads, `d_model` 128, `d_ff` 512.
    fn model(context_length: usize) -> ModelConfig {
        ModelConfig { context_length, ..ModelConfig::default() }
    }

    #[test]
    fn composed_attention_saves_no_weights_and_holds_a_block_of_them() {
        let memory = |length| pass_memory(&model(length), 64, 1, Operations::Composed);
        let (short, long) = (memory(512), memory(8192));
        let ratio = long.saved.total() / short.saved.total();
        assert!((ratio - 16.0).abs() < 0.01, "{ratio}");
        // The weights of all queries at once would be 1 GiB.
        assert_eq!(long.peak_during, "the backward pass of attention");
        let mib = long.peak.attention_weights / MIB;
        assert!((mib - 3.0 * 128.0).abs() < 0.1, "{mib}");
    }

    /// MiB that a counting allocator measured between the passes of 8 rows of 256 tokens.
    #[test]
    fn what_fused_operations_save_is_what_an_allocator_counts() {
        let rotated = ModelConfig { position: PositionKind::Rope, qk_norm: true, ..model(256) };
        let grouped = ModelConfig { n_kv_heads: 1, mlp: MlpKind::Swiglu, d_ff: 352, ..model(256) };
        for (config, mib) in
            [(model(256), 66.2), (ModelConfig { dropout: 0.1, ..model(256) }, 75.2), (rotated, 66.2), (grouped, 61.2)]
        {
            let saved = pass_memory(&config, 64, 8, Operations::Fused).saved;
            assert!((saved.total() / MIB - mib).abs() < 0.3, "{saved:?} is not {mib} MiB");
            assert!(saved.attention_weights + saved.logits < 1.0, "{saved:?}");
        }
    }
}
