//! The duration of a run, extrapolated from a few real steps on synthetic text.
//!
//! Model, trainer, evaluation and generation are the real ones. A run with long steps is measured in parts: the
//! difference between one micro-batch and two, or between one layer and two, is the time of each further one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Memory, PlanError, RunCounts, compute};
use crate::config::{Config, GenerateConfig, ModelConfig};
use crate::data::{Split, Tokens};
use crate::run::TrainState;
use crate::train::{Trainer, evaluate};
use tinderbox_model::device::OpenDevice;
use tinderbox_model::generate::Generator;
use tinderbox_model::measure::{Trial, ms_since};
use tinderbox_model::tokenizer::Tokenizer;
use tinderbox_model::{Dtype, Gpt, LazyTensor};

/// The approximate time for measuring steps.
const BUDGET: Duration = Duration::from_secs(6);

/// The measured steps. An optimizer's first step does less than the others.
const TRIAL: Trial = Trial { warm_up: 3, rounds: 1..=50, enough: BUDGET.checked_div(2).expect("2 is not 0") };

/// The longest context of shortened measurements.
const SHORT_CONTEXT: usize = 1024;

/// The time above which a measurement by rows and layers uses a shortened context.
const PATIENCE: Duration = Duration::from_mins(1);

/// The most sample tokens that are measured.
const MOST_TOKENS: usize = 50;

/// The most bytes written to measure the disk.
const MOST_WRITTEN: usize = 64 << 20;

/// The measured times.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct Measured {
    pub step_ms: f64,
    pub evaluation_batch_ms: f64,
    pub sample_token_ms: f64,
    pub checkpoint_ms: f64,
    /// The method of measurement.
    pub how: String,
}

/// The duration of a run and of its parts, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct Time {
    /// The measurement that all times are based on.
    pub measured: Measured,
    /// Tokens per second of training.
    pub tokens_per_s: f64,
    /// FLOPs per second of training.
    pub flops_per_s: f64,
    pub steps_s: f64,
    pub evaluations_s: f64,
    /// The evaluation of the whole validation split; 0 without the text.
    pub last_evaluation_s: f64,
    pub samples_s: f64,
    pub checkpoints_s: f64,
    pub total_s: f64,
}

