//! The parts of the training loop: a step, a line of the log, an evaluation, a sample, a checkpoint, and the end.

use std::fs::File;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::{Tensor, TensorReadError};

use super::clock::StepClock;
use super::evaluate::Loss;
use super::logs::{Elapsed, Logs};
use super::metrics::{EVALUATING, EVALUATING_FULLY, Metrics, TRAINING};
use super::observer::{Evaluation, Event, Logged, Observer, Started, Summary};
use super::prepare::{Prepared, has_stopped_early};
use super::trainer::{StepResult, Trainer};
use super::{Interrupter, TrainError, evaluate};
use crate::config::{Config, GenerateConfig, OptimizerKind};
use crate::data::{Corpus, Split};
use crate::device::{self, OpenDevice};
use crate::generate::Writer;
use crate::inspect::{self, ScoredHeads};
use crate::measure::peak_rss_mib;
use crate::model::Gpt;
use crate::run::{Best, Checkpoint, RunDir, TrainState};

/// The most steps that a GPU may be ahead of the loop: enough to keep it busy, few until a NaN is noticed.
const MAX_STEPS_AHEAD: usize = 16;

pub(super) struct Training {
    config: Config,
    corpus: Corpus,
    run: RunDir,
    trainer: Trainer,
    state: TrainState,
    logs: Logs,
    clock: StepClock,
    observer: Box<dyn Observer>,
    metrics: Metrics,
    interrupter: Interrupter,
    device: OpenDevice,
    began: Instant,
    /// Steps whose results are still on the device.
    unread: Vec<StepResult>,
    max_unread: usize,
    last_loss: Option<f32>,
    last_gradient_norm: f32,
    saved_step: Option<usize>,
    evaluated_step: Option<usize>,
    /// Keeps other processes out of the run directory.
    _lock: File,
}

impl Training {
    /// Opens the logs, and measures the weights that a new run starts with.
    pub(super) fn start(
        prepared: Prepared,
        device: OpenDevice,
        mut observer: Box<dyn Observer>,
        interrupter: Interrupter,
        began: Instant,
    ) -> Result<Self, TrainError> {
        let Prepared { config, corpus, run, trainer, state, resumed, lock } = prepared;
        let is_cpu = device::is_cpu(&device.device);
        let mut training = Self {
            logs: Logs::open(&run, state.step, &config.train)?,
            metrics: Metrics::start(observer.metrics_renderer(), &config.train, state.step),
            max_unread: if is_cpu { 1 } else { MAX_STEPS_AHEAD.min(config.train.log_interval) },
            saved_step: resumed.then_some(state.step),
            last_loss: state.loss_window.last().copied(),
            config,
            corpus,
            run,
            trainer,
            state,
            clock: StepClock::default(),
            observer,
            interrupter,
            device,
            began,
            unread: Vec::new(),
            last_gradient_norm: 0.0,
            evaluated_step: None,
            _lock: lock,
        };
        training.announce(resumed)?;
        if !resumed {
            if training.state.started_from.is_some() {
                // For comparison only: the best weights of this run must be its own.
                let inherited = training.estimate_losses()?;
                training.logs.evaluated(&inherited, 0)?;
                training.observer.observe(&Event::Evaluated(&inherited));
            }
            training.measure_heads()?;
        }
        Ok(training)
    }

    fn announce(&mut self, resumed: bool) -> Result<(), TrainError> {
        let Self { config, corpus, state, .. } = &*self;
        let started = Started {
            run_dir: self.run.root().to_owned(),
            device: self.device.name.clone(),
            matmul_precision: config.train.matmul_precision,
            parameters: self.trainer.evaluated().num_params(),
            train_tokens: corpus.train.len(),
            val_tokens: corpus.val.len(),
            val_bytes: corpus.val.bytes(),
            sources: corpus.sources.clone(),
            vocab_size: corpus.tokenizer.vocab_size(),
            step: state.step,
            max_steps: config.train.max_steps,
            tokens_per_step: self.tokens_per_step(),
            resumed,
            from: state.started_from.clone(),
        };
        self.logs.began(&started)?;
        self.observer.observe(&Event::Started(&started));
        Ok(())
    }

