//! What the forward and backward pass of one batch hold in memory, beside the weights.
//!
//! The forward pass keeps what the backward pass will ask for: burn's autodiff keeps the inputs of matrix
//! products, of products of two tensors and of activations, each buffer once, and nothing of sums, views and
//! reshapes. The backward pass frees it, block by block from the last to the first, while the gradients of
//! the weights grow. [`pass_memory`] walks through it as the program does, and remembers the fullest moment.

use serde::Serialize;

use super::parameters;
use crate::config::{MlpKind, ModelConfig};
use crate::counts::real;

/// Bytes of an f32.
const F32: f64 = 4.0;

/// Which operations compute norms, activations and the softmax: they differ in what they keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// Those of `kernels` for burn's CPU backend.
    Fused,
    /// Those that are put together of burn's own, on every other backend.
    Composed,
}

/// What goes through a model at once.
#[derive(Clone, Copy, Debug)]
pub struct PassShape {
    /// Rows of tokens.
    pub batch_size: usize,
    /// Tokens of a row.
    pub seq_len: usize,
    /// What computes.
    pub operations: Operations,
}

/// Bytes that a training pass holds at one moment, by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Held {
    /// Kept for the backward pass, without the two below.
    pub activations: f64,
    /// Kept for the backward pass: who looks at whom, which grows with the square of the context.
    pub attention_weights: f64,
    /// Kept for the backward pass: the scores for the next token.
    pub logits: f64,
    /// Gradients of the weights, as far as they are computed.
    pub gradients: f64,
    /// What an operation needs while it computes.
    pub temporaries: f64,
}

impl Held {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.activations + self.attention_weights + self.logits + self.gradients + self.temporaries
    }
}

/// The memory of a training pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PassMemory {
    /// Between the forward and the backward pass.
    pub kept: Held,
    /// At the fullest moment.
    pub peak: Held,
    /// When that is.
    pub peak_during: &'static str,
}

/// Walks through a training pass of a batch.
#[must_use]
pub fn pass_memory(config: &ModelConfig, vocab_size: usize, shape: PassShape) -> PassMemory {
    let sizes = Sizes::new(config, vocab_size, shape);
    let block = KeptByBlock::new(config, &sizes, shape.operations);
    let n_layers = real(config.n_layers);
    let Sizes {
        stream,
        hidden,
        qkv,
        logits,
        ..
    } = sizes;
    let kept = Held {
        activations: sizes.dropped + n_layers * block.total() + sizes.last_norm + sizes.tied_copy,
        attention_weights: n_layers * block.weights,
        logits,
        ..Held::default()
    };
    let mut ledger = Ledger::new(kept);

    // In the forward pass exp(logits); in the backward pass two gradients of their size.
    ledger.look("the loss", 2.0 * logits);
    ledger.now.logits = 0.0;
    ledger.now.activations -= sizes.tied_copy;
    let of_output = sizes.gradient_of_output(config, vocab_size);
    ledger.look(
        "the output layer's backward pass",
        logits + stream + of_output,
    );
    ledger.now.gradients += sizes.matrix(config.d_model, vocab_size);
    ledger.now.activations -= sizes.last_norm;

    let parameters = parameters(config, vocab_size).block;
    let [c, f] = [config.d_model, config.d_ff];
    let n_qkv = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim();
    let upstream = stream + sizes.dropped; // the gradient of what the block adds to
    for _ in 0..config.n_layers {
        let of_hidden = upstream + sizes.product(hidden);
        let of_contract = upstream + hidden + sizes.gradient_of_matrix(f, c);
        ledger.look(
            "the backward pass of an MLP",
            f64::max(of_hidden, of_contract),
        );
        ledger.now.activations -= block.mlp;
        ledger.now.gradients += F32 * real(parameters.mlp);

        let of_output = upstream + stream + sizes.gradient_of_matrix(c, c);
        let of_weights = 2.0 * stream + upstream + sizes.softmax_backward;
        ledger.look(
            "the backward pass of attention",
            f64::max(of_output, of_weights),
        );
        ledger.now.attention_weights -= block.weights;
        ledger.now.activations -= block.heads;

        // Each of the three gradients is spread out to the width of all before they are added up.
        let of_parts = upstream + 3.0 * qkv;
        let of_qkv = upstream + stream + qkv + sizes.gradient_of_matrix(c, n_qkv);
        ledger.look(
            "the backward pass of a projection",
            f64::max(of_parts, of_qkv),
        );
        ledger.now.activations -= block.projection;
        ledger.now.gradients += F32 * real(parameters.total - parameters.mlp);
    }
    let of_embedding = sizes.product(sizes.matrix(vocab_size, config.d_model));
    ledger.look("the embedding's backward pass", stream + of_embedding);
    PassMemory {
        kept,
        peak: ledger.peak,
        peak_during: ledger.peak_during,
    }
}

