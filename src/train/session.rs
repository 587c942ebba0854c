//! The rhythm of a run: when it logs, evaluates, writes samples and saves.

use std::fs::File;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorReadError};

use super::evaluate::Loss;
use super::logs::{Elapsed, Logs};
use super::observer::{Evaluation, Event, Logged, Observer, Started, Summary};
use super::prepare::{Prepared, has_stopped_early};
use super::step_clock::StepClock;
use super::trainer::{StepResult, Trainer};
use super::{Interrupter, TrainError, evaluate};
use crate::config::{Config, GenerateConfig, OptimizerKind};
use crate::data::{Corpus, Split};
use crate::device::{self, OpenDevice};
use crate::generate::Writer;
use crate::inspect::{self, ScoredHeads};
use crate::measure::peak_rss_mib;
use crate::model::Gpt;
use crate::run::{Best, RunDir, Saved, TrainState};

/// A device that works on its own is waited for after so many steps at the latest: to know in time that a
/// loss is not a number, and seldom enough that it does not run dry.
const MOST_STEPS_AHEAD: usize = 16;

/// A run in progress.
pub(super) struct Session {
    config: Config,
    corpus: Corpus,
    run: RunDir,
    trainer: Trainer,
    state: TrainState,
    logs: Logs,
    clock: StepClock,
    observer: Box<dyn Observer>,
    interrupter: Interrupter,
    device: Device,
    device_name: String,
    began: Instant,
    /// Steps whose results were not read back yet.
    unread: Vec<StepResult>,
    steps_ahead: usize,
    last_loss: Option<f32>,
    last_gradient_norm: f32,
    saved_step: Option<usize>,
    evaluated_step: Option<usize>,
    stopped_early: bool,
    /// Keeps other processes out of the run directory.
    _lock: File,
}

/// Why [`Session::advance`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advanced {
    /// It is time for an evaluation.
    EvaluationDue,
    /// Someone asked to stop; all is saved.
    Interrupted,
}

impl Session {
    pub(super) fn new(
        prepared: Prepared,
        device: &OpenDevice,
        observer: Box<dyn Observer>,
        interrupter: Interrupter,
        began: Instant,
    ) -> Result<Self, TrainError> {
        let Prepared { config, corpus, run, trainer, state, resumed, lock } = prepared;
        let stopped_early = has_stopped_early(&state, &config);
        let logs = Logs::open(&run, state.step, &config.train)?;
        let is_cpu = device::is_cpu(&device.device);
        let mut session = Self {
            steps_ahead: if is_cpu { 1 } else { MOST_STEPS_AHEAD.min(config.train.log_interval) },
            saved_step: resumed.then_some(state.step),
            last_loss: state.loss_window.last().copied(),
            config,
            corpus,
            run,
            trainer,
            state,
            logs,
            clock: StepClock::new(),
            observer,
            interrupter,
            device: device.device.clone(),
            device_name: device.name.clone(),
            began,
            unread: Vec::new(),
            last_gradient_norm: 0.0,
            evaluated_step: None,
            stopped_early,
            _lock: lock,
        };
        session.announce(resumed)?;
        if !resumed && session.state.started_from.is_some() {
            session.evaluate_origin()?;
        }
        if !resumed {
            let model = session.trainer.evaluated();
            session.measure_heads(&model)?;
        }
        Ok(session)
    }

    fn announce(&mut self, resumed: bool) -> Result<(), TrainError> {
        let started = Started {
            run_dir: self.run.root().to_owned(),
            device: self.device_name.clone(),
            matmul_precision: self.config.train.matmul_precision,
            parameters: self.trainer.evaluated().num_params(),
            train_tokens: self.corpus.train.len(),
            val_tokens: self.corpus.val.len(),
            val_bytes: self.corpus.val.bytes(),
            sources: self.corpus.sources.clone(),
            vocab_size: self.corpus.tokenizer.vocab_size(),
            step: self.state.step,
            max_steps: self.config.train.max_steps,
            tokens_per_step: self.tokens_per_step(),
            resumed,
            from: self.state.started_from.clone(),
        };
        self.logs.began(&started)?;
        self.observer.observe(&Event::Started(&started));
        Ok(())
    }

    /// Estimates the losses of weights that another run made, for comparison: they are no work of this
    /// run, whose best can only be one of its own.
    fn evaluate_origin(&mut self) -> Result<(), TrainError> {
        let model = self.trainer.evaluated();
        let n_batches = self.config.train.eval_batches;
        let val_loss = self.estimate(&model, &self.corpus.val, n_batches)?;
        let evaluation = Evaluation {
            step: 0,
            train_loss: self.estimate(&model, &self.corpus.train, n_batches)?,
            val_loss,
            val_bits_per_byte: evaluate::bits_per_byte(val_loss, &self.corpus.val),
            is_best: false,
        };
        self.logs.evaluated(&evaluation, 0)?;
        self.observer.observe(&Event::Evaluated(&evaluation));
        Ok(())
    }