    /// Whether the run made its last step, or stopped early.
    pub(super) fn is_done(&self) -> bool {
        self.is_last_step() || has_stopped_early(&self.state, &self.config)
    }

    pub(super) fn is_last_step(&self) -> bool {
        self.state.step >= self.config.train.max_steps
    }

    /// Whether an interval ends with this step; an interval of 0 never does.
    pub(super) fn is_due(&self, interval: usize) -> bool {
        interval > 0 && self.state.step.is_multiple_of(interval)
    }

    /// Whether the evaluation of this step is the best so far.
    pub(super) fn is_best(&self) -> bool {
        self.state.best.is_some_and(|best| best.step == self.state.step)
    }

    pub(super) fn step(&mut self) -> Result<(), TrainError> {
        self.metrics.enter(TRAINING);
        self.clock.begin();
        self.unread.push(self.trainer.step());
        self.state.step += 1;
        if self.unread.len() >= self.max_unread {
            self.read_back()?;
        }
        let step = self.state.step;
        self.metrics.stepped(step);
        self.observer.observe(&Event::Stepped { step, loss: self.last_loss });
        Ok(())
    }

    /// Waits for the device, and reads the losses of the steps since the last time.
    fn read_back(&mut self) -> Result<(), TrainError> {
        if self.unread.is_empty() {
            return Ok(());
        }
        let first_step = self.state.step - self.unread.len() + 1;
        let (losses, norms): (Vec<_>, Vec<_>) =
            self.unread.drain(..).map(|result| (result.loss, result.gradient_norm)).unzip();
        let read = |values| Tensor::cat(values, 0).try_into_vec_as::<f32>();
        let (losses, norms) = match (read(losses), read(norms)) {
            (Ok(losses), Ok(norms)) => (losses, norms),
            (Err(error), _) | (_, Err(error)) => return Err(self.device_failed(&error)),
        };
        self.clock.done();
        for (step, (loss, norm)) in (first_step..).zip(losses.into_iter().zip(norms)) {
            for (what, value) in [("loss", loss), ("gradient's norm", norm)] {
                if !value.is_finite() {
                    return Err(self.not_finite(step, what, value.into()));
                }
            }
            self.state.loss_window.push(loss);
            self.last_loss = Some(loss);
            self.last_gradient_norm = norm;
        }
        Ok(())
    }

    pub(super) fn log(&mut self) -> Result<(), TrainError> {
        self.read_back()?;
        let window = std::mem::take(&mut self.state.loss_window);
        let train_loss = window.iter().map(|loss| f64::from(*loss)).sum::<f64>() / window.len() as f64;
        self.state.train_loss = Some(train_loss);
        let median_step_ms = self.clock.interval_median_ms();
        let logged = Logged {
            step: self.state.step,
            train_loss,
            learning_rate: self.trainer.learning_rate_of(self.state.step - 1),
            gradient_norm: self.last_gradient_norm,
            median_step_ms,
            tokens_per_s: self.tokens_per_s(median_step_ms),
        };
        self.logs.logged(&logged, self.tokens(), self.elapsed())?;
        self.metrics.logged(&logged);
        self.observer.observe(&Event::Logged(&logged));
        Ok(())
    }

    /// Estimates the losses on both splits, and measures the attention heads if the config says so.
    pub(super) fn evaluate(&mut self) -> Result<(), TrainError> {
        self.read_back()?;
        self.metrics.enter(EVALUATING);
        let mut evaluation = self.estimate_losses()?;
        let Evaluation { step, val_loss, .. } = evaluation;
        self.evaluated_step = Some(step);
        if self.state.best.is_none_or(|best| val_loss < best.val_loss) {
            self.state.best = Some(Best { step, val_loss });
            self.state.evaluations_without_improvement = 0;
            evaluation.is_best = true;
        } else {
            self.state.evaluations_without_improvement += 1;
        }
        self.logs.evaluated(&evaluation, self.tokens())?;
        self.metrics.evaluated(&evaluation);
        self.observer.observe(&Event::Evaluated(&evaluation));
        self.measure_heads()
    }