/// What is held now, and the most that was.
struct Ledger {
    now: Held,
    peak: Held,
    peak_during: &'static str,
}

impl Ledger {
    fn new(now: Held) -> Self {
        Self {
            now,
            peak: now,
            peak_during: "the loss",
        }
    }

    /// A moment at which `temporaries` are held too.
    fn look(&mut self, during: &'static str, temporaries: f64) {
        let held = Held {
            temporaries,
            ..self.now
        };
        if held.total() > self.peak.total() {
            (self.peak, self.peak_during) = (held, during);
        }
    }
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
    /// `[B, H, T, T]`
    weights: f64,
    /// The gradient of that, with what its computation needs.
    softmax_backward: f64,
    /// `[B, T, V]`
    logits: f64,
    /// What the norm before the logits keeps, and its output.
    last_norm: f64,
    /// The token embedding lies as `[V, C]` and is needed as `[1, C, V]`, which is a copy.
    tied_copy: f64,
}

impl Sizes {
    fn new(config: &ModelConfig, vocab_size: usize, shape: PassShape) -> Self {
        let n_rows = real(shape.batch_size) * real(shape.seq_len);
        let rows = |width: usize| F32 * n_rows * real(width);
        let head_dim = config.head_dim();
        let stream = rows(config.d_model);
        let weights = rows(config.n_heads) * real(shape.seq_len);
        let mut sizes = Self {
            shape,
            stream,
            dropped: if config.dropout > 0.0 { stream } else { 0.0 },
            shared_heads: rows(config.n_kv_heads * head_dim),
            qkv: rows((config.n_heads + 2 * config.n_kv_heads) * head_dim),
            hidden: rows(config.d_ff),
            weights,
            softmax_backward: 0.0,
            logits: rows(vocab_size),
            last_norm: (norm_steps(shape.operations) + 1.0) * stream,
            tied_copy: 0.0,
        };
        sizes.softmax_backward = match shape.operations {
            Operations::Fused => sizes.product(weights), // then in place
            Operations::Composed => 3.0 * weights,
        };
        if config.tie_embeddings && shape.operations == Operations::Fused {
            sizes.tied_copy = sizes.matrix(vocab_size, config.d_model);
        }
        sizes
    }

    #[allow(clippy::unused_self, reason = "sizes of tensors are asked of it")]
    fn matrix(&self, n_in: usize, n_out: usize) -> f64 {
        F32 * real(n_in) * real(n_out)
    }

    /// What it takes to make the output of a matrix product: burn's CPU backend fills it with zeros first,
    /// and moves it to where it is aligned.
    fn product(&self, output: f64) -> f64 {
        match self.shape.operations {
            Operations::Fused => 2.0 * output,
            Operations::Composed => output,
        }
    }

    /// What it takes to make the gradient of a linear layer's matrix, `[n_in, n_out]`.
    ///
    /// All rows of a batch share the matrix. Where burn multiplies the rows of a batch one after another, it
    /// makes a gradient for each, and then their sum; else it takes all rows at once.
    fn gradient_of_matrix(&self, n_in: usize, n_out: usize) -> f64 {
        let matrix = self.matrix(n_in, n_out);
        match is_row_by_row(self.shape, n_out) {
            true => self.product(real(self.shape.batch_size) * matrix),
            false => self.product(matrix),
        }
    }

