//! Measures how long training steps take.

use std::time::{Duration, Instant};

use anyhow::bail;
use burn::module::Module;
use serde::Serialize;

use super::device_failed;
use crate::config::{Config, MatmulPrecision};
use crate::data::{Corpus, OpenOptions, Split, Tokens};
use crate::device::{self, Launches, OpenDevice};
use crate::format::size;
use crate::measure::{Times, Trial, ms_since, peak_rss_mib};
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
    /// The cargo profile that the program was built with.
    pub profile: &'static str,
    /// Further times of a GPU; `None` on a CPU.
    pub gpu: Option<GpuSpeed>,
}

/// The times of a GPU that depend on the host, which compiles, tunes and launches its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GpuSpeed {
    /// Seconds from the creation of the model to the end of the first step.
    pub first_step_s: f64,
    /// Milliseconds per step if only the last one is waited for.
    pub unwaited_ms: f64,
    /// The kernels that are launched in a step.
    pub kernels_per_step: f64,
    /// The batches of kernels and uploads in a step; `None` where that is not known.
    pub submits_per_step: Option<f64>,
    /// Microseconds that the host takes to prepare a kernel, measured in steps without computing any.
    pub host_us_per_kernel: f64,
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
    let began = Instant::now();
    let model = Gpt::new(&config.model, vocab_size, config.train.seed, &device.device.clone().autodiff());
    let parameters = model.num_params();
    let whole = Config { schedule: config.schedule.without_ramp(), ..config.clone() };
    let mut trainer = Trainer::new(model, &whole, tokens);
    let mut time = |warm_up, steps: usize| {
        let trial = Trial { warm_up, rounds: steps..=steps, enough: Duration::ZERO };
        trial.time(|| trainer.step().wait()).map_err(device_failed)
    };
    let n_first = usize::from(!device.backend.is_cpu());
    time(n_first, 0)?;
    let first_step_s = ms_since(began) / 1e3;
    time(measured.warm_up_steps.saturating_sub(n_first), 0)?;
    let rounds_ms =
        (0..measured.rounds).map(|_| Ok(time(0, measured.steps)?.median_ms)).collect::<anyhow::Result<Vec<f64>>>()?;
    let step = Times::from_ms(&rounds_ms);
    let peak_rss_mib = peak_rss_mib();
    let gpu = measure_gpu(&mut trainer, device, measured.steps, first_step_s)?;
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
        peak_rss_mib,
        profile: env!("TINDERBOX_PROFILE"),
        gpu,
    })
}

/// The further times of a GPU, from `steps` steps each. The model is of no use afterwards.
fn measure_gpu(
    trainer: &mut Trainer,
    device: &OpenDevice,
    steps: usize,
    first_step_s: f64,
) -> anyhow::Result<Option<GpuSpeed>> {
    if device.backend.is_cpu() {
        return Ok(None);
    }
    let mut ms_per_step = || {
        let began = Instant::now();
        for _ in 1..steps {
            trainer.step();
        }
        trainer.step().wait().map_err(device_failed)?;
        anyhow::Ok(ms_since(began) / steps as f64)
    };
    let (unwaited_ms, launches) = device::count_launches(device, &mut ms_per_step);
    let host_ms = device::without_kernels(&mut ms_per_step)?;
    let unwaited_ms = unwaited_ms?;
    let per_step = |n: u64| n as f64 / steps as f64;
    Ok(launches.map(|Launches { kernels, submits }| GpuSpeed {
        first_step_s,
        unwaited_ms,
        kernels_per_step: per_step(kernels),
        submits_per_step: submits.map(per_step),
        host_us_per_kernel: 1e3 * host_ms / per_step(kernels),
    }))
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
