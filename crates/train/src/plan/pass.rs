//! The memory of a training pass besides weights and optimizer state, estimated from tensor shapes.
//!
//! The forward pass saves tensors, and the backward pass frees them block by block, from the last to the first, while
//! the gradients of the weights accumulate. [`pass_memory`] walks through the backward pass and finds the peak; the
//! memory of a block is stated beside its forward pass ([`Block::training_memory`]).

use serde::Serialize;
use tinderbox_kernels::{Operations, dropout, loss, norm};

use super::parameters;
use crate::config::ModelConfig;
use tinderbox_model::{Block, BlockMemory};

/// Bytes of an f32.
const F32: f64 = 4.0;

/// Bytes that a training pass holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MemoryBreakdown {
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

impl MemoryBreakdown {
    /// The sum of all parts.
    pub fn total(&self) -> f64 {
        self.activations + self.attention_weights + self.logits + self.gradients + self.temporaries
    }
}

/// The memory of a training pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PassMemory {
    /// Between the forward and the backward pass.
    pub saved: MemoryBreakdown,
    /// At the peak.
    pub peak: MemoryBreakdown,
    /// The operation at the peak.
    pub peak_during: &'static str,
}

/// Estimates the memory of a training pass over `batch_size` rows of a full context.
pub fn pass_memory(config: &ModelConfig, vocab_size: usize, batch_size: usize, operations: Operations) -> PassMemory {
    let ModelConfig { context_length, d_model, .. } = *config;
    let rows = [batch_size, context_length];
    let stream = [batch_size, context_length, d_model]; // [B, T, C]
    let stream_bytes = F32 * stream.map(|size| size as f64).iter().product::<f64>();
    let output_matrix = F32 * d_model as f64 * vocab_size as f64; // [C, V]
    let mask = if config.dropout > 0.0 { dropout::training_memory(stream).saved } else { 0.0 };
    // Fused, its output is not saved, but the loss computes its gradient.
    let last_norm = norm::saved_bytes(stream);
    let is_capped = config.logit_softcap.is_some();
    let loss = loss::training_memory(operations, [batch_size * context_length, d_model, vocab_size], is_capped);
    let parameters = parameters(config, vocab_size).block;
    let BlockMemory { projection, attention, attention_weights, mlp } =
        Block::training_memory(config, operations, rows);
    let block = projection.saved + attention.saved + mlp.saved;
    let mut now = MemoryBreakdown {
        activations: mask + config.n_layers as f64 * block + last_norm,
        logits: loss.saved,
        ..MemoryBreakdown::default()
    };
    if operations == Operations::Fused {
        now.gradients = output_matrix; // the fused loss computes its gradient in the forward pass
    }
    let mut memory = PassMemory { saved: now, peak: now, peak_during: "the loss" };
    memory.visit("the loss", now, loss.temporary);
    if operations == Operations::Composed {
        now.logits = 0.0;
        let temporary = loss::composed_output_bytes(rows, [d_model, vocab_size]);
        memory.visit("the output layer's backward pass", now, temporary);
        now.gradients = output_matrix;
    }
    now.activations -= last_norm;
    for _ in 0..config.n_layers {
        memory.visit("the backward pass of an MLP", now, mlp.temporary);
        now.activations -= mlp.saved;
        now.gradients += F32 * parameters.mlp as f64;
        memory.visit(
            "the backward pass of attention",
            MemoryBreakdown { attention_weights, ..now },
            attention.temporary,
        );
        now.activations -= attention.saved;
        memory.visit("the backward pass of a projection", now, projection.temporary);
        now.activations -= projection.saved;
        now.gradients += F32 * (parameters.total - parameters.mlp) as f64;
    }
    memory.visit("the embedding's backward pass", now, stream_bytes + output_matrix);
    memory
}

impl PassMemory {
    /// Records the moment if it is the peak so far. `temporaries` are held besides `now`.
    fn visit(&mut self, during: &'static str, now: MemoryBreakdown, temporaries: f64) {
        let held = MemoryBreakdown { temporaries, ..now };
        if held.total() > self.peak.total() {
            (self.peak, self.peak_during) = (held, during);
        }
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
    fn composed_attention_holds_weights_of_one_block_of_queries() {
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
    fn fused_operations_save_what_an_allocator_counted() {
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