    /// How many evaluations were made, and how many lie before the run's end, at most.
    pub(super) fn evaluations(&self) -> (usize, usize) {
        let left = self.max_steps() - self.state.step;
        match self.config.train.eval_interval {
            0 => (0, 1),
            interval => (self.state.step / interval, left.div_ceil(interval).max(1)),
        }
    }

    /// Updates in all.
    pub(super) fn max_steps(&self) -> usize {
        self.config.train.max_steps
    }

    /// Where it is computed.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether there is nothing more to learn.
    pub(super) fn is_done(&self) -> bool {
        self.state.step >= self.config.train.max_steps || self.stopped_early
    }

    /// Makes steps until an evaluation is due or someone asks to stop, and hands each log interval to
    /// `report`.
    pub(super) fn advance(
        &mut self,
        mut report: impl FnMut(&Logged),
    ) -> Result<Advanced, TrainError> {
        loop {
            if self.interrupter.should_stop() {
                self.read_back()?;
                self.save()?;
                return Ok(Advanced::Interrupted);
            }
            self.step()?;
            let step = self.state.step;
            let is_end = step == self.config.train.max_steps;
            if is_end || step.is_multiple_of(self.config.train.log_interval) {
                report(&self.log()?);
            }
            if is_end || is_multiple(step, self.config.train.eval_interval) {
                self.read_back()?;
                return Ok(Advanced::EvaluationDue);
            }
            if is_multiple(step, self.config.train.checkpoint_interval) {
                self.read_back()?;
                self.save()?;
            }
        }
    }

    fn step(&mut self) -> Result<(), TrainError> {
        self.clock.begin();
        self.unread.push(self.trainer.step());
        self.state.step = self.trainer.steps_done();
        if self.unread.len() >= self.steps_ahead {
            self.read_back()?;
        }
        let event = Event::Stepped { step: self.state.step, loss: self.last_loss };
        self.observer.observe(&event);
        Ok(())
    }

    /// Waits for the device and reads the losses of the steps since the last time.
    fn read_back(&mut self) -> Result<(), TrainError> {
        if self.unread.is_empty() {
            return Ok(());
        }
        let first_step = self.state.step - self.unread.len() + 1;
        let (losses, norms) =
            self.unread.drain(..).map(|result| (result.loss, result.gradient_norm)).unzip();
        let (losses, norms) = (self.read(losses)?, self.read(norms)?);
        self.clock.done();
        for (step, (loss, norm)) in (first_step..).zip(losses.into_iter().zip(norms)) {
            for (what, value) in [("loss", loss), ("gradient's norm", norm)] {
                if !value.is_finite() {
                    return Err(TrainError::NotFinite {
                        step,
                        what,
                        value: f64::from(value),
                        learning_rates: self.learning_rates(),
                        kept: self.kept(),
                    });
                }
            }
            self.state.loss_window.push(loss);
            self.last_loss = Some(loss);
            self.last_gradient_norm = norm;
        }
        Ok(())
    }

    fn read(&self, values: Vec<Tensor<1>>) -> Result<Vec<f32>, TrainError> {
        let values = Tensor::cat(values, 0).try_into_vec_as::<f32>();
        values.map_err(|error| self.device_failed(&error))
    }

    /// What a run that fails now leaves behind.
    fn kept(&self) -> String {
        match self.run.last() {
            Ok(path) => format!("the checkpoint `{}` is from before", path.display()),
            Err(_) => "no checkpoint was saved yet".to_owned(),
        }
    }

    fn log(&mut self) -> Result<Logged, TrainError> {
        self.read_back()?;
        let window = std::mem::take(&mut self.state.loss_window);
        #[allow(clippy::cast_precision_loss, reason = "an interval has far fewer than 2^52 steps")]
        let train_loss =
            window.iter().map(|loss| f64::from(*loss)).sum::<f64>() / window.len() as f64;
        self.state.train_loss = Some(train_loss);
        let median_step_ms = self.clock.interval_median_ms();
        let logged = Logged {
            step: self.state.step,
            train_loss,
            learning_rate: self.trainer.last_learning_rate(),
            gradient_norm: self.last_gradient_norm,
            median_step_ms,
            tokens_per_s: self.tokens_per_s(median_step_ms),
        };
        self.logs.logged(&logged, self.tokens(), self.elapsed())?;
        self.observer.observe(&Event::Logged(&logged));
        Ok(logged)
    }

