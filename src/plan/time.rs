//! How long a run takes, from a few real steps on made-up text.
//!
//! What is run is what training runs: the same model, trainer, evaluation and writer. A run whose steps take long
//! is measured in parts: one row of a batch, one layer and two, from which the rest follows.

use std::fs::{self, File};
use std::io::{self, Write};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use serde::Serialize;

use super::{Memory, PlanError, Rhythm};
use crate::checkpoint::TrainState;
use crate::config::{Config, GenerateConfig};
use crate::data::Tokens;
use crate::device::OpenDevice;
use crate::generate::Writer;
use crate::model::{Gpt, cost};
use crate::tokenizer::Tokenizer;
use crate::train::{Trainer, evaluate};

/// About how long measuring steps may take.
const BUDGET: Duration = Duration::from_secs(6);

/// Steps that are made before the clock starts: kernels are tuned and memory is touched for the first time. The
/// first step of an optimiser does less than the others.
const WARM_UP_STEPS: usize = 3;

/// The most steps that are measured.
const MOST_STEPS: usize = 50;

/// The most tokens of a sample that are measured.
const MOST_TOKENS: usize = 50;

/// The most bytes that are written to measure the disk.
const MOST_WRITTEN: usize = 64 << 20;

/// What was measured on the device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// One update of the weights, milliseconds.
    pub step_ms: f64,
    /// One batch of an evaluation, milliseconds.
    pub evaluation_batch_ms: f64,
    /// One token of a sample, milliseconds.
    pub sample_token_ms: f64,
    /// One checkpoint, milliseconds.
    pub checkpoint_ms: f64,
    /// What was run to find this out.
    pub how: String,
}

/// How long a run takes, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Time {
    /// What follows from this.
    pub measured: Measured,
    /// Tokens that are learned from in a second of training.
    pub tokens_per_s: f64,
    /// Floating-point operations in a second of training.
    pub flops_per_s: f64,
    /// Training.
    pub steps_s: f64,
    /// Evaluations during the run.
    pub evaluations_s: f64,
    /// The evaluation of the whole validation split; 0 where the text is not there.
    pub last_evaluation_s: f64,
    /// Samples.
    pub samples_s: f64,
    /// Checkpoints.
    pub checkpoints_s: f64,
    /// Everything.
    pub total_s: f64,
}

impl Time {
    #[allow(clippy::cast_precision_loss, reason = "counts are shown in few digits")]
    pub(super) fn new(measured: Measured, run: &Rhythm) -> Self {
        let seconds = |ms: f64, times: u64| ms / 1e3 * times as f64;
        let steps_s = seconds(measured.step_ms, run.steps);
        let evaluations_s = seconds(measured.evaluation_batch_ms, run.evaluation_batches);
        let last_evaluation_s = seconds(
            measured.evaluation_batch_ms,
            run.validation_batches.unwrap_or(0),
        );
        let samples_s = seconds(measured.sample_token_ms, run.sample_tokens);
        let checkpoints_s = seconds(measured.checkpoint_ms, run.checkpoints);
        Self {
            tokens_per_s: run.tokens as f64 / steps_s,
            flops_per_s: run.flops / steps_s,
            steps_s,
            evaluations_s,
            last_evaluation_s,
            samples_s,
            checkpoints_s,
            total_s: steps_s + evaluations_s + last_evaluation_s + samples_s + checkpoints_s,
            measured,
        }
    }
}