    fn estimate_losses(&self) -> Result<Evaluation, TrainError> {
        let model = self.trainer.evaluated();
        let n_batches = self.config.train.eval_batches;
        let val_loss = self.estimate(&model, &self.corpus.val, n_batches)?;
        Ok(Evaluation {
            step: self.state.step,
            train_loss: self.estimate(&model, &self.corpus.train, n_batches)?,
            val_loss,
            val_bits_per_byte: evaluate::bits_per_byte(val_loss, &self.corpus.val),
            is_best: false,
        })
    }

    fn estimate(&self, model: &Gpt, split: &Split, n_batches: usize) -> Result<f64, TrainError> {
        let batch_size = self.config.train.batch_size;
        let precision = self.config.train.matmul_precision;
        self.finite(evaluate::estimate(model, split, batch_size, n_batches, precision))
    }

    /// The mean of an evaluated loss, which shows the last update: a step's loss is that of the weights before it.
    fn finite(&self, loss: Result<Loss, TensorReadError>) -> Result<f64, TrainError> {
        let loss = loss.map_err(|error| self.device_failed(&error))?.nats_per_token;
        if loss.is_finite() { Ok(loss) } else { Err(self.not_finite(self.state.step, "evaluated loss", loss)) }
    }

    fn measure_heads(&mut self) -> Result<(), TrainError> {
        if !self.config.train.head_metrics {
            return Ok(());
        }
        let step = self.state.step;
        let heads = ScoredHeads::measure(&self.trainer.evaluated(), &self.corpus.val, inspect::N_WINDOWS)
            .map_err(|source| TrainError::Heads { step, source: Box::new(source), kept: self.kept() })?;
        self.logs.heads(step, &heads)
    }

    /// Writes a sample text, if the config says so.
    pub(super) fn sample(&mut self) -> Result<(), TrainError> {
        let (n, prompt) = (self.config.train.sample_tokens, &self.config.train.sample_prompt);
        if n == 0 {
            return Ok(());
        }
        let config = GenerateConfig { max_new_tokens: n, seed: self.config.train.seed, ..self.config.generate.clone() };
        let model = self.trainer.evaluated();
        let mut text = prompt.clone();
        for piece in Writer::new(&model, &self.corpus.tokenizer, &config, prompt, 0)? {
            text.push_str(&piece?);
        }
        self.logs.sampled(self.state.step, &text)?;
        self.observer.observe(&Event::Sampled { step: self.state.step, text: &text });
        Ok(())
    }

    /// Tells the observer if the run stops before its last step.
    pub(super) fn report_early_stop(&mut self) {
        if self.is_done() && !self.is_last_step() {
            let evaluations = self.state.evaluations_without_improvement;
            self.observer.observe(&Event::StoppedEarly { step: self.state.step, evaluations });
        }
    }