impl Time {
    pub(super) fn new(measured: Measured, run: &RunCounts) -> Self {
        let seconds = |ms: f64, times: u64| ms / 1e3 * times as f64;
        // Smaller batches take proportionally less time.
        let whole_steps = run.tokens as f64 / run.tokens_per_step as f64;
        let steps_s = measured.step_ms / 1e3 * whole_steps;
        let evaluations_s = seconds(measured.evaluation_batch_ms, run.evaluation_batches);
        let last_evaluation_s = seconds(measured.evaluation_batch_ms, run.validation_batches.unwrap_or(0));
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

/// The milliseconds of a training step. On a CPU, where it may take long, those of one row through one layer are scaled.
pub(super) fn step_ms(config: &Config, vocab_size: usize, device: &OpenDevice) -> Result<f64, PlanError> {
    let bench = Bench { vocab_size, device };
    if device.backend.is_cpu() {
        let n_rows = config.train.batch_size * config.train.grad_accumulation_steps;
        let step_s = n_rows as f64 * bench.step_of_one_row(config)?;
        if (TRIAL.warm_up + 1) as f64 * step_s > BUDGET.as_secs_f64() {
            return Ok(1e3 * step_s);
        }
    }
    let mut trainer = bench.trainer(config);
    Ok(TRIAL.time(|| trainer.step().wait()).map_err(PlanError::Device)?.median_ms)
}

/// Measures as much of the run as time allows.
pub(super) fn measure(
    config: &Config,
    vocab_size: usize,
    device: &OpenDevice,
    memory: &Memory,
) -> Result<Measured, PlanError> {
    let bench = Bench { vocab_size, device };
    let train = &config.train;
    let n_rows = train.batch_size * train.grad_accumulation_steps;
    // A GPU tunes its kernels for every shape: a smaller trial takes longer there than the full run.
    let one_row_s = if device.backend.is_cpu() { bench.step_of_one_row(config)? } else { 0.0 };
    let n_steps = TRIAL.warm_up + 1;
    let affordable = |rows: usize| (n_steps * rows) as f64 * one_row_s <= BUDGET.as_secs_f64();
    let fits = !memory.is_too_much_now();
    if fits && affordable(n_rows) {
        return bench.run(config, 1, "steps of this run");
    }
    let mut part = config.clone();
    part.train.grad_accumulation_steps = 1;
    // Three micro-batches: one step with one, and one with two.
    if fits && affordable(3 * train.batch_size) {
        let how = "steps of one micro-batch and of two";
        return bench.run(&part, train.grad_accumulation_steps, how);
    }
    part.train.batch_size = 1;
    // One row and two, through one layer and two: (1 + 2) (1 + 2) rows of a layer.
    let row_of_a_layer_s = one_row_s / config.model.n_layers as f64;
    let is_long = (9 * n_steps) as f64 * row_of_a_layer_s > PATIENCE.as_secs_f64();
    let mut how = "steps of one row and of two, through one layer and through two";
    if is_long {
        part.model.context_length = part.model.context_length.min(SHORT_CONTEXT);
        how = "steps of one row and of two, through one layer and through two, of a shorter context";
    }
    let longer = bench.row_flops(&config.model) / bench.row_flops(&part.model);
    let mut of_layers = |n_layers: usize| {
        part.model.n_layers = n_layers;
        bench.run(&part, n_rows, how)
    };
    let (one, two) = (of_layers(1)?, of_layers(2)?);
    let whole = one.of_layers(&two, config.model.n_layers);
    Ok(Measured {
        step_ms: whole.step_ms * longer,
        evaluation_batch_ms: whole.evaluation_batch_ms * longer * train.batch_size as f64,
        ..whole
    })
}

impl Measured {
    /// Extrapolates to `n` layers from measurements with one layer, `self`, and with two.
    fn of_layers(self, two_layers: &Self, n: usize) -> Self {
        let ms = |part: fn(&Self) -> f64| extended(part(&self), part(two_layers), n);
        Self {
            step_ms: ms(|measured| measured.step_ms),
            evaluation_batch_ms: ms(|measured| measured.evaluation_batch_ms),
            sample_token_ms: ms(|measured| measured.sample_token_ms),
            checkpoint_ms: ms(|measured| measured.checkpoint_ms),
            how: self.how,
        }
    }
}

/// The time of `n` units if one takes `one` and two take `two`: shared time counts once.
fn extended(one: f64, two: f64, n: usize) -> f64 {
    one + (n as f64 - 1.0) * (two - one).max(0.0)
}

/// The parameters that all measurements have in common.
struct Bench<'a> {
    vocab_size: usize,
    device: &'a OpenDevice,
}

impl Bench<'_> {
    /// Approximate seconds of a training step per batch row: one row through one layer, scaled by FLOPs.
    fn step_of_one_row(&self, config: &Config) -> Result<f64, PlanError> {
        let mut small = config.clone();
        (small.train.batch_size, small.train.grad_accumulation_steps) = (1, 1);
        small.model.n_layers = 1;
        small.model.context_length = small.model.context_length.min(SHORT_CONTEXT);
        let once = Trial { warm_up: 1, rounds: 1..=1, enough: Duration::ZERO };
        let mut trainer = self.trainer(&small);
        let times = once.time(|| trainer.step().wait());
        let step_s = times.map_err(PlanError::Device)?.median_ms / 1e3;
        let speed = self.row_flops(&small.model) / step_s;
        Ok(self.row_flops(&config.model) / speed)
    }

    fn row_flops(&self, config: &ModelConfig) -> f64 {
        let of_a_token = compute(config, self.vocab_size, self.device.backend.operations());
        of_a_token.training * config.context_length as f64
    }

    /// Trains, evaluates, generates and saves a little, as `config` says; the time of a step is that of one with
    /// `times` as many micro-batches.
    fn run(&self, config: &Config, times: usize, how: &str) -> Result<Measured, PlanError> {
        let measure = |trainer: &mut Trainer| TRIAL.time(|| trainer.step().wait()).map_err(PlanError::Device);
        let mut of_two_ms = None;
        if times > 1 {
            // The update comes once per step, and may take longer than a pass.
            let mut twice = config.clone();
            twice.train.grad_accumulation_steps *= 2;
            of_two_ms = Some(measure(&mut self.trainer(&twice))?.median_ms);
        }
        let mut trainer = self.trainer(config);
        let steps = measure(&mut trainer)?;
        let step_ms = of_two_ms.map_or(steps.median_ms, |of_two_ms| extended(steps.median_ms, of_two_ms, times));
        let model = trainer.evaluated();
        let evaluation_batch_ms = self.evaluation_batch_ms(&model, config)?;
        let sample_token_ms = self.sample_token_ms(&model, config)?;
        drop(model);
        Ok(Measured {
            step_ms,
            evaluation_batch_ms,
            sample_token_ms,
            checkpoint_ms: checkpoint_ms(&trainer),
            how: format!("{} {how}, after {} to warm up", steps.rounds, TRIAL.warm_up),
        })
    }

