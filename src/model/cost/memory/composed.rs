//! A pass that burn's own operations compute.
//!
//! Burn's autodiff keeps the inputs of matrix products, of products of two tensors and of activations, each
//! buffer once, and nothing of sums, views and reshapes. Attention is one operation of ours, which keeps no weights:
//! see [`tinderbox_kernels::causal`].

use super::{F32, Held, Ledger, PassMemory, PassShape};
use crate::config::{MlpKind, ModelConfig};
use crate::model::cost::parameters;
use tinderbox_kernels::causal::MOST_BYTES;

/// Walks through a training pass of a batch.
pub(super) fn pass_memory(config: &ModelConfig, vocab_size: usize, shape: PassShape) -> PassMemory {
    let sizes = Sizes::new(config, vocab_size, shape);
    let block = KeptByBlock::new(config, &sizes);
    let n_layers = config.n_layers as f64;
    let Sizes { stream, hidden, qkv, logits, .. } = sizes;
    let kept = Held {
        activations: sizes.dropped + n_layers * block.total() + sizes.last_norm,
        logits,
        ..Held::default()
    };
    let mut ledger = Ledger::new(kept);

    // In the forward pass exp(logits); in the backward pass two gradients of their size.
    ledger.look("the loss", 2.0 * logits);
    ledger.now.logits = 0.0;
    let of_output = sizes.gradient_of_output(config, vocab_size);
    ledger.look("the output layer's backward pass", logits + stream + of_output);
    ledger.now.gradients += sizes.matrix(config.d_model, vocab_size);
    ledger.now.activations -= sizes.last_norm;

    let parameters = parameters(config, vocab_size).block;
    let [c, f] = [config.d_model, config.d_ff];
    let n_qkv = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim();
    let upstream = stream + sizes.dropped; // the gradient of what the block adds to
    for _ in 0..config.n_layers {
        let of_hidden = upstream + hidden;
        let of_contract = upstream + hidden + sizes.gradient_of_matrix(f, c);
        ledger.look("the backward pass of an MLP", f64::max(of_hidden, of_contract));
        ledger.now.activations -= block.mlp;
        ledger.now.gradients += F32 * parameters.mlp as f64;

        let of_output = upstream + stream + sizes.gradient_of_matrix(c, c);
        ledger.look("the backward pass of attention", of_output);
        ledger.now.attention_weights = sizes.weights;
        let of_heads = upstream + 2.0 * stream + 2.0 * sizes.shared_heads; // of what comes out, and of what went in
        ledger.look("the backward pass of attention", of_heads);
        ledger.now.attention_weights = 0.0;
        ledger.now.activations -= block.heads;

        // Each of the three gradients is spread out to the width of all before they are added up.
        let of_parts = upstream + 3.0 * qkv;
        let of_qkv = upstream + stream + qkv + sizes.gradient_of_matrix(c, n_qkv);
        ledger.look("the backward pass of a projection", f64::max(of_parts, of_qkv));
        ledger.now.activations -= block.projection;
        ledger.now.gradients += F32 * (parameters.total - parameters.mlp) as f64;
    }
    let of_embedding = sizes.matrix(vocab_size, config.d_model);
    ledger.look("the embedding's backward pass", stream + of_embedding);
    ledger.into_memory()
}

/// Bytes of the tensors that a pass is made of.
struct Sizes {
    shape: PassShape,
    /// `[B, T, C]`
    stream: f64,
    /// A mask of that size, where there is dropout.
    dropped: f64,
    /// `[B, T, Hkv D]`
    shared_heads: f64,
    /// `[B, T, (H + 2 Hkv) D]`
    qkv: f64,
    /// `[B, T, F]`
    hidden: f64,
    /// What the backward pass of attention has of weights, of a block of queries: they, their gradient, that of the
    /// scores, and what is dropped.
    weights: f64,
    /// Of each row of them the largest score and a sum, `[B, H, T]`.
    of_rows: f64,
    /// `[B, T, V]`
    logits: f64,
    /// What the norm before the logits keeps, and its output.
    last_norm: f64,
}

impl Sizes {
    fn new(config: &ModelConfig, vocab_size: usize, shape: PassShape) -> Self {
        let n_rows = shape.batch_size as f64 * shape.seq_len as f64;
        let rows = |width: usize| F32 * n_rows * width as f64;
        let head_dim = config.head_dim();
        let stream = rows(config.d_model);
        let weights = rows(config.n_heads) * shape.seq_len as f64;
        let n_weights = if config.dropout > 0.0 { 4.0 } else { 3.0 };
        Self {
            shape,
            stream,
            dropped: if config.dropout > 0.0 { stream } else { 0.0 },
            shared_heads: rows(config.n_kv_heads * head_dim),
            qkv: rows((config.n_heads + 2 * config.n_kv_heads) * head_dim),
            hidden: rows(config.d_ff),
            weights: n_weights * weights.min(MOST_BYTES as f64),
            of_rows: 2.0 * rows(config.n_heads),
            logits: rows(vocab_size),
            last_norm: (NORM_STEPS + 1.0) * stream,
        }
    }

