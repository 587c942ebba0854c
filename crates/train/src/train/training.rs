//! The parts of the training loop: a step, a log line, a checkpoint, and the end of the run.

mod measure;

use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::{Tensor, TensorReadError};

use super::clock::{ExchangeClock, StepClock};
use super::files::Files;
use super::logs::{Elapsed, Logs};
use super::observer::{Event, Logged, Observer, Started, Summary};
use super::prepare::{Prepared, has_stopped_early};
use super::skip::{NormsByLayer, fault};
use super::trainer::{StepResult, Trainer};
use super::{Interrupter, TrainError, evaluate};
use crate::config::{Config, PrecisionChoice, SyncKind, TrainConfig};
use crate::data::{BatchSource, Corpus};
use crate::optimizer::{BatchSchedule, Squares};
use crate::run::{Pending, TrainState};
use tinderbox_model::device::{self, OpenDevice};
use tinderbox_model::measure::peak_rss_mib;

/// The maximum number of steps queued on a GPU: enough to keep the GPU busy, and few enough to notice a NaN soon.
const MAX_STEPS_AHEAD: usize = 16;

/// A run in training on one rank. Every rank makes the same calls, and rank 0 alone writes.
pub(super) struct Training<'a> {
    config: Config,
    corpus: Corpus,
    trainer: Trainer,
    state: TrainState,
    /// `None` on ranks other than 0.
    files: Option<Files>,
    clock: StepClock,
    observer: &'a mut dyn Observer,
    interrupter: Interrupter,
    device: OpenDevice,
    began: Instant,
    /// The results of steps that have not been read back from the device yet.
    unread: Vec<StepResult>,
    max_unread: usize,
    last_loss: Option<f32>,
    last_gradient_norm: f32,
    /// Of the last step that was not skipped; read back for a log line only.
    last_squares: Squares,
    /// The step of the last checkpoint, and what was pending there.
    saved: Option<(usize, Option<Pending>)>,
    exchange: ExchangeClock,
    evaluated_step: Option<usize>,
}

impl<'a> Training<'a> {
    /// Opens the logs, and schedules the measurement of the initial weights of a new run.
    pub(super) fn start(
        prepared: Prepared,
        device: OpenDevice,
        observer: &'a mut dyn Observer,
        interrupter: &Interrupter,
        began: Instant,
    ) -> Result<Self, TrainError> {
        let Prepared { config, chosen_precision, corpus, trainer, state, resumed, damaged, changed, dir } = prepared;
        let is_cpu = device::is_cpu(&device.device);
        let mut training = Self {
            files: dir.map(|(run, lock)| Files::open(run, lock, &state, &config.train)).transpose()?,
            max_unread: if is_cpu { 1 } else { MAX_STEPS_AHEAD.min(config.train.log_interval) },
            saved: resumed.then_some((state.step, state.pending)),
            exchange: ExchangeClock::default(),
            last_loss: state.loss_window.last().copied(),
            config,
            corpus,
            trainer,
            state,
            clock: StepClock::default(),
            observer,
            interrupter: interrupter.clone(),
            device,
            began,
            unread: Vec::new(),
            last_gradient_norm: 0.0,
            last_squares: Squares::default(),
            evaluated_step: None,
        };
        training.announce(resumed, damaged, changed, chosen_precision)?;
        if !resumed {
            training.state.pending = Some(Pending::Start);
        }
        Ok(training)
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Whether rank 0 was interrupted.
    pub(super) fn should_stop(&self) -> Result<bool, TrainError> {
        Ok(self.trainer.ranks().agree(self.interrupter.should_stop())?)
    }

    /// Whether an evaluation, a sample or the measurement of the initial weights is due before the next step.
    pub(super) fn has_pending(&self) -> bool {
        self.state.pending.is_some()
    }

    pub(super) fn schedule_evaluation(&mut self) {
        self.state.pending = Some(Pending::Evaluation);
    }

    /// Averages the weights of ranks that make local steps, before the weights are evaluated or saved.
    fn average(&mut self) -> Result<(), TrainError> {
        self.trainer.ranks().check_peers_alive()?;
        self.trainer.average();
        Ok(())
    }

    /// Writes to the logs, on rank 0.
    fn write(&mut self, write: impl FnOnce(&mut Logs) -> Result<(), TrainError>) -> Result<(), TrainError> {
        self.files.as_mut().map_or(Ok(()), |files| write(&mut files.logs))
    }

    /// Lets rank 0 do long `work` while the others wait; they return the default.
    fn on_first<T: Default>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, TrainError>) -> Result<T, TrainError> {
        let ranks = self.trainer.ranks().clone();
        if ranks.is_first() { ranks.keep_waiting(|| work(self)) } else { Ok(T::default()) }
    }