    fn trainer(&self, config: &Config) -> Trainer {
        let device = self.device.device.clone().autodiff();
        let model = Gpt::new(&config.model, self.vocab_size, config.train.seed, &device);
        let config = Config { schedule: config.schedule.without_ramp(), ..config.clone() };
        Trainer::new(model, &config, self.text(&config, 1))
    }

    /// Synthetic text of `n_batches` batches.
    fn text(&self, config: &Config, n_batches: usize) -> Split {
        let n = n_batches * config.train.batch_size * config.model.context_length + 1;
        Tokens::made_up(n, self.vocab_size).into()
    }

    fn evaluation_batch_ms(&self, model: &Gpt, config: &Config) -> Result<f64, PlanError> {
        const BATCHES: usize = 4;
        let text = self.text(config, BATCHES);
        let precision = config.train.matmul_precision.on(&model.device());
        let evaluate = |n: usize| {
            evaluate::estimate(model, &text, config.train.batch_size, n, precision).map(|_| ()).map_err(failed)
        };
        let first_ms = timed_ms(|| evaluate(1))?;
        if first_ms > BUDGET.as_secs_f64() * 1e3 / 10.0 {
            return Ok(first_ms);
        }
        Ok(timed_ms(|| evaluate(BATCHES))? / BATCHES as f64)
    }

    fn sample_token_ms(&self, model: &Gpt, config: &Config) -> Result<f64, PlanError> {
        let n = config.train.sample_tokens.min(MOST_TOKENS);
        if n == 0 {
            return Ok(0.0);
        }
        // Any text will do, so each token is one character.
        let alphabet = ('\u{20}'..=char::MAX).take(self.vocab_size);
        let tokenizer = Tokenizer::char_from_alphabet(alphabet).map_err(failed)?;
        let settings = GenerateConfig {
            max_new_tokens: n + 1,
            stop: Vec::new(),
            speculate: 0, // random weights repeat themselves more than trained ones
            ..config.generate.clone()
        };
        let mut generator = Generator::new(model, &tokenizer, &settings, " ", 0).map_err(failed)?;
        generator.next().transpose().map_err(failed)?; // warms up
        let ms = timed_ms(|| generator.try_for_each(|piece| piece.map(|_| ()).map_err(failed)))?;
        Ok(ms / n as f64)
    }
}

fn failed(error: impl std::fmt::Display) -> PlanError {
    PlanError::Device(error.to_string())
}

/// Milliseconds to write a checkpoint to the disk of the working directory, extrapolated from [`MOST_WRITTEN`] bytes; 0
/// if nothing can be written.
fn checkpoint_ms(trainer: &Trainer) -> f64 {
    let saved = trainer.checkpoint(TrainState::default());
    let tensors = saved.model.values().chain(saved.optimizer.values());
    let n_bytes: usize = tensors.clone().map(LazyTensor::n_bytes).sum();
    let writing_ms = timed_ms(|| write_and_forget(tensors)).unwrap_or(0.0);
    writing_ms * n_bytes as f64 / n_bytes.clamp(1, MOST_WRITTEN) as f64
}

/// Writes a file that vanishes once it is closed or the process ends.
fn write_and_forget<'a>(mut tensors: impl Iterator<Item = &'a LazyTensor>) -> io::Result<()> {
    let path = format!(".tinderbox-plan-{}", std::process::id());
    let mut file = File::create_new(&path)?;
    let nameless = cfg!(unix) && fs::remove_file(&path).is_ok();
    let mut start = Start { file: &mut file, left: MOST_WRITTEN };
    let written = tensors.try_for_each(|tensor| match start.left {
        0 => Ok(()),
        _ => tensor.write_to(&mut start, Dtype::F32),
    });
    let written = written.and_then(|()| file.sync_all());
    drop(file);
    if !nameless {
        fs::remove_file(&path).ok();
    }
    written
}

/// Writes the first `left` bytes to a file and discards the rest.
struct Start<'a> {
    file: &'a mut File,
    left: usize,
}

impl Write for Start<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let allowed = &bytes[..bytes.len().min(self.left)];
        self.file.write_all(allowed)?;
        self.left -= allowed.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn timed_ms<E>(f: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let began = Instant::now();
    f()?;
    Ok(ms_since(began))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_share_fixed_cost() {
        let measured = |n_layers: f64| Measured {
            step_ms: 10.0 + 3.0 * n_layers,
            evaluation_batch_ms: 5.0 + n_layers,
            sample_token_ms: 1.0 + n_layers,
            checkpoint_ms: 20.0 + 2.0 * n_layers,
            how: String::new(),
        };
        assert_eq!(measured(1.0).of_layers(&measured(2.0), 12), measured(12.0));
        assert!((extended(105.0, 104.0, 40) - 105.0).abs() < 1e-9, "never below what was measured");
    }
}