/// Measures as much of the run as there is time for.
pub(super) fn measure(
    config: &Config,
    vocab_size: usize,
    device: &OpenDevice,
    memory: &Memory,
) -> Result<Measured, PlanError> {
    let bench = Bench {
        vocab_size,
        device: device.device.clone(),
    };
    let train = &config.train;
    let n_rows = train.batch_size * train.grad_accumulation_steps;
    // A GPU tunes its kernels anew for every shape: there, a smaller trial takes longer than the real thing.
    let one_row_s = if device.backend.is_cpu() {
        bench.step_of_one_row(config)?
    } else {
        0.0
    };
    let affordable =
        |rows: usize| in_f64(rows + WARM_UP_STEPS * rows) * one_row_s <= BUDGET.as_secs_f64();
    let fits = !memory.is_too_much_now();
    if fits && affordable(n_rows) {
        return bench.run(config, "steps of this run");
    }
    let mut part = config.clone();
    part.train.grad_accumulation_steps = 1;
    if fits && affordable(train.batch_size) {
        let measured = bench.run(&part, "steps of one micro-batch")?;
        return Ok(measured.with_step_times(in_f64(train.grad_accumulation_steps)));
    }
    part.train.batch_size = 1;
    let mut of_layers = |n_layers: usize| {
        part.model.n_layers = n_layers;
        bench.run(&part, "steps of one row through one layer and through two")
    };
    let (one, two) = (of_layers(1)?, of_layers(2)?);
    let whole = one.extended(&two, in_f64(config.model.n_layers - 1));
    Ok(Measured {
        evaluation_batch_ms: whole.evaluation_batch_ms * in_f64(train.batch_size),
        ..whole.with_step_times(in_f64(n_rows))
    })
}

impl Measured {
    fn with_step_times(self, times: f64) -> Self {
        Self {
            step_ms: self.step_ms * times,
            ..self
        }
    }

    /// With `n` times what a second layer takes beside the first.
    fn extended(self, two_layers: &Self, n: f64) -> Self {
        let extend = |one: f64, two: f64| one + n * (two - one).max(0.0);
        Self {
            step_ms: extend(self.step_ms, two_layers.step_ms),
            evaluation_batch_ms: extend(self.evaluation_batch_ms, two_layers.evaluation_batch_ms),
            sample_token_ms: extend(self.sample_token_ms, two_layers.sample_token_ms),
            checkpoint_ms: extend(self.checkpoint_ms, two_layers.checkpoint_ms),
            how: self.how,
        }
    }
}

/// What measurements share.
struct Bench {
    vocab_size: usize,
    device: Device,
}

impl Bench {
    /// Seconds of a training step for each row of a batch, roughly: of one row, through one layer of which as
    /// many more are made as there are.
    fn step_of_one_row(&self, config: &Config) -> Result<f64, PlanError> {
        let mut small = config.clone();
        small.train.batch_size = 1;
        small.train.grad_accumulation_steps = 1;
        small.model.n_layers = 1;
        let mut trainer = self.trainer(&small);
        step(&mut trainer)?;
        let began = Instant::now();
        step(&mut trainer)?;
        let speed =
            cost::compute(&small.model, self.vocab_size).training / began.elapsed().as_secs_f64();
        Ok(cost::compute(&config.model, self.vocab_size).training / speed)
    }

    /// Trains, evaluates, writes and saves a little, as `config` says.
    fn run(&self, config: &Config, how: &str) -> Result<Measured, PlanError> {
        let mut trainer = self.trainer(config);
        for _ in 0..WARM_UP_STEPS {
            step(&mut trainer)?;
        }
        let (mut times_ms, began) = (Vec::new(), Instant::now());
        while times_ms.is_empty() || times_ms.len() < MOST_STEPS && began.elapsed() < BUDGET / 2 {
            times_ms.push(timed_ms(|| step(&mut trainer))?);
        }
        let n_steps = times_ms.len();
        let model = trainer.evaluated();
        let evaluation_batch_ms = self.evaluation_batch_ms(&model, config)?;
        let sample_token_ms = self.sample_token_ms(&model, config)?;
        drop(model);
        Ok(Measured {
            step_ms: median(times_ms),
            evaluation_batch_ms,
            sample_token_ms,
            checkpoint_ms: checkpoint_ms(&trainer),
            how: format!("{n_steps} {how}, after {WARM_UP_STEPS} to warm up"),
        })
    }

    fn trainer(&self, config: &Config) -> Trainer {
        let device = self.device.clone().autodiff();
        let model = Gpt::new(&config.model, self.vocab_size, config.train.seed, &device);
        Trainer::new(model, config, self.text(config, 1))
    }

