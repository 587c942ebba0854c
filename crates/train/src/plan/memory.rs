//! The peak memory of a run: in the forward and backward pass, or in the update after it.
//!
//! Checkpoints are saved one tensor at a time and evaluations save nothing for a backward pass, so neither needs more.
//! Token files are read on demand and not counted. Every number counts as an f32; training in bf16 takes a little less.

use serde::{Serialize, Serializer};

use super::tensors::Tensors;
use super::{Held, Operations, PassMemory, pass_memory};
use crate::config::Config;
use tinderbox_model::Parameter;
use tinderbox_model::device::OpenDevice;
use tinderbox_model::format::size;
use tinderbox_model::measure::Machine;

const MIB: f64 = 1_048_576.0;

/// Bytes of an f32.
const F32: f64 = 4.0;

/// The process without a run: code, threads, matrix product buffers. Measured on Linux with a tiny model.
const PROCESS: f64 = 38.0 * MIB;

/// The allocator's overhead, measured on Linux (see `docs/plan.md`): free blocks in proportion to the tensors, up to a
/// limit; a share of what a pass holds, for packed copies and unusable blocks; and a share of everything, lost between
/// blocks.
const FREE_BLOCKS: f64 = 2.1;
const MOST_FREE_BLOCKS: f64 = 57.0 * MIB;
const PASS_OVERHEAD: f64 = 0.27;
const FRAGMENTATION: f64 = 0.05;

/// A vocabulary that is not what makes a model too large: that of bytes.
const SMALL_VOCABULARY: usize = 256;

