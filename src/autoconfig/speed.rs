//! How long a training step takes here: a few real ones are made.

use std::time::Duration;

use burn::module::Module;

use super::RecipeError;
use crate::config::Config;
use crate::data::Tokens;
use crate::device::OpenDevice;
use crate::measure::{Times, Trial};
use crate::model::Gpt;
use crate::train::Trainer;

/// At least three steps, and more of them until so much time has gone by.
const TRIAL: Trial =
    Trial { warm_up: 1, rounds: 3..=usize::MAX, enough: Duration::from_millis(700) };

/// What was measured of a config.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Speed {
    /// Median time of a step, milliseconds.
    pub step_ms: f64,
    /// Time of the fastest step, milliseconds: what the machine can do when it does nothing else.
    pub fastest_ms: f64,
    /// Steps that this is the median of.
    pub n_steps: usize,
    /// Numbers that the model learns.
    pub n_parameters: usize,
}

/// Trains a model as `config` says for a second or so, on tokens of the text, and forgets it again.
///
/// # Errors
/// If the device fails.
pub(super) fn measure(
    config: &Config,
    vocab_size: usize,
    tokens: &Tokens,
    device: &OpenDevice,
) -> Result<Speed, RecipeError> {
    let with_gradients = device.device.clone().autodiff();
    let model = Gpt::new(&config.model, vocab_size, config.train.seed, &with_gradients);
    let n_parameters = model.num_params();
    let mut trainer = Trainer::new(model, config, tokens.clone());
    let times = TRIAL.time(|| trainer.step().wait());
    let Times { median_ms: step_ms, fastest_ms, rounds: n_steps, .. } =
        times.map_err(|message| RecipeError::Device { device: device.name.clone(), message })?;
    Ok(Speed { step_ms, fastest_ms, n_steps, n_parameters })
}