    fn announce(
        &mut self,
        resumed: bool,
        damaged: Vec<String>,
        changed: Vec<String>,
        chosen_precision: PrecisionChoice,
    ) -> Result<(), TrainError> {
        let Self { config, corpus, state, .. } = &*self;
        let [parameters, trained_parameters] = self.trainer.n_parameters();
        let started = Started {
            run_dir: self.root(),
            device: self.device.name.clone(),
            matmul_precision: config.train.matmul_precision.on(&self.device.device),
            chosen_precision,
            parameters,
            trained_parameters,
            train_tokens: corpus.train.len(),
            val_tokens: corpus.val.len(),
            val_bytes: corpus.val.bytes(),
            sources: corpus.sources.clone(),
            vocab_size: corpus.tokenizer.vocab_size(),
            step: state.step,
            max_steps: config.train.max_steps,
            eval_interval: config.train.eval_interval,
            batches: self.batches(),
            ranks: self.trainer.ranks().size(),
            resumed,
            damaged,
            changed,
            from: state.started_from.clone(),
        };
        self.write(|logs| logs.began(&started))?;
        self.observer.observe(&Event::Started(&started));
        Ok(())
    }

    /// Whether the run has made its last step or stopped early.
    pub(super) fn is_done(&self) -> bool {
        self.is_last_step() || has_stopped_early(&self.state, &self.config)
    }

    pub(super) fn is_last_step(&self) -> bool {
        self.trainer.steps() >= self.config.train.max_steps
    }

    /// Whether an interval ends with this step. An interval of 0 never ends, and no interval ends before the first
    /// step.
    pub(super) fn is_due(&self, interval: usize) -> bool {
        interval > 0 && self.trainer.steps() > 0 && self.trainer.steps().is_multiple_of(interval)
    }

    /// Whether the evaluation at this step is the best so far.
    pub(super) fn is_best(&self) -> bool {
        self.state.best.is_some_and(|best| best.step == self.trainer.steps())
    }

    /// Makes a step; false, without a step, if interrupted.
    pub(super) fn step(&mut self) -> Result<bool, TrainError> {
        self.clock.begin();
        let (ranks, interrupter) = (self.trainer.ranks().clone(), &self.interrupter);
        let exchanged = ranks.exchanged();
        // Other ranks do not know of a stop within a step.
        let Some(mut result) = self.trainer.step_unless(|| ranks.is_alone() && interrupter.should_stop()) else {
            self.clock.cancel();
            return Ok(false);
        };
        self.exchange.add(exchanged, ranks.exchanged());
        if result.skipped.is_none() {
            self.last_squares = std::mem::take(&mut result.squares);
        }
        self.unread.push(result);
        if self.unread.len() >= self.max_unread {
            self.read_back()?;
        }
        let step = self.trainer.steps();
        self.observer.observe(&Event::Stepped { step, loss: self.last_loss });
        Ok(true)
    }

