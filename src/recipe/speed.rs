//! How long a training step takes here: a few real ones are made.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::Tensor;

use super::RecipeError;
use crate::config::Config;
use crate::data::Tokens;
use crate::device::OpenDevice;
use crate::model::Gpt;
use crate::train::Trainer;

/// The first step allocates memory, and on a GPU compiles its kernels.
const WARM_UP_STEPS: usize = 1;

/// At least so many steps are timed,
const MIN_STEPS: usize = 3;

/// and more of them until so much time has gone by.
const ENOUGH: Duration = Duration::from_millis(700);

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
    let model = Gpt::new(
        &config.model,
        vocab_size,
        config.train.seed,
        &with_gradients,
    );
    let n_parameters = model.num_params();
    let mut trainer = Trainer::new(model, config, tokens.clone());
    let mut times_ms = Vec::new();
    let mut began = Instant::now();
    for step in 0.. {
        if step == WARM_UP_STEPS {
            began = Instant::now();
        }
        if times_ms.len() >= MIN_STEPS && began.elapsed() >= ENOUGH {
            break;
        }
        let step_began = Instant::now();
        let result = trainer.step();
        let read = Tensor::cat(vec![result.loss, result.gradient_norm], 0);
        read.try_into_vec_as::<f32>() // waits for the device
            .map_err(|error| RecipeError::Device {
                device: device.name.clone(),
                message: error.to_string(),
            })?;
        if step >= WARM_UP_STEPS {
            times_ms.push(step_began.elapsed().as_secs_f64() * 1e3);
        }
    }
    times_ms.sort_unstable_by(f64::total_cmp);
    Ok(Speed {
        step_ms: times_ms[times_ms.len() / 2],
        fastest_ms: times_ms[0],
        n_steps: times_ms.len(),
        n_parameters,
    })
}
