//! The memory of a training pass besides weights and optimizer state, estimated from tensor shapes.
//!
//! The forward pass saves tensors, and the backward pass frees them block by block, from the last to the first, while
//! the gradients of the weights accumulate. [`pass_memory`] adds up what the [operations](Operations) save and need
//! temporarily, and finds the peak.

use serde::Serialize;
use tinderbox_kernels::attention::{self, AttentionShape};
use tinderbox_kernels::{Operations, TrainingMemory, dropout, linear, loss, mix, mlp, norm};

use super::parameters;
use crate::config::ModelConfig;

/// Bytes of an f32.
const F32: f64 = 4.0;

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

/// Byte counts of the parts of a pass; shapes as in [`tinderbox_model`].
struct Costs {
    /// `[B, T, C]`
    stream: f64,
    /// A dropout mask of that size; 0 without dropout.
    mask: f64,
    /// `[C, V]`
    output_matrix: f64,
    /// The norm before attention, and the projection to queries, keys and values.
    projection: TrainingMemory,
    /// From queries, keys and values to the attention's output.
    attention: TrainingMemory,
    /// Attention weights in attention's backward pass.
    attention_weights: f64,
    /// The second norm and the feed-forward layer.
    mlp: TrainingMemory,
    /// The bytes saved by the final norm.
    last_norm: f64,
    /// Saved logits.
    logits: f64,
    /// Temporaries of the loss and of the output layer's backward pass.
    loss: f64,
    output: f64,
}

/// Adds up what each operation states.
fn costs(config: &ModelConfig, vocab_size: usize, batch_size: usize, operations: Operations) -> Costs {
    let ModelConfig { context_length, d_model, d_ff, n_heads, n_kv_heads, head_dim, qk_norm, .. } = *config;
    let rows = [batch_size, context_length];
    let of_width = |width: usize| [batch_size, context_length, width]; // [B, T, width]
    let stream = F32 * batch_size as f64 * context_length as f64 * d_model as f64;
    let has_dropout = config.dropout > 0.0;
    let dropout = if has_dropout { dropout::training_memory(of_width(d_model)) } else { TrainingMemory::default() };
    // The gradient of the residual stream, and that of the block's output, which dropout makes different.
    let upstream = stream + dropout.temporary;
    let (v_width, qkv_width) = (n_kv_heads * head_dim, (n_heads + 2 * n_kv_heads) * head_dim);
    // Blocks share the embedding.
    let skip = if config.embedding_skip { mix::saved_bytes(of_width(d_model), None) } else { 0.0 };
    let values =
        if config.value_residual { mix::saved_bytes(of_width(qkv_width), Some(of_width(v_width))) } else { 0.0 };

    let norm = norm::saved_bytes(operations, of_width(d_model));
    // Without a norm, what a layer reads is the residual stream, saved all the same.
    let first_norm = if config.pre_norm { norm } else { stream };
    let shares_input = config.parallel_residual && operations == Operations::Fused;
    let second_norm = if shares_input { first_norm - stream } else { first_norm };
    let post_norm = if config.post_norm { norm } else { 0.0 };
    let projection = linear::training_memory(operations, rows, [d_model, qkv_width]);
    let softcap = config.attention_softcap.is_some();
    let is_by_head = qk_norm && !config.qk_norm_across_heads;
    let shape = AttentionShape { rows, n_heads, n_kv_heads, head_dim, qk_norm: is_by_head, softcap };
    // The norms over all heads, and the projection with their outputs in it.
    let across_heads = if qk_norm && !is_by_head {
        let widths = [qkv_width - v_width, qkv_width].map(of_width);
        norm::saved_bytes(operations, widths[0]) + norm::saved_bytes(operations, widths[1]) / 2.0
    } else {
        0.0
    };
    let attention = attention::training_memory(operations, shape);
    let mlp = mlp::training_memory(operations, config.mlp, rows, [d_model, d_ff]);
    let is_capped = config.logit_softcap.is_some();
    let loss = loss::training_memory(operations, [batch_size * context_length, d_model, vocab_size], is_capped);
    let of_block = |cost: TrainingMemory, saved: f64| TrainingMemory {
        saved: cost.saved + saved,
        temporary: cost.temporary + upstream,
    };
    Costs {
        stream,
        mask: dropout.saved,
        output_matrix: F32 * d_model as f64 * vocab_size as f64,
        projection: of_block(projection, skip + first_norm),
        attention: of_block(attention, values + across_heads + post_norm + dropout.saved),
        attention_weights: attention::weights_memory(operations, shape, has_dropout),
        mlp: of_block(mlp, second_norm + post_norm + dropout.saved),
        last_norm: norm, // fused, its output is not saved, but the loss computes its gradient
        logits: loss.saved,
        loss: loss.temporary,
        output: loss::composed_output_bytes(rows, [d_model, vocab_size], config.tie_embeddings),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MlpKind, PositionKind};

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