    /// Waits for the device, and reads back the losses and gradient norms of all unread steps.
    fn read_back(&mut self) -> Result<(), TrainError> {
        if self.unread.is_empty() {
            return Ok(());
        }
        let first_step = self.trainer.steps() - self.unread.len() + 1;
        let mut skipped = Vec::with_capacity(self.unread.len());
        let tensors = |result: StepResult| {
            skipped.push(result.skipped);
            (result.loss, result.gradient_norm)
        };
        let (losses, norms): (Vec<_>, Vec<_>) = self.unread.drain(..).map(tensors).unzip();
        let read = |values| Tensor::cat(values, 0).try_into_vec_as::<f32>();
        let (losses, norms) = match (read(losses), read(norms)) {
            (Ok(losses), Ok(norms)) => (losses, norms),
            (Err(error), _) | (_, Err(error)) => return Err(self.device_failed(&error)),
        };
        self.clock.done();
        self.corpus.train.check()?;
        // If gradients are summed, all ranks have the same numbers, and rank 0 reports them.
        let reports = self.trainer.ranks().is_first() || self.config.distributed.sync == SyncKind::Local;
        for ((step, skipped), (loss, norm)) in (first_step..).zip(skipped).zip(losses.into_iter().zip(norms)) {
            let n_skipped = &mut self.state.non_finite_steps;
            let fault = fault(&self.config.train, n_skipped, skipped.as_deref(), [loss, norm]);
            if let Some((what, value)) = fault.filter(|_| reports) {
                let norms = skipped.map_or_else(|| self.trainer.weight_norms(), |skipped| skipped.norms);
                return Err(self.not_finite(step, what, value.into(), norms));
            }
            if let Some(skipped) = skipped {
                if reports {
                    self.observer.observe(&Event::Skipped { step, skipped: &skipped });
                }
                continue;
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
        if window.is_empty() {
            return Ok(()); // every step was skipped
        }
        let train_loss = window.iter().map(|loss| f64::from(*loss)).sum::<f64>() / window.len() as f64;
        self.state.train_loss = Some(train_loss);
        let median_step_ms = self.clock.interval_median_ms();
        let logged = Logged {
            step: self.trainer.steps(),
            train_loss,
            learning_rate: self.trainer.learning_rate_of(self.trainer.steps() - 1),
            gradient_norm: self.last_gradient_norm,
            median_step_ms,
            tokens_per_s: self.tokens_per_s(median_step_ms, self.trainer.steps() - 1),
            exchange: self.exchange.of_interval(self.trainer.ranks(), self.clock.total()),
        };
        let (tokens, elapsed) = (self.tokens(), self.elapsed());
        let norms = std::mem::take(&mut self.last_squares).norms_by_layer();
        let norms = norms.map_err(|error| self.device_failed(&error))?;
        self.write(|logs| logs.logged(&logged, &norms, tokens, elapsed))?;
        self.observer.observe(&Event::Logged(&logged));
        Ok(())
    }

    /// Saves a checkpoint of this step. If it was saved already, only its state is replaced, once what was pending then
    /// is done.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        self.read_back()?;
        let (step, pending) = (self.trainer.steps(), self.state.pending);
        if let Some((_, pending_then)) = self.saved.replace((step, pending)).filter(|(saved, _)| *saved == step) {
            let Some(files) = &self.files else { return Ok(()) };
            if pending != pending_then {
                files.replace_state(&self.trainer.checkpoint(self.state.clone()).state)?;
            }
            return if self.is_best() { files.set_best(step) } else { Ok(()) };
        }
        self.average()?;
        self.trainer.average_optimizer();
        self.on_first(Self::write_checkpoint)
    }

    fn write_checkpoint(&mut self) -> Result<(), TrainError> {
        if self.evaluated_step != Some(self.trainer.steps()) {
            // The loss of one batch shows whether these weights give finite numbers, maybe to who interrupted the run.
            let TrainConfig { batch_size, matmul_precision, .. } = self.config.train;
            let batch_size = evaluate::rows_of_a_moment(batch_size, self.config.model.context_length);
            let model = self.trainer.evaluated();
            let precision = matmul_precision.on(&self.device.device);
            let loss = evaluate::estimate(&model, &self.corpus.val_batches(), batch_size, 1, precision);
            self.check_finite(loss.map_err(|error| self.device_failed(&error))?.nats_per_token)?;
            self.corpus.val.check()?;
        }
        let checkpoint = self.trainer.checkpoint(self.state.clone());
        let files = self.files.as_ref().expect("rank 0 writes them");
        let path = files.save(&checkpoint, &self.config.train)?;
        self.observer.observe(&Event::Saved { path: &path, is_best: self.is_best() });
        Ok(())
    }

    /// Evaluates the whole validation split, unless interrupted before or during the evaluation, and summarizes the
    /// run.
    pub(super) fn finish(mut self, interrupted: bool) -> Result<Summary, TrainError> {
        let evaluation = if interrupted { None } else { self.evaluate_fully()? };
        let Elapsed { train_s, wall_s } = self.elapsed();
        let median_step_ms = self.clock.median_ms();
        let (last, best) = evaluation.unzip();
        let [parameters, trained_parameters] = self.trainer.n_parameters();
        let summary = Summary {
            run_dir: self.root(),
            device: self.device.name.clone(),
            parameters,
            trained_parameters,
            steps: self.trainer.steps(),
            tokens: self.tokens(),
            wall_s,
            train_s,
            median_step_ms,
            tokens_per_s: self.tokens_per_s(median_step_ms, self.trainer.steps() / 2), // the median step, as batches grow
            exchange: self.exchange.of_all(self.trainer.ranks(), self.clock.total()),
            peak_rss_mib: peak_rss_mib(),
            train_loss: self.state.train_loss,
            val_loss: last.map(|last| last.loss),
            best_val_loss: best.map(|best| best.val_loss),
            best_step: best.or(self.state.best).map(|best| best.step),
            val_bits_per_byte: last.and_then(|last| self.val_bits_per_byte(&last)),
            gzip_bits_per_byte: last.and_then(|_| self.corpus.val_gzip_bits_per_byte()),
            preferred: last.and_then(|last| last.preferred),
            interrupted: last.is_none(),
        };
        self.write(|logs| {
            if !summary.interrupted {
                logs.finished(&summary)?;
            }
            logs.ended(summary.steps, Elapsed { train_s, wall_s }, summary.peak_rss_mib)
        })?;
        self.trainer.ranks().check_peers_alive()?;
        Ok(summary)
    }

    fn not_finite(&self, step: usize, what: &'static str, value: f64, norms: NormsByLayer) -> TrainError {
        let learning_rates = self.config.optimizer.learning_rates();
        TrainError::NotFinite { step, what, value, learning_rates, kept: self.kept(), norms: Box::new(norms) }
    }

    fn device_failed(&self, error: &TensorReadError) -> TrainError {
        TrainError::Device { step: self.trainer.steps(), message: error.to_string(), kept: self.kept() }
    }

    /// The end of an error message, which says which checkpoint remains.
    fn kept(&self) -> String {
        match self.files.as_ref().map(|files| files.run.last()) {
            Some(Ok(path)) => format!("the checkpoint `{}` is from before", path.display()),
            Some(Err(_)) => "no checkpoint was saved yet".to_owned(),
            None => "the checkpoint of rank 0 is from before".to_owned(),
        }
    }

    /// The run directory; empty on ranks other than 0.
    fn root(&self) -> PathBuf {
        self.files.as_ref().map_or_else(PathBuf::new, |files| files.run.root().to_owned())
    }

    fn elapsed(&self) -> Elapsed {
        Elapsed { train_s: self.clock.total().as_secs_f64(), wall_s: self.began.elapsed().as_secs_f64() }
    }

    fn batches(&self) -> BatchSchedule {
        BatchSchedule::new(&self.config).of_records(self.corpus.tokens_per_row())
    }

    fn tokens(&self) -> u64 {
        self.batches().tokens_before(self.trainer.steps())
    }

    fn tokens_per_s(&self, step_ms: f64, step: usize) -> f64 {
        if step_ms > 0.0 { self.batches().tokens_at(step) as f64 / step_ms * 1e3 } else { 0.0 }
    }
}
