//! What a run will cost, before it is made: parameters, arithmetic, memory, disk and time.
//!
//! All but the time follows from the config by arithmetic. `text` finds out the vocabulary and the length of
//! the text, `memory` follows a run to its fullest moment, `disk` sizes checkpoints, `rhythm` counts
//! evaluations and the like, `time` makes a few real steps, `advice` says what will not do, and `table` puts
//! it all into words.

mod advice;
mod disk;
mod memory;
mod rhythm;
mod table;
mod text;
mod time;

use serde::Serialize;

pub use disk::Disk;
pub use memory::{Memory, Parts};
pub use rhythm::Rhythm;
pub use table::table;
pub use text::{Text, Vocabulary};
pub use time::{Measured, Time};

use crate::config::Config;
use crate::data::DataError;
use crate::device::OpenDevice;
use crate::model::cost::{self, Compute, Operations, Parameters};
use crate::tokenizer::TokenizerError;
use crate::train::precision;

/// The most numbers that a plan is made for; far above what fits any machine, and low enough to count.
const MOST_PARAMETERS: u64 = 1 << 44;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The text is there and cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The tokenizer's file cannot be used.
    #[error("cannot use tokenizer.path: {0}")]
    Tokenizer(#[source] TokenizerError),
    /// The model is larger than anything that could be planned.
    #[error(
        "a model of {0} parameters fits no machine\n  hint: lower model.d_model, model.d_ff, \
         model.n_layers or the vocabulary"
    )]
    TooLarge(u64),
    /// The device failed while steps were measured.
    #[error("the device failed: {0}\n  hint: --no-measure plans without computing anything")]
    Device(String),
}

/// What a run will cost. Sizes are in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// What would compute.
    pub device: String,
    /// What a token may be.
    pub vocabulary: Vocabulary,
    /// The text; none where it is not there.
    pub text: Option<Text>,
    /// What the model learns.
    pub parameters: Parameters,
    /// The arithmetic of one token.
    pub flops_per_token: Compute,
    /// What happens in the run, and how often.
    pub run: Rhythm,
    /// The memory at the fullest moment.
    pub memory: Memory,
    /// The checkpoints.
    pub disk: Disk,
    /// How long it takes; none where nothing was measured.
    pub time: Option<Time>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What will not do, and what to change.
    pub warnings: Vec<String>,
}

/// Plans the run of `config` on `device`; with `measure`, makes a few real steps there on made-up text, unless the
/// run could not be made there. Nothing is left behind. `known` is the vocabulary of a run that starts from the weights
/// of another; any other's follows from the config and its text.
///
/// # Errors
/// If the text is there and cannot be used, the model is beyond counting, or the device fails.
pub fn plan(
    config: &Config,
    known: Option<Vocabulary>,
    device: &OpenDevice,
    measure: bool,
) -> Result<Plan, PlanError> {
    let found = text::find(config, known)?;
    let vocab_size = found.vocabulary.size;
    let parameters = cost::parameters(&config.model, vocab_size);
    if parameters.total > MOST_PARAMETERS {
        return Err(PlanError::TooLarge(parameters.total));
    }
    let operations = Operations::of(device.backend);
    let flops_per_token = cost::compute(&config.model, vocab_size, operations);
    let update_flops = cost::update_flops(&config.model, vocab_size, config.optimizer.kind);
    let run = Rhythm::new(config, found.text.as_ref(), &flops_per_token, update_flops);
    let memory = Memory::new(config, vocab_size, device);
    let disk = Disk::new(config, vocab_size, run.checkpoints);
    let (mut notes, mut warnings) = (found.notes, found.warnings);
    warnings.extend(advice::memory(config, vocab_size, device, &memory));
    let precision = precision::advice(config.train.matmul_precision, device);
    let obstacle = if memory.is_too_much() {
        Some("the run does not fit the memory")
    } else if precision.is_err() {
        Some("the run cannot be made on this device")
    } else {
        None
    };
    warnings.extend(precision.unwrap_or_else(|error| Some(error.to_string())));
    let time = match obstacle {
        _ if !measure => None,
        Some(obstacle) => {
            notes.push(format!("nothing was measured: {obstacle}"));
            None
        }
        None => {
            let measured = time::measure(config, vocab_size, device, &memory)?;
            Some(Time::new(measured, &run))
        }
    };
    Ok(Plan {
        device: device.name.clone(),
        vocabulary: found.vocabulary,
        text: found.text,
        parameters,
        flops_per_token,
        run,
        memory,
        disk,
        time,
        notes,
        warnings,
    })
}
