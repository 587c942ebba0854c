//! A pass that the operations of [`tinderbox_kernels`] for burn's CPU backend compute.
//!
//! Each keeps its inputs, which its neighbours share, and what would take long to compute again: a feed-forward
//! layer its activation and the derivative of that. The weights of attention and the logits are never whole.

use super::{F32, Held, Ledger, PassMemory, PassShape};
use crate::config::{MlpKind, ModelConfig};
use crate::model::cost::parameters;

/// Logits that the loss holds at once.
const MOST_LOGITS: f64 = 4_194_304.0;

/// Walks through a training pass of a batch.
pub(super) fn pass_memory(config: &ModelConfig, vocab_size: usize, shape: PassShape) -> PassMemory {
    let n_rows = shape.batch_size as f64 * shape.seq_len as f64;
    let rows = |width: usize| F32 * n_rows * width as f64;
    let matrix = |n_in: usize, n_out: usize| F32 * n_in as f64 * n_out as f64;
    let ModelConfig { d_model: c, d_ff: f, n_heads, n_kv_heads, .. } = *config;
    let n_qkv = (n_heads + 2 * n_kv_heads) * config.head_dim();
    let (stream, hidden, qkv) = (rows(c), rows(f), rows(n_qkv));
    let mask = if config.dropout > 0.0 { stream } else { 0.0 };
    // The activation, and its derivatives by its inputs: with a gate there are two.
    let (n_inputs, n_weights) = match config.mlp {
        MlpKind::Gelu | MlpKind::ReluSquared => (1.0, 2.0),
        MlpKind::Swiglu => (2.0, 3.0),
    };
    let normed = 2.0 * stream; // what goes into a norm, and what comes out
    let mlp = normed + (1.0 + n_inputs) * hidden + mask;
    let gathered = stream + rows(n_heads); // with the logarithm of each row's sum
    let attention = normed + qkv + gathered + mask;
    let output = matrix(c, vocab_size);
    let n_layers = config.n_layers as f64;
    let mut ledger = Ledger::new(Held {
        // Behind the blocks what goes into the last norm. The loss computed the gradients of its two inputs
        // along with itself.
        activations: mask + n_layers * (attention + mlp) + 2.0 * stream,
        gradients: output,
        ..Held::default()
    });
    let logits = (F32 * MOST_LOGITS).min(rows(vocab_size));
    ledger.look("the loss", stream + logits);
    ledger.now.activations -= 2.0 * stream;

    let parameters = parameters(config, vocab_size).block;
    for _ in 0..config.n_layers {
        // Gradients: of what the block adds to, and of what it adds, where dropout makes a difference.
        let upstream = stream + mask;
        // Matrices are turned, and have gradients.
        let of_mlp = stream + n_inputs * hidden + 2.0 * n_weights * matrix(c, f);
        ledger.look("the backward pass of an MLP", upstream + of_mlp);
        ledger.now.activations -= mlp;
        ledger.now.gradients += F32 * parameters.mlp as f64;

        let of_output = stream + 2.0 * matrix(c, c);
        let of_heads = stream + qkv;
        let of_qkv = stream + qkv + 2.0 * matrix(c, n_qkv);
        ledger.look("the backward pass of attention", upstream + of_output.max(of_heads));
        ledger.now.activations -= gathered + mask;
        ledger.look("the backward pass of a projection", upstream + of_qkv);
        ledger.now.activations -= normed + qkv;
        ledger.now.gradients += F32 * (parameters.total - parameters.mlp) as f64;
    }
    ledger.look("the embedding's backward pass", stream + output);
    ledger.into_memory()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PositionKind;
    use crate::model::cost::Operations;

    const MIB: f64 = 1_048_576.0;

    /// Bytes of one `[B, T, C]` of the shape below.
    const STREAM: f64 = MIB;

    fn kept(change: impl FnOnce(&mut ModelConfig)) -> Held {
        let mut config = ModelConfig {
            context_length: 256,
            ..ModelConfig::default() // 4 layers, 4 heads, 128 wide, 512 in the MLP
        };
        change(&mut config);
        let shape = PassShape { batch_size: 8, seq_len: 256, operations: Operations::Fused };
        pass_memory(&config, 64, shape).kept
    }

    /// What a counting allocator finds between the passes, in MiB.
    #[test]
    fn what_is_kept_is_what_an_allocator_counts() {
        let assert_mib = |held: Held, mib: f64| {
            let total = held.total() / MIB;
            assert!((total - mib).abs() < 0.3, "{total} is not {mib}");
        };
        assert_mib(kept(|_| {}), 66.2);
        assert_mib(kept(|config| config.dropout = 0.1), 75.2);
        let rotated = kept(|config| {
            config.position = PositionKind::Rope;
            config.qk_norm = true;
        });
        assert_mib(rotated, 66.2);
        let grouped = kept(|config| {
            config.n_kv_heads = 1;
            config.mlp = MlpKind::Swiglu;
            config.d_ff = 352;
        });
        assert_mib(grouped, 61.2);
    }

    #[test]
    fn a_block_keeps_its_tensors_once_and_no_weights_of_attention() {
        let held = kept(|config| config.tie_embeddings = false);
        let assert_bytes = |held: f64, bytes: f64| assert!((held - bytes).abs() < 1.0, "{held}");
        assert_bytes(held.attention_weights, 0.0);
        assert_bytes(held.logits, 0.0);
        // Each block: two norms' inputs and outputs, queries, keys, values, what is gathered with a number for
        // each head and row, and the hidden layer, four times as wide, twice; behind them the last norm's input, and a
        // gradient.
        let of_heads = 4.0 / 128.0;
        assert_bytes(held.activations, (4.0 * (4.0 + 3.0 + 1.0 + of_heads + 8.0) + 2.0) * STREAM);
    }
}