    /// The same for the scores' matrix, which is none of a linear layer where it is the token embedding.
    fn gradient_of_output(&self, config: &ModelConfig, vocab_size: usize) -> f64 {
        if config.tie_embeddings {
            let matrix = self.matrix(config.d_model, vocab_size);
            return self.product(real(self.shape.batch_size) * matrix);
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
    let squareness = |rows: usize| real(rows.min(n_out) as u64) / real(rows.max(n_out) as u64);
    shape.batch_size > 1 && (t.is_multiple_of(TILE) || squareness(n) <= squareness(t))
}

/// Tensors of its input's size that a norm keeps.
fn norm_steps(operations: Operations) -> f64 {
    match operations {
        Operations::Fused => 1.0, // the input itself
        Operations::Composed => 2.0,
    }
}

/// Bytes that the forward pass of one block keeps.
struct KeptByBlock {
    /// The first norm's, and the factor of the projection to queries, keys and values.
    projection: f64,
    /// Queries, keys, values, and what the heads gathered.
    heads: f64,
    /// The weights of attention, and what dropout makes of them.
    weights: f64,
    /// Everything of the feed-forward layer.
    mlp: f64,
}

impl KeptByBlock {
    fn new(config: &ModelConfig, sizes: &Sizes, operations: Operations) -> Self {
        let is_fused = operations == Operations::Fused;
        let normed = (norm_steps(operations) + 1.0) * sizes.stream;
        // What a head's norm gives is a factor in any case, what it starts from is kept beside it.
        let head_norms = if config.qk_norm {
            norm_steps(operations) * (sizes.stream + sizes.shared_heads)
        } else {
            0.0
        };
        let four = 4.0 * sizes.stream; // keys and values are repeated for each head
        let n_weights = if is_fused { 1.0 } else { 3.0 };
        let n_dropped = if config.dropout > 0.0 { 2.0 } else { 0.0 }; // a mask, and the weights behind it
        let n_hidden = match config.mlp {
            MlpKind::Gelu if is_fused => 2.0, // the activation's input and output
            MlpKind::Gelu => 4.0,
            MlpKind::ReluSquared => 3.0,
            MlpKind::Swiglu => 5.0, // of the gate: input, sigmoid, output; the other factor; the product
        };
        Self {
            projection: normed,
            heads: four + head_norms + sizes.dropped,
            weights: (n_weights + n_dropped) * sizes.weights,
            mlp: normed + n_hidden * sizes.hidden + sizes.dropped,
        }
    }

    /// Everything but the weights of attention.
    fn total(&self) -> f64 {
        self.projection + self.heads + self.mlp
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PositionKind;

    const MIB: f64 = 1_048_576.0;

    /// Bytes of one `[B, T, C]` and of one `[B, H, T, T]` of the shape below.
    const STREAM: f64 = MIB;
    const WEIGHTS: f64 = 8.0 * MIB;

    fn kept(change: impl FnOnce(&mut ModelConfig)) -> Held {
        let mut config = ModelConfig {
            context_length: 256,
            ..ModelConfig::default() // 4 layers, 4 heads, 128 wide, 512 in the MLP
        };
        change(&mut config);
        let shape = PassShape {
            batch_size: 8,
            seq_len: 256,
            operations: Operations::Fused,
        };
        pass_memory(&config, 64, shape).kept
    }

    /// What a counting allocator finds between the passes, in MiB, but for about 2 of the program's own.
    #[test]
    fn what_is_kept_is_what_an_allocator_counts() {
        let assert_mib = |held: Held, mib: f64| {
            let total = held.total() / MIB;
            assert!((total - mib).abs() < 0.05, "{total} is not {mib}");
        };
        assert_mib(kept(|_| {}), 98.5); // counted: 100.65 - 1.97
        assert_mib(kept(|config| config.dropout = 0.1), 171.5); // 173.66 - 1.97
        let rotated = kept(|config| {
            config.position = PositionKind::Rope;
            config.qk_norm = true;
        });
        assert_mib(rotated, 106.5); // 108.74 - 1.95
        let grouped = kept(|config| {
            config.n_kv_heads = 1;
            config.mlp = MlpKind::Swiglu;
            config.d_ff = 352;
        });
        assert_mib(grouped, 121.5); // 123.77 - 1.96
    }

    #[test]
    fn a_block_keeps_its_tensors_once() {
        let held = kept(|config| config.tie_embeddings = false);
        let assert_bytes = |held: f64, bytes: f64| assert!((held - bytes).abs() < 1.0, "{held}");
        assert_bytes(held.attention_weights, 4.0 * WEIGHTS);
        // Each block: two norms' inputs and outputs, queries, keys, values, what is gathered, and the hidden
        // layer, four times as wide, twice; behind them the last norm's input and output.
        assert_bytes(held.activations, (4.0 * (8.0 + 8.0) + 2.0) * STREAM);
        assert_bytes(held.logits, STREAM / 2.0);
    }

    #[test]
    fn rows_are_multiplied_one_by_one_as_burn_decides() {
        let shape = |batch_size, seq_len| PassShape {
            batch_size,
            seq_len,
            operations: Operations::Fused,
        };
        assert!(is_row_by_row(shape(8, 256), 2048));
        assert!(!is_row_by_row(shape(8, 250), 2048));
        assert!(is_row_by_row(shape(8, 250), 512));
        assert!(!is_row_by_row(shape(1, 256), 2048));
    }
}
