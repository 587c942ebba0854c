//! How long training steps take.

use std::time::Duration;

use burn::module::Module;
use serde::Serialize;

use super::BenchError;
use crate::config::{Config, MatmulPrecision};
use crate::data::{Corpus, OpenOptions, Split, Tokens};
use crate::device::OpenDevice;
use crate::measure::{Times, Trial, peak_rss_mib};
use crate::model::Gpt;
use crate::model::cost::{self, Operations};
use crate::plan;
use crate::train::{Trainer, precision};

/// What is trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Text {
    /// Tokens that were made up, of the vocabulary that the config's text has.
    MadeUp,
    /// The config's own text.
    Own,
}

/// How often steps are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rounds {
    /// Steps before the clock starts.
    pub warm_up_steps: usize,
    /// How often a median is taken.
    pub rounds: usize,
    /// The steps of which each is the median.
    pub steps: usize,
}

/// How fast a model learns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// What computed.
    pub device: String,
    /// The precision of the products, as the config has it.
    pub matmul_precision: MatmulPrecision,
    /// What was trained on.
    pub text: Text,
    /// Different tokens.
    pub vocab_size: usize,
    /// Numbers that the model learns.
    pub parameters: usize,
    /// Tokens that a step learns from.
    pub tokens_per_step: usize,
    /// How often steps were made.
    pub measured: Rounds,
    /// The median time of a step in each round, milliseconds.
    pub rounds_ms: Vec<f64>,
    /// The same together.
    #[serde(flatten)]
    pub step: Times,
    /// Tokens that are learned from in a second.
    pub tokens_per_s: f64,
    /// Floating-point operations of matrix products in a second.
    pub flops_per_s: f64,
    /// The most memory that the process held, MiB; none where the system does not tell.
    pub peak_rss_mib: Option<f64>,
}

/// Trains a model as `config` says for a while, and forgets it again.
///
/// The memory is that of this process: to mean something, nothing else may have happened in it.
///
/// # Errors
/// If the device has not the config's precision, the text cannot be used, the memory will not do, or the device fails.
pub fn measure(
    config: &Config,
    text: Text,
    device: &OpenDevice,
    measured: Rounds,
) -> Result<Speed, BenchError> {
    precision::check(config.train.matmul_precision, device)?;
    let (vocab_size, tokens) = open(config, text, device)?;
    let with_gradients = device.device.clone().autodiff();
    let seed = config.train.seed;
    let model = Gpt::new(&config.model, vocab_size, seed, &with_gradients);
    let parameters = model.num_params();
    let mut trainer = Trainer::new(model, config, tokens);
    let mut time = |warm_up, steps: usize| {
        let trial = Trial { warm_up, rounds: steps..=steps, enough: Duration::ZERO };
        let times = trial.time(|| trainer.step().wait());
        times.map_err(BenchError::Device)
    };
    time(measured.warm_up_steps, 0)?;
    let rounds_ms = (0..measured.rounds)
        .map(|_| Ok(time(0, measured.steps)?.median_ms))
        .collect::<Result<Vec<f64>, BenchError>>()?;
    let step = Times::of(&rounds_ms);
    let train = &config.train;
    let tokens_per_step =
        train.batch_size * train.grad_accumulation_steps * config.model.context_length;
    let tokens_per_s = step.per_s(tokens_per_step as f64);
    let operations = Operations::of(device.backend);
    Ok(Speed {
        device: device.name.clone(),
        matmul_precision: train.matmul_precision,
        text,
        vocab_size,
        parameters,
        tokens_per_step,
        measured,
        rounds_ms,
        step,
        tokens_per_s,
        flops_per_s: tokens_per_s * cost::compute(&config.model, vocab_size, operations).training,
        peak_rss_mib: peak_rss_mib(),
    })
}

/// The size of the vocabulary, and the text.
fn open(config: &Config, text: Text, device: &OpenDevice) -> Result<(usize, Split), BenchError> {
    let plan = plan::plan(config, None, device, false)?;
    if let Some(machine) = plan.memory.machine.filter(|_| plan.memory.is_too_much_now()) {
        return Err(BenchError::Memory { needs: plan.memory.peak, available: machine.available });
    }
    let context_length = config.model.context_length;
    if text == Text::Own {
        let corpus =
            Corpus::open(&config.data, &config.tokenizer, context_length, OpenOptions::default())?;
        return Ok((corpus.tokenizer.vocab_size(), corpus.train));
    }
    let vocab_size = plan.vocabulary.size;
    // As long as a batch, so that its rows differ.
    let n = config.train.batch_size * context_length + 1;
    Ok((vocab_size, Tokens::made_up(n, vocab_size).into()))
}