/// The memory of a run. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// The peak memory.
    pub peak: u64,
    /// The operation during which it peaks.
    pub peak_during: &'static str,
    /// The parts that add up to the peak, by name: the weights, the optimizer's state, the fields of [`Held`], and the
    /// process with its allocator, which is 0 on a GPU, whose driver has its own.
    #[serde(serialize_with = "as_map")]
    pub parts: [(&'static str, u64); 8],
    /// Saved by the forward pass for the backward pass.
    pub kept_for_backward: u64,
    /// Always 0, since attention saves no weights; kept for scripts that read it.
    pub kept_attention_weights: u64,
    /// The machine's memory; `None` if unknown, as on a GPU.
    pub machine: Option<Machine>,
}

impl Memory {
    pub(super) fn new(config: &Config, vocab_size: usize, device: &OpenDevice) -> Self {
        let operations = device.backend.operations();
        let on_cpu = device.backend.is_cpu();
        let tensors = Tensors::new(&config.model, vocab_size);
        let weights = bytes(&tensors);
        let saved = |parameter: &Parameter| {
            let tensors = config.optimizer.saved_tensors(std::slice::from_ref(parameter)).into_values();
            tensors.map(|shape| F32 * shape.iter().product::<usize>() as f64).sum()
        };
        let optimizer = tensors.sum(saved);
        let pass = pass_memory(&config.model, vocab_size, config.train.batch_size, operations);
        let n_threads = if on_cpu { rayon::current_num_threads() } else { 1 };
        let (peak_during, held) = fullest(config, &tensors, &pass, operations, n_threads);
        let asked_for = weights + optimizer + held.total();
        let process = match on_cpu {
            true => allocator(asked_for, held, weights, &pass) + sample(config, weights, held),
            false => 0.0,
        };
        Self {
            peak: whole(asked_for + process),
            peak_during,
            parts: [
                ("weights", weights),
                ("optimizer", optimizer),
                ("gradients", held.gradients),
                ("activations", held.activations),
                ("attention_weights", held.attention_weights),
                ("logits", held.logits),
                ("temporaries", held.temporaries),
                ("process", process),
            ]
            .map(|(name, bytes)| (name, whole(bytes))),
            kept_for_backward: whole(pass.saved.total()),
            kept_attention_weights: 0,
            machine: on_cpu.then(Machine::here).flatten(),
        }
    }

    /// Whether the peak exceeds the machine's memory.
    pub(super) fn is_too_much(&self) -> bool {
        self.machine.is_some_and(|machine| self.peak > machine.total)
    }

    /// Whether the peak exceeds the machine's free memory.
    #[must_use]
    pub fn is_too_much_now(&self) -> bool {
        self.machine.is_some_and(|machine| self.peak > machine.available)
    }

    /// A warning with a hint; `None` if the run fits.
    pub(super) fn advice(&self, config: &Config, vocab_size: usize, device: &OpenDevice) -> Option<String> {
        let machine = self.machine?;
        let [peak, total, free] = [self.peak, machine.total, machine.available].map(size);
        let (problem, limit) = if self.is_too_much() {
            (format!("the run needs {peak}, and this machine has {total}"), machine.total)
        } else if self.is_too_much_now() {
            let problem = format!("the run needs {peak}, and of this machine's {total} only {free} are free now");
            (problem, machine.available)
        } else {
            return None;
        };
        let hint =
            smaller_batch(config, vocab_size, device, limit).unwrap_or_else(|| smaller_model(config, device, limit));
        Some(format!("{problem}\n  hint: {hint}"))
    }
}

/// The keys to lower if even one row at a time is too much: that of the vocabulary, if the rest of the model would fit.
fn smaller_model(config: &Config, device: &OpenDevice, limit: u64) -> String {
    let mut one_row = config.clone();
    one_row.train.batch_size = 1;
    let keys = match (config.model.vocab_size, config.tokenizer.vocab_size) {
        _ if Memory::new(&one_row, SMALL_VOCABULARY, device).peak > limit => {
            "model.context_length, model.n_layers or model.d_model"
        }
        (Some(_), _) => "model.vocab_size",
        (None, Some(_)) => "tokenizer.vocab_size",
        (None, None) => "the vocabulary, with another tokenizer",
    };
    format!("even one row at a time is too much: lower {keys}")
}

fn as_map<S: Serializer>(parts: &[(&str, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(parts.iter().copied())
}

/// The largest batch that fits, with more micro-batches to compensate: the same updates in less memory.
fn smaller_batch(config: &Config, vocab_size: usize, device: &OpenDevice, limit: u64) -> Option<String> {
    let batch_size = config.train.batch_size;
    let divisors: Vec<usize> = (2..=batch_size).filter(|n| batch_size.is_multiple_of(*n)).collect();
    let in_parts = |n: usize| {
        let (rows, steps) = (batch_size / n, config.train.grad_accumulation_steps.saturating_mul(n));
        let mut smaller = config.clone();
        (smaller.train.batch_size, smaller.train.grad_accumulation_steps) = (rows, steps);
        (rows, steps, Memory::new(&smaller, vocab_size, device).peak)
    };
    let n = divisors.get(divisors.partition_point(|n| in_parts(*n).2 > limit))?; // fewer rows never need more
    let (rows, steps, peak) = in_parts(*n);
    Some(format!(
        "train.batch_size = {rows} and train.grad_accumulation_steps = {steps} learn the same from the same tokens, in {}",
        size(peak)
    ))
}

/// The peak of a step, and what is held then besides weights and optimizer state. `n_threads` tensors are updated at
/// once.
fn fullest(
    config: &Config,
    weights: &Tensors,
    pass: &PassMemory,
    operations: Operations,
    n_threads: usize,
) -> (&'static str, Held) {
    let mut held = pass.peak;
    if config.train.grad_accumulation_steps > 1 {
        held.gradients += bytes(weights); // the sum of the earlier micro-batches
    }
    let is_fused = operations == Operations::Fused;
    // The largest tensors may be updated first, before any gradient is freed.
    let temporaries = weights.sum_of_largest(n_threads, |weight| config.optimizer.temporary_bytes(weight, is_fused));
    let update = Held { gradients: bytes(weights), temporaries, ..Held::default() };
    match update.total() > held.total() {
        true => ("the update of the weights", update),
        false => (pass.peak_during, held),
    }
}

/// The memory of the process and its allocator, without the tensors.
fn allocator(asked_for: f64, held: Held, weights: f64, pass: &PassMemory) -> f64 {
    // Gradients do not fit where the backward pass freed activations, and that memory is not returned to the system at
    // once: a large model with few tokens holds both.
    let freed = pass.saved.total() - pass.saved.gradients;
    let not_given_back = (freed + weights - held.total()).max(0.0);
    let free_blocks = (FREE_BLOCKS * asked_for).min(MOST_FREE_BLOCKS);
    PROCESS + free_blocks + PASS_OVERHEAD * held.total() + FRAGMENTATION * asked_for + not_given_back
}

/// A sample's copy of the weights, packed for generation on a CPU. It fits where activations were freed, but not where
/// gradients were: the allocator keeps those blocks for other threads.
fn sample(config: &Config, weights: f64, held: Held) -> f64 {
    match config.train.sample_tokens {
        0 => 0.0,
        _ => (weights - held.activations - held.temporaries).max(0.0),
    }
}

fn bytes(tensors: &Tensors) -> f64 {
    F32 * tensors.sum(|tensor| tensor.n_numbers() as f64)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a size is not negative, and the cast saturates at 2^64"
)]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ModelConfig, OptimizerKind};

    #[test]
    fn every_thread_updates_a_tensor() {
        // With a context of one token, memory peaks in the update.
        let mut config = Config::from_toml("data = {path = \"a\"}", "c.toml".as_ref(), &[]).unwrap();
        config.model = ModelConfig { context_length: 1, ..config.model };
        (config.train.batch_size, config.optimizer.kind) = (1, OptimizerKind::Muon);
        let weights = Tensors::new(&config.model, 5);
        let pass = pass_memory(&config.model, 5, 1, Operations::Fused);
        let of = |n_threads| fullest(&config, &weights, &pass, Operations::Fused, n_threads);
        let ((during, one), (_, two), (_, all)) = (of(1), of(2), of(1000));
        assert_eq!((during, one.gradients), ("the update of the weights", bytes(&weights)));
        // The first matrix of the MLP of every block.
        let (d_model, d_ff) = (config.model.d_model as f64, config.model.d_ff as f64);
        let largest = 4.0 * (2.0 * d_model * d_ff + 5.0 * d_model * d_model);
        // On AVX2 the sums of one block wait between parts of a deep product, too.
        assert!((1.0..1.02).contains(&(one.temporaries / largest)), "{one:?}");
        assert!((two.temporaries / one.temporaries - 2.0).abs() < 1e-12, "{two:?}");
        assert!(all.temporaries > 4.0 * largest, "{all:?}");
    }

    #[test]
    fn what_is_too_large_is_what_is_to_be_lowered() {
        let device = tinderbox_model::device::open(&"flex".parse().unwrap()).unwrap();
        let advice = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
            let text = "data = {path = \"a\"}\ntokenizer = {kind = \"bpe\"}";
            let config = Config::from_toml(text, "c.toml".as_ref(), &settings).unwrap();
            let vocab_size = config.tokenizer.bpe_vocab_size();
            let machine = Some(Machine { total: 4 << 30, available: 2 << 30 });
            Memory { machine, ..Memory::new(&config, vocab_size, &device) }.advice(&config, vocab_size, &device)
        };
        let hint = |settings: &[&str]| advice(settings).unwrap().split_once(": lower ").unwrap().1.to_owned();
        assert_eq!(advice(&[]), None);
        assert_eq!(hint(&["tokenizer.vocab_size=5000000"]), "tokenizer.vocab_size");
        let large = ["model.d_model=4096", "model.n_layers=40"];
        assert_eq!(hint(&large), "model.context_length, model.n_layers or model.d_model");
    }

    #[test]
    fn a_samples_weights_fit_where_activations_were_but_not_where_gradients_were() {
        let config = |sample_tokens: usize| {
            let sets = [format!("train.sample_tokens={sample_tokens}")];
            Config::from_toml("data = {path = \"a\"}", "c.toml".as_ref(), &sets).unwrap()
        };
        let held = Held { activations: 3.0, temporaries: 1.0, gradients: 100.0, ..Held::default() };
        let of = |sample_tokens, weights| sample(&config(sample_tokens), weights, held);
        assert_eq!((of(1, 100.0), of(0, 100.0), of(1, 2.0)), (96.0, 0.0, 0.0));
    }
}