    /// Saves a checkpoint of this step, unless there is one.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        self.read_back()?;
        let step = self.state.step;
        if self.saved_step == Some(step) {
            return Ok(());
        }
        if self.evaluated_step != Some(step) {
            // One batch shows whether these weights are worth keeping.
            self.estimate(&self.trainer.evaluated(), &self.corpus.val, 1)?;
        }
        self.logs.sync()?; // a checkpoint must not outlive the lines that lead to it
        let checkpoint = self.trainer.checkpoint(self.state.clone());
        let path = self.run.save(&checkpoint, self.config.train.keep_checkpoints)?;
        self.saved_step = Some(step);
        self.observer.observe(&Event::Saved { path: &path, is_best: self.is_best() });
        Ok(())
    }

    /// Evaluates the whole validation split, unless the run was interrupted or is meanwhile, and sums up the run.
    pub(super) fn finish(mut self, interrupted: bool) -> Result<Summary, TrainError> {
        let evaluation = if interrupted { None } else { self.evaluate_fully()? };
        self.metrics.end();
        let Elapsed { train_s, wall_s } = self.elapsed();
        let median_step_ms = self.clock.median_ms();
        let (val_loss, best) = evaluation.unzip();
        let summary = Summary {
            run_dir: self.run.root().to_owned(),
            device: self.device.name.clone(),
            parameters: self.trainer.evaluated().num_params(),
            steps: self.state.step,
            tokens: self.tokens(),
            wall_s,
            train_s,
            median_step_ms,
            tokens_per_s: self.tokens_per_s(median_step_ms),
            peak_rss_mib: peak_rss_mib(),
            train_loss: self.state.train_loss,
            val_loss,
            best_val_loss: best.map(|best| best.val_loss),
            best_step: best.or(self.state.best).map(|best| best.step),
            val_bits_per_byte: val_loss.map(|loss| evaluate::bits_per_byte(loss, &self.corpus.val)),
            interrupted: val_loss.is_none(),
        };
        if !summary.interrupted {
            self.logs.finished(&summary)?;
        }
        self.logs.ended(summary.steps, Elapsed { train_s, wall_s }, summary.peak_rss_mib)?;
        Ok(summary)
    }

    /// The loss of the last weights over the whole validation split, and the best one: theirs or that of the best
    /// checkpoint. `None` if interrupted, which `--resume` makes up for.
    fn evaluate_fully(&mut self) -> Result<Option<(f64, Best)>, TrainError> {
        self.metrics.enter(EVALUATING_FULLY);
        self.observer.observe(&Event::FinalEvaluation);
        let Some(val_loss) = self.full_loss(&self.trainer.evaluated())? else { return Ok(None) };
        let mut best = Best { step: self.state.step, val_loss };
        if let Some(earlier) = self.state.best.filter(|best| best.step != self.state.step) {
            let vocab_size = self.corpus.tokenizer.vocab_size();
            let model = Gpt::zeros(&self.config.model, vocab_size, &self.device.device);
            let model = Checkpoint::load_model(&self.run.checkpoint(earlier.step), model)?;
            let Some(loss) = self.full_loss(&model)? else { return Ok(None) };
            if loss <= val_loss {
                best = Best { step: earlier.step, val_loss: loss };
            }
        }
        self.run.set_best(best.step)?; // the whole split may judge differently from the estimates
        Ok(Some((val_loss, best)))
    }

    /// The loss over the whole validation split; `None` if interrupted.
    fn full_loss(&self, model: &Gpt) -> Result<Option<f64>, TrainError> {
        let is_stopped = || self.interrupter.should_stop();
        let loss = evaluate::full_unless(model, &self.corpus.val, self.config.train.batch_size, is_stopped);
        loss.transpose().map(|loss| self.finite(loss)).transpose()
    }

    fn not_finite(&self, step: usize, what: &'static str, value: f64) -> TrainError {
        let learning_rates = match self.config.optimizer.kind {
            OptimizerKind::Adamw => "optimizer.learning_rate",
            OptimizerKind::Muon => {
                "optimizer.muon_learning_rate (of the matrices) or optimizer.learning_rate (of the others)"
            }
        };
        TrainError::NotFinite { step, what, value, learning_rates, kept: self.kept() }
    }

    fn device_failed(&self, error: &TensorReadError) -> TrainError {
        TrainError::Device { step: self.state.step, message: error.to_string(), kept: self.kept() }
    }

    /// The end of an error's message: which checkpoint remains.
    fn kept(&self) -> String {
        match self.run.last() {
            Ok(path) => format!("the checkpoint `{}` is from before", path.display()),
            Err(_) => "no checkpoint was saved yet".to_owned(),
        }
    }

    fn elapsed(&self) -> Elapsed {
        Elapsed { train_s: self.clock.total().as_secs_f64(), wall_s: self.began.elapsed().as_secs_f64() }
    }

    fn tokens_per_step(&self) -> usize {
        let train = &self.config.train;
        train.batch_size * train.grad_accumulation_steps * self.config.model.context_length
    }

    fn tokens(&self) -> u64 {
        (self.state.step * self.tokens_per_step()) as u64
    }
    fn tokens_per_s(&self, step_ms: f64) -> f64 {
        if step_ms > 0.0 { self.tokens_per_step() as f64 / step_ms * 1e3 } else { 0.0 }
    }
}
