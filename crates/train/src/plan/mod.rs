//! The cost of a run before it starts: parameters, FLOPs, memory, disk and time.
//!
//! Everything but the time follows from the config; [`Time`] is extrapolated from a few real steps on synthetic text.

mod compute;
mod disk;
mod faster;
mod finetune;
mod fits;
mod memory;
mod parameters;
mod pass;
mod ranks;
mod run_counts;
mod tensors;
mod text;
mod time;

use serde::Serialize;

pub use compute::{Compute, compute};
pub use disk::Disk;
pub use faster::{StepTimes, step_times};
pub use finetune::{FinetuneCost, FinetunePlan, plan_finetune};
pub use fits::{Writing, check_training};
pub use memory::Memory;
pub(crate) use memory::lack_of_memory;
pub use parameters::{BlockParameters, Parameters, parameters};
pub use pass::{MemoryBreakdown, PassMemory, pass_memory};
pub use ranks::{Distributed, Exchanges};
pub use run_counts::RunCounts;
pub use text::Vocabulary;
pub use time::{Measured, Time};
pub use tinderbox_kernels::Operations;

use crate::config::{Config, MatmulPrecision, ModelConfig};
use crate::data::{DataError, Estimate};
use crate::train::{TrainError, precision};
use tensors::Tensors;
use tinderbox_model::device::OpenDevice;
use tinderbox_model::tokenizer::TokenizerError;

/// The largest model that is planned: far too large for any machine, and small enough to count.
const MAX_PARAMETERS: u64 = 1 << 44;

/// The reason why a run cannot be planned.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum PlanError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("cannot use tokenizer.path: {0}")]
    Tokenizer(#[source] TokenizerError),
    #[error(
        "a model of {0} parameters fits no machine\n  hint: lower model.d_model, model.d_ff, \
         model.n_layers or the vocabulary"
    )]
    TooLarge(u64),
    #[error(transparent)]
    Start(#[from] Box<TrainError>),
    /// There is too little memory: how much is needed, how much there is, and what helps.
    #[error("{0}; --force tries it all the same")]
    DoesNotFit(String),
    #[error("the device failed: {0}\n  hint: --no-measure plans without computing anything")]
    Device(String),
}

/// The cost of a run. Sizes are in bytes.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct Plan {
    pub device: String,
    /// The precision of the run's matrix products.
    #[serde(skip)]
    pub matmul_precision: MatmulPrecision,
    pub vocabulary: Vocabulary,
    /// The text; `None` if it was not found.
    pub text: Option<Estimate>,
    pub parameters: Parameters,
    /// Whether other programs can read the model; `None` until the caller has asked those who know them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portable: Option<Portable>,
    /// The FLOPs of one token.
    pub flops_per_token: Compute,
    pub run: RunCounts,
    pub memory: Memory,
    pub slot: SlotMemory,
    pub disk: Disk,
    /// The duration of the run; `None` if nothing was measured.
    pub time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distributed: Option<Distributed>,
    pub notes: Vec<String>,
    /// The problems found, each with a hint.
    pub warnings: Vec<String>,
}

/// The memory of the keys and values of one sequence, of which the server has several at once. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct SlotMemory {
    pub per_token: u64,
    pub per_context: u64,
}

impl SlotMemory {
    fn new(model: &ModelConfig) -> Self {
        Self { per_token: model.cache_bytes(1), per_context: model.cache_bytes(u64::MAX) }
    }
}

/// Whether other programs can read the model, as the crate that knows them says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Portable {
    /// The model family, such as `qwen3`; `None` if the model belongs to none.
    pub family: Option<&'static str>,
    /// The keys that the closest family does not support, each with its value and the reason; empty if there is a family.
    #[serde(rename = "obstacles")]
    pub unsupported_keys: Vec<String>,
}

/// Plans the run of `config` on `device`.
///
/// With `measure`, makes a few real steps on synthetic text, unless the run cannot be made there. Leaves nothing
/// behind. `known` is the vocabulary of a run that starts from the weights of another; any other vocabulary follows
/// from the config and its text.
pub fn plan(config: &Config, known: Option<Vocabulary>, device: &OpenDevice, measure: bool) -> Result<Plan, PlanError> {
    let (mut notes, mut warnings) = (Vec::new(), Vec::new());
    let (vocabulary, text) = text::find(config, known, &mut notes, &mut warnings)?;
    let vocab_size = vocabulary.size;
    let parameters = parameters(&config.model, vocab_size);
    if parameters.total > MAX_PARAMETERS {
        return Err(PlanError::TooLarge(parameters.total));
    }
    let flops_per_token = compute(&config.model, vocab_size, device.backend.operations());
    let tensors = Tensors::new(&config.model, vocab_size);
    let update_flops = tensors.sum(|parameter| config.optimizer.update_flops(std::slice::from_ref(parameter)));
    let run = RunCounts::new(config, text.as_ref(), &flops_per_token, update_flops);
    let memory = Memory::new(config, vocab_size, device);
    let disk = Disk::new(config, vocab_size, run.checkpoints);
    warnings.extend(memory.advice(config, vocab_size, device));
    let precision = config.train.matmul_precision.on(&device.device);
    let unusable = precision::check(config.train.matmul_precision, device).err();
    let obstacle = if memory.is_too_much() {
        Some("the run does not fit the memory")
    } else if unusable.is_some() {
        Some("the run cannot be made on this device")
    } else {
        None
    };
    warnings.extend(unusable.map(|error| error.to_string()).or_else(|| precision::warning(precision)));
    let time = match obstacle {
        _ if !measure => None,
        Some(obstacle) => {
            notes.push(format!("nothing was measured: {obstacle}"));
            None
        }
        None => Some(Time::new(time::measure(config, vocab_size, device, &memory)?, &run)),
    };
    Ok(Plan {
        device: device.name.clone(),
        matmul_precision: precision,
        vocabulary,
        text,
        parameters,
        portable: None,
        flops_per_token,
        run,
        memory,
        slot: SlotMemory::new(&config.model),
        disk,
        time,
        distributed: None,
        notes,
        warnings,
    })
}