    /// Estimates the losses on both splits, writes a sample, and saves what is worth it.
    pub(super) fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let model = self.trainer.evaluated();
        let step = self.state.step;
        let train_loss =
            self.estimate(&model, &self.corpus.train, self.config.train.eval_batches)?;
        let val_loss = self.estimate(&model, &self.corpus.val, self.config.train.eval_batches)?;
        self.evaluated_step = Some(step);
        let is_best = self.state.best.is_none_or(|best| val_loss < best.val_loss);
        if is_best {
            self.state.best = Some(Best { step, val_loss });
            self.state.evaluations_without_improvement = 0;
        } else {
            self.state.evaluations_without_improvement += 1;
        }
        let evaluation = Evaluation {
            step,
            train_loss,
            val_loss,
            val_bits_per_byte: evaluate::bits_per_byte(val_loss, &self.corpus.val),
            is_best,
        };
        self.logs.evaluated(&evaluation, self.tokens())?;
        self.observer.observe(&Event::Evaluated(&evaluation));
        self.measure_heads(&model)?;
        self.sample(&model)?;
        drop(model); // the next step changes weights in place, which nobody else may hold
        if has_stopped_early(&self.state, &self.config) && step < self.config.train.max_steps {
            self.stopped_early = true;
            let evaluations = self.state.evaluations_without_improvement;
            self.observer.observe(&Event::StoppedEarly { step, evaluations });
        }
        if is_best || self.is_done() || is_multiple(step, self.config.train.checkpoint_interval) {
            self.save()?;
        }
        Ok(evaluation)
    }

    /// An estimated loss, which is a number or an error.
    fn estimate(&self, model: &Gpt, split: &Split, n_batches: usize) -> Result<f64, TrainError> {
        let batch_size = self.config.train.batch_size;
        let precision = self.config.train.matmul_precision.into();
        let loss = evaluate::estimate(model, split, batch_size, n_batches, precision);
        self.checked(loss)
    }

    /// The mean of a loss that is finite. That of a step belongs to the weights before its update: only an
    /// evaluation can tell what the last update did.
    fn checked(&self, loss: Result<Loss, TensorReadError>) -> Result<f64, TrainError> {
        let loss = loss.map_err(|error| self.device_failed(&error))?.nats_per_token;
        if loss.is_finite() {
            return Ok(loss);
        }
        Err(TrainError::NotFinite {
            step: self.state.step,
            what: "evaluated loss",
            value: loss,
            learning_rates: self.learning_rates(),
            kept: self.kept(),
        })
    }

    fn device_failed(&self, error: &TensorReadError) -> TrainError {
        TrainError::Device { step: self.state.step, message: error.to_string(), kept: self.kept() }
    }

    /// Logs what each head does, where the config asks for it.
    fn measure_heads(&mut self, model: &Gpt) -> Result<(), TrainError> {
        if !self.config.train.head_metrics {
            return Ok(());
        }
        let heads = ScoredHeads::measure(model, &self.corpus.val, inspect::N_WINDOWS);
        let heads = heads.map_err(|source| TrainError::Heads {
            step: self.state.step,
            source: Box::new(source),
            kept: self.kept(),
        })?;
        self.logs.heads(self.state.step, &heads)
    }

    fn sample(&mut self, model: &Gpt) -> Result<(), TrainError> {
        let (n, prompt) = (self.config.train.sample_tokens, &self.config.train.sample_prompt);
        if n == 0 {
            return Ok(());
        }
        let config = GenerateConfig {
            max_new_tokens: n,
            seed: self.config.train.seed,
            ..self.config.generate.clone()
        };
        let mut text = prompt.clone();
        for piece in Writer::new(model, &self.corpus.tokenizer, &config, prompt, 0)? {
            text.push_str(&piece?);
        }
        self.logs.sampled(self.state.step, &text)?;
        self.observer.observe(&Event::Sampled { step: self.state.step, text: &text });
        Ok(())
    }

    /// Saves a checkpoint of this step, unless there is one.
    fn save(&mut self) -> Result<(), TrainError> {
        let step = self.state.step;
        if self.saved_step == Some(step) {
            return Ok(());
        }
        if self.evaluated_step != Some(step) {
            // What is kept must be worth going back to: one batch tells whether its losses are numbers.
            self.estimate(&self.trainer.evaluated(), &self.corpus.val, 1)?;
        }
        self.logs.sync()?; // a checkpoint should not outlive the lines that lead to it
        let saved = self.trainer.saved(self.state.clone());
        let path = self.run.save(&saved, self.config.train.keep_checkpoints)?;
        self.saved_step = Some(step);
        let is_best = self.state.best.is_some_and(|best| best.step == step);
        self.observer.observe(&Event::Saved { path: &path, is_best });
        Ok(())
    }

    /// Evaluates the whole validation split, unless the run was or is interrupted, and says what came of all.
    pub(super) fn finish(&mut self, interrupted: bool) -> Result<Summary, TrainError> {
        let median_step_ms = self.clock.median_ms();
        let mut summary = Summary {
            run_dir: self.run.root().to_owned(),
            device: self.device_name.clone(),
            parameters: self.trainer.evaluated().num_params(),
            steps: self.state.step,
            tokens: self.tokens(),
            wall_s: 0.0,
            train_s: self.clock.total().as_secs_f64(),
            median_step_ms,
            tokens_per_s: self.tokens_per_s(median_step_ms),
            peak_rss_mib: None,
            train_loss: self.state.train_loss,
            val_loss: None,
            best_val_loss: None,
            best_step: self.state.best.map(|best| best.step),
            val_bits_per_byte: None,
            interrupted,
        };
        if !interrupted {
            summary.interrupted = !self.evaluate_fully(&mut summary)?;
        }
        let elapsed = self.elapsed();
        summary.wall_s = elapsed.wall_s;
        summary.peak_rss_mib = peak_rss_mib();
        self.logs.ended(self.state.step, elapsed, summary.peak_rss_mib)?;
        Ok(summary)
    }

    fn elapsed(&self) -> Elapsed {
        Elapsed {
            train_s: self.clock.total().as_secs_f64(),
            wall_s: self.began.elapsed().as_secs_f64(),
        }
    }

    /// Whether it came to its end: nothing is lost without it, and `--resume` makes up for it.
    fn evaluate_fully(&mut self, summary: &mut Summary) -> Result<bool, TrainError> {
        self.observer.observe(&Event::FinalEvaluation);
        let last = self.trainer.evaluated();
        let Some(last_loss) = self.full_loss(&last)? else {
            return Ok(false);
        };
        let step = self.state.step;
        let mut best = (step, last_loss);
        if let Some(earlier) = self.state.best.filter(|best| best.step != step) {
            let vocab_size = self.corpus.tokenizer.vocab_size();
            let model = Gpt::zeros(&self.config.model, vocab_size, &self.device);
            let model = Saved::load_model(&self.run.checkpoint(earlier.step), model)?;
            let Some(loss) = self.full_loss(&model)? else {
                return Ok(false);
            };
            if loss <= last_loss {
                best = (earlier.step, loss);
            }
        }
        self.run.set_best(best.0)?; // the whole split may judge otherwise than the estimates did
        let bits_per_byte = evaluate::bits_per_byte(last_loss, &self.corpus.val);
        summary.best_step = Some(best.0);
        summary.best_val_loss = Some(best.1);
        summary.val_loss = Some(last_loss);
        summary.val_bits_per_byte = Some(bits_per_byte);
        self.logs.finished(summary)?;
        Ok(true)
    }

    /// The loss over the whole validation split, unless someone asks to stop.
    fn full_loss(&self, model: &Gpt) -> Result<Option<f64>, TrainError> {
        let (val, batch_size) = (&self.corpus.val, self.config.train.batch_size);
        let is_stopped = || self.interrupter.should_stop();
        let loss = evaluate::full_unless(model, val, batch_size, is_stopped);
        loss.transpose().map(|loss| self.checked(loss)).transpose()
    }

    /// The keys of the config that say how far a step goes.
    fn learning_rates(&self) -> &'static str {
        match self.config.optimizer.kind {
            OptimizerKind::Adamw => "optimizer.learning_rate",
            OptimizerKind::Muon => {
                "optimizer.muon_learning_rate (of the matrices) or optimizer.learning_rate (of the others)"
            }
        }
    }

    fn tokens_per_step(&self) -> usize {
        let train = &self.config.train;
        train.batch_size * train.grad_accumulation_steps * self.config.model.context_length
    }

    fn tokens(&self) -> u64 {
        (self.state.step * self.tokens_per_step()) as u64
    }

    #[allow(clippy::cast_precision_loss, reason = "a step has far fewer than 2^52 tokens")]
    fn tokens_per_s(&self, step_ms: f64) -> f64 {
        if step_ms > 0.0 { self.tokens_per_step() as f64 / step_ms * 1e3 } else { 0.0 }
    }
}

/// Whether an interval is over; an interval of 0 never is.
fn is_multiple(step: usize, interval: usize) -> bool {
    interval > 0 && step.is_multiple_of(interval)
}