    /// Made-up text, of so many batches' length.
    fn text(&self, config: &Config, n_batches: usize) -> Tokens {
        let n = n_batches * config.train.batch_size * config.model.context_length + 1;
        let vocab_size = u64::try_from(self.vocab_size).unwrap_or(u64::MAX);
        let ids: Vec<u32> = (0..n as u64)
            .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32)
            .map(|noise| u32::try_from(noise % vocab_size).unwrap_or(0))
            .collect();
        Tokens::from_ids(&ids, n as u64)
    }

    fn evaluation_batch_ms(&self, model: &Gpt, config: &Config) -> Result<f64, PlanError> {
        const BATCHES: usize = 4;
        let batch_size = config.train.batch_size;
        let text = self.text(config, BATCHES).into();
        let evaluate = |n: usize| {
            evaluate::estimate(model, &text, batch_size, n)
                .map(|_| ())
                .map_err(|error| PlanError::Device(error.to_string()))
        };
        let first_ms = timed_ms(|| evaluate(1))?;
        if first_ms > BUDGET.as_secs_f64() * 1e3 / 10.0 {
            return Ok(first_ms);
        }
        Ok(timed_ms(|| evaluate(BATCHES))? / in_f64(BATCHES))
    }

    fn sample_token_ms(&self, model: &Gpt, config: &Config) -> Result<f64, PlanError> {
        let n = config.train.sample_tokens.min(MOST_TOKENS);
        if n == 0 {
            return Ok(0.0);
        }
        // Any text will do: one character for each token.
        let alphabet = ('\u{20}'..=char::MAX).take(self.vocab_size);
        let failed = |error: &dyn std::fmt::Display| PlanError::Device(error.to_string());
        let tokenizer = Tokenizer::char_from_alphabet(alphabet).map_err(|error| failed(&error))?;
        let settings = GenerateConfig {
            max_new_tokens: n + 1,
            stop: Vec::new(),
            ..config.generate.clone()
        };
        let mut writer =
            Writer::new(model, &tokenizer, &settings, " ", 0).map_err(|error| failed(&error))?;
        writer.next().transpose().map_err(|error| failed(&error))?; // to warm up
        let ms = timed_ms(|| {
            writer.try_for_each(|piece| piece.map(|_| ()).map_err(|error| failed(&error)))
        })?;
        Ok(ms / in_f64(n))
    }
}

/// One step, waited for.
fn step(trainer: &mut Trainer) -> Result<(), PlanError> {
    let loss = trainer.step().loss.try_into_vec_as::<f32>();
    loss.map(|_| ())
        .map_err(|error| PlanError::Device(error.to_string()))
}

/// Copying the state to the host, and writing as much to the disk of the working directory. Where nothing can
/// be written, only the copying counts.
fn checkpoint_ms(trainer: &Trainer) -> f64 {
    let began = Instant::now();
    let saved = trainer.saved(TrainState::default());
    let tensors = saved.model.values().chain(saved.optimizer.values());
    let bytes: Vec<u8> = tensors
        .flat_map(|tensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()))
        .collect();
    let copying_ms = ms_since(began);
    let written = &bytes[..bytes.len().min(MOST_WRITTEN)];
    let writing_ms = timed_ms(|| write_and_forget(written)).unwrap_or(0.0);
    copying_ms + writing_ms * in_f64(bytes.len()) / in_f64(written.len().max(1))
}

/// Writes a file that is gone as soon as it is closed, or the process ends.
fn write_and_forget(bytes: &[u8]) -> io::Result<()> {
    let path = format!(".tinderbox-plan-{}", std::process::id());
    let mut file = File::create_new(&path)?;
    let nameless = cfg!(unix) && fs::remove_file(&path).is_ok();
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    drop(file);
    if !nameless {
        fs::remove_file(&path).ok(); // it is gone, or another error was met before
    }
    written
}

fn timed_ms<E>(f: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let began = Instant::now();
    f()?;
    Ok(ms_since(began))
}

fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

fn median(mut times_ms: Vec<f64>) -> f64 {
    times_ms.sort_unstable_by(f64::total_cmp);
    times_ms[times_ms.len() / 2]
}

#[allow(clippy::cast_precision_loss, reason = "counts are shown in few digits")]
fn in_f64(n: usize) -> f64 {
    n as f64
}