    #[allow(clippy::unused_self, reason = "sizes of tensors are asked of it")]
    fn matrix(&self, n_in: usize, n_out: usize) -> f64 {
        F32 * n_in as f64 * n_out as f64
    }

    /// What it takes to make the gradient of a linear layer's matrix, `[n_in, n_out]`.
    ///
    /// All rows of a batch share the matrix. Where burn multiplies the rows of a batch one after another, it
    /// makes a gradient for each, and then their sum; else it takes all rows at once.
    fn gradient_of_matrix(&self, n_in: usize, n_out: usize) -> f64 {
        let matrix = self.matrix(n_in, n_out);
        match is_row_by_row(self.shape, n_out) {
            true => self.shape.batch_size as f64 * matrix,
            false => matrix,
        }
    }

    /// The same for the scores' matrix, which is none of a linear layer where it is the token embedding.
    fn gradient_of_output(&self, config: &ModelConfig, vocab_size: usize) -> f64 {
        if config.tie_embeddings {
            let matrix = self.matrix(config.d_model, vocab_size);
            return self.shape.batch_size as f64 * matrix;
        }
        self.gradient_of_matrix(config.d_model, vocab_size)
    }
}

/// Whether burn multiplies a batch with a matrix row by row instead of all rows at once.
///
/// Source: burn-std 0.22.1, `MatmulTransformPolicy::BetterTiling`.
fn is_row_by_row(shape: PassShape, n_out: usize) -> bool {
    const TILE: usize = 32;
    let (n, t) = (shape.batch_size * shape.seq_len, shape.seq_len);
    let squareness = |rows: usize| rows.min(n_out) as f64 / rows.max(n_out) as f64;
    shape.batch_size > 1 && (t.is_multiple_of(TILE) || squareness(n) <= squareness(t))
}

/// Tensors of its input's size that a norm keeps.
const NORM_STEPS: f64 = 2.0;

/// Bytes that the forward pass of one block keeps.
struct KeptByBlock {
    /// The first norm's, and the factor of the projection to queries, keys and values.
    projection: f64,
    /// Queries, keys, values, and what the heads gathered: head by head, and side by side for the next product.
    heads: f64,
    /// Everything of the feed-forward layer.
    mlp: f64,
}

impl KeptByBlock {
    fn new(config: &ModelConfig, sizes: &Sizes) -> Self {
        let normed = (NORM_STEPS + 1.0) * sizes.stream;
        // What a head's norm gives is a factor in any case, what it starts from is kept beside it.
        let head_norms =
            if config.qk_norm { NORM_STEPS * (sizes.stream + sizes.shared_heads) } else { 0.0 };
        let heads = 3.0 * sizes.stream + 2.0 * sizes.shared_heads + sizes.of_rows;
        let n_hidden = match config.mlp {
            MlpKind::Gelu => 4.0,
            MlpKind::ReluSquared => 3.0,
            MlpKind::Swiglu => 5.0, // of the gate: input, sigmoid, output; the other factor; the product
        };
        Self {
            projection: normed,
            heads: heads + head_norms + sizes.dropped,
            mlp: normed + n_hidden * sizes.hidden + sizes.dropped,
        }
    }

    /// All of it.
    fn total(&self) -> f64 {
        self.projection + self.heads + self.mlp
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cost::Operations;

    #[test]
    fn attention_keeps_no_weights_and_holds_a_block_of_them() {
        const MIB: f64 = 1_048_576.0;
        let config = |context_length| ModelConfig {
            context_length,
            ..ModelConfig::default() // 4 layers, 4 heads, 128 wide
        };
        let memory = |seq_len| {
            let shape = PassShape { batch_size: 1, seq_len, operations: Operations::Composed };
            pass_memory(&config(seq_len), 64, shape)
        };
        let (short, long) = (memory(512), memory(8192));
        for memory in [short, long] {
            assert!(memory.kept.attention_weights.abs() < 1.0, "{memory:?}");
        }
        let ratio = long.kept.total() / short.kept.total();
        assert!((ratio - 16.0).abs() < 0.01, "{ratio}");
        // The weights of all queries at once would be 1 GiB.
        assert_eq!(long.peak_during, "the backward pass of attention");
        let mib = long.peak.attention_weights / MIB;
        assert!((mib - 3.0 * 128.0).abs() < 0.1, "{mib}");
    }

    #[test]
    fn rows_are_multiplied_one_by_one_as_burn_decides() {
        let shape = |batch_size, seq_len| PassShape {
            batch_size,
            seq_len,
            operations: Operations::Composed,
        };
        assert!(is_row_by_row(shape(8, 256), 2048));
        assert!(!is_row_by_row(shape(8, 250), 2048));
        assert!(is_row_by_row(shape(8, 250), 512));
        assert!(!is_row_by_row(shape(1, 256), 2048));
    }
}
