//! The peak memory of a run: in the forward and backward pass, or in the update after it.
//!
//! Checkpoints are saved one tensor at a time and evaluations save nothing for a backward pass, so neither needs more.
//! Token files are read on demand and not counted. Every number counts as an f32; training in bf16 takes a little less.

use serde::{Serialize, Serializer};

use super::tensors::Tensors;
use super::{MemoryBreakdown, Operations, PassMemory, pass_memory};
use crate::config::Config;
use tinderbox_model::Parameter;
use tinderbox_model::device::OpenDevice;
use tinderbox_model::format::size;
use tinderbox_model::measure::Machine;

const MIB: f64 = 1_048_576.0;

/// Bytes of an f32.
const F32: f64 = 4.0;

/// Memory of the process besides tensors, on a CPU: code, threads and free blocks of the allocator, and the share of the
/// tensors that is lost between blocks and in packed copies. Within 15 % of the runs in `docs/plan.md`.
const PROCESS: f64 = 100.0 * MIB;
const OVERHEAD: f64 = 0.3;

/// The size of the byte vocabulary, which is never the reason that a model is too large.
const SMALL_VOCABULARY: usize = 256;

/// The memory of a run. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// The peak memory.
    pub peak: u64,
    /// The operation during which it peaks.
    pub peak_during: &'static str,
    /// The parts that add up to the peak, by name: the weights, the optimizer's state, the fields of
    /// [`MemoryBreakdown`], and the process with its allocator. The last is 0 on a GPU, which has other memory.
    #[serde(serialize_with = "as_map")]
    pub parts: [(&'static str, u64); 8],
    /// Saved by the forward pass for the backward pass.
    pub kept_for_backward: u64,
    /// The machine's memory; `None` if unknown, as on a GPU.
    pub machine: Option<Machine>,
}

impl Memory {
    pub(super) fn new(config: &Config, vocab_size: usize, device: &OpenDevice) -> Self {
        let operations = device.backend.operations();
        let on_cpu = device.backend.is_cpu();
        let table = Tensors::new(&config.model, vocab_size);
        let weights = bytes(&table);
        let saved = |parameter: &Parameter| {
            let tensors = config.optimizer.saved_tensors(std::slice::from_ref(parameter)).into_values();
            tensors.map(|shape| F32 * shape.iter().product::<usize>() as f64).sum()
        };
        let optimizer = table.sum(saved);
        let pass = pass_memory(&config.model, vocab_size, config.train.batch_size, operations);
        let n_threads = if on_cpu { rayon::current_num_threads() } else { 1 };
        let (peak_during, held) = fullest(config, &table, &pass, operations, n_threads);
        let tensors = weights + optimizer + held.total();
        let process = if on_cpu { PROCESS + OVERHEAD * tensors } else { 0.0 };
        Self {
            peak: whole(tensors + process),
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
            machine: on_cpu.then(Machine::here).flatten(),
        }
    }

    /// Whether the peak exceeds the machine's memory.
    pub(super) fn is_too_much(&self) -> bool {
        self.machine.is_some_and(|machine| self.peak > machine.total)
    }

    /// Whether the peak exceeds the machine's free memory.
    pub fn is_too_much_now(&self) -> bool {
        self.machine.is_some_and(|machine| self.peak > machine.available)
    }

    /// A warning with a hint; `None` if the run fits.
    pub(super) fn advice(&self, config: &Config, vocab_size: usize, device: &OpenDevice) -> Option<String> {
        let machine = self.machine?;
        let problem = lack_of_memory("the run", self.peak, machine)?;
        let limit = if self.is_too_much() { machine.total } else { machine.available };
        let hint =
            smaller_batch(config, vocab_size, device, limit).unwrap_or_else(|| smaller_model(config, device, limit));
        Some(format!("{problem}\n  hint: {hint}"))
    }
}

/// The reason why `what` does not fit the machine's memory; `None` if it fits.
pub(crate) fn lack_of_memory(what: &str, needed: u64, machine: Machine) -> Option<String> {
    let [shown, total, free] = [needed, machine.total, machine.available].map(size);
    if needed > machine.total {
        Some(format!("{what} needs {shown}, and this machine has {total}"))
    } else if needed > machine.available {
        Some(format!("{what} needs {shown}, and of this machine's {total} only {free} are free now"))
    } else {
        None
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

/// The operation at the peak of a step, and the memory then without weights and optimizer state. `n_threads` tensors
/// are updated at once.
fn fullest(
    config: &Config,
    weights: &Tensors,
    pass: &PassMemory,
    operations: Operations,
    n_threads: usize,
) -> (&'static str, MemoryBreakdown) {
    let mut held = pass.peak;
    if config.train.grad_accumulation_steps > 1 {
        held.gradients += bytes(weights); // the sum of the earlier micro-batches
    }
    let is_fused = operations == Operations::Fused;
    // The largest tensors may be updated first, before any gradient is freed.
    let temporaries = weights.sum_of_largest(n_threads, |weight| config.optimizer.temporary_bytes(weight, is_fused));
    let update = MemoryBreakdown { gradients: bytes(weights), temporaries, ..MemoryBreakdown::default() };
    if update.total() > held.total() { ("the update of the weights", update) } else { (pass.peak_during, held) }
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
    fn update_holds_temporaries_of_every_thread() {
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
    fn advice_names_the_key_to_lower() {
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
}
