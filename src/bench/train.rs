//! Measures how long training steps take.

use std::time::Duration;

use anyhow::bail;
use burn::module::Module;
use serde::Serialize;

use super::device_failed;
use crate::config::{Config, MatmulPrecision};
use crate::data::{Corpus, OpenOptions, Split, Tokens};
use crate::device::OpenDevice;
use crate::format::size;
use crate::measure::{Times, Trial, peak_rss_mib};
use crate::model::Gpt;
use crate::plan;
use crate::train::{Trainer, precision};

/// The training text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSource {
    /// Synthetic tokens, from a vocabulary as large as that of the config's text.
    MadeUp,
    /// The config's text.
    Own,
}

/// The numbers of timed steps and rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Repetitions {
    /// The steps before timing starts.
    pub warm_up_steps: usize,
    pub rounds: usize,
    /// The steps per round. Their median counts.
    pub steps: usize,
}

/// The training speed of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainSpeed {
    pub device: String,
    pub matmul_precision: MatmulPrecision,
    pub text: TokenSource,
    pub vocab_size: usize,
    pub parameters: usize,
    pub tokens_per_step: usize,
    pub measured: Repetitions,
    /// The median step time of each round, in milliseconds.
    pub rounds_ms: Vec<f64>,
    #[serde(flatten)]
    pub step: Times,
    pub tokens_per_s: f64,
    /// FLOPs of matrix products per second.
    pub flops_per_s: f64,
    /// The peak memory of the process, in MiB; `None` if the system does not report it.
    pub peak_rss_mib: Option<f64>,
}

/// Times training steps of `config`. The memory is that of this process, which must have done nothing else.
///
/// # Errors
/// If the device does not support the config's precision, the text cannot be used, the memory is too small, or the
/// device fails.
pub fn measure(
    config: &Config,
    text: TokenSource,
    device: &OpenDevice,
    measured: Repetitions,
) -> anyhow::Result<TrainSpeed> {
    if config.finetune.base.is_some() {
        bail!(
            "bench train takes a config with a text, and a fine-tuning has records\n  hint: `tinderbox plan` measures its steps"
        );
    }
    let matmul_precision = precision::check(config.train.matmul_precision, device)?;
    let (vocab_size, tokens) = open(config, text, device)?;
    let model = Gpt::new(&config.model, vocab_size, config.train.seed, &device.device.clone().autodiff());
    let parameters = model.num_params();
    let whole = Config { schedule: config.schedule.without_ramp(), ..config.clone() };
    let mut trainer = Trainer::new(model, &whole, tokens);
    let mut time = |warm_up, steps: usize| {
        let trial = Trial { warm_up, rounds: steps..=steps, enough: Duration::ZERO };
        trial.time(|| trainer.step().wait()).map_err(device_failed)
    };
    time(measured.warm_up_steps, 0)?;
    let rounds_ms =
        (0..measured.rounds).map(|_| Ok(time(0, measured.steps)?.median_ms)).collect::<anyhow::Result<Vec<f64>>>()?;
    let step = Times::from_ms(&rounds_ms);
    let train = &config.train;
    let tokens_per_step = train.batch_size * train.grad_accumulation_steps * config.model.context_length;
    let tokens_per_s = step.per_s(tokens_per_step as f64);
    let flops = plan::compute(&config.model, vocab_size, device.backend.operations()).training;
    Ok(TrainSpeed {
        device: device.name.clone(),
        matmul_precision,
        text,
        vocab_size,
        parameters,
        tokens_per_step,
        measured,
        rounds_ms,
        step,
        tokens_per_s,
        flops_per_s: tokens_per_s * flops,
        peak_rss_mib: peak_rss_mib(),
    })
}

/// The vocabulary size and the text. Rejects a config that does not fit into free memory.
fn open(config: &Config, text: TokenSource, device: &OpenDevice) -> anyhow::Result<(usize, Split)> {
    let plan = plan::plan(config, None, device, false)?;
    if let Some(machine) = plan.memory.machine.filter(|_| plan.memory.is_too_much_now()) {
        bail!(
            "training needs {}, and this machine has {} free now\n  hint: end other programs, or make it smaller, \
             such as by --set train.batch_size=1",
            size(plan.memory.peak),
            size(machine.available)
        );
    }
    if text == TokenSource::Own {
        let corpus = Corpus::open(config, OpenOptions::default())?;
        return Ok((corpus.tokenizer.vocab_size(), corpus.train));
    }
    // One batch long, so that its rows differ.
    let n = config.train.batch_size * config.model.context_length + 1;
    Ok((plan.vocabulary.size, Tokens::made_up(n, plan.vocabulary.size).into()))
}
