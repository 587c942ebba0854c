//! Writes a run's logs during training.

use super::TrainError;
use super::observer::{Evaluation, Logged, Started, Summary};
use crate::config::TrainConfig;
use crate::run::layout::{HEAD_METRICS, METRICS, SAMPLES, TIMINGS};
use crate::run::log::{self, End, HeadMetricsLine, LogFile, MetricsLine, TimingsLine, gradient_norm_of};
use crate::run::{Pending, Process, RunDir, TrainState, samples, tensorboard, unix_s};
use tinderbox_inspect::ScoredHeads;

#[derive(Debug)]
pub(super) struct Logs {
    metrics: LogFile,
    timings: LogFile,
    samples: LogFile,
    /// The head metrics; `None` if the config turns them off.
    heads: Option<LogFile>,
    events: Option<LogFile>,
    /// The time that earlier processes of the run spent.
    before: Elapsed,
}

/// The training time of a process, or of a whole run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Elapsed {
    /// Seconds spent on steps.
    pub train_s: f64,
    /// Wall-clock seconds in total.
    pub wall_s: f64,
}

impl Logs {
    /// Truncates the logs of a run to its current step and opens them.
    pub(super) fn open(run: &RunDir, state: &TrainState, config: &TrainConfig) -> Result<Self, TrainError> {
        log::cut_back(run, state.step)?;
        if let Some(pending) = state.pending {
            log::cut_evaluation(run, state.step, pending == Pending::Sample)?;
        }
        let [train_s, wall_s] = log::elapsed_s(run)?;
        let open = |name| LogFile::open(run.join(name));
        Ok(Self {
            metrics: open(METRICS)?,
            timings: open(TIMINGS)?,
            samples: open(SAMPLES)?,
            heads: config.head_metrics.then(|| open(HEAD_METRICS)).transpose()?,
            events: config.tensorboard.then(|| tensorboard::open(run)).transpose()?,
            before: Elapsed { train_s, wall_s },
        })
    }

    pub(super) fn began(&mut self, started: &Started) -> Result<(), TrainError> {
        let session = Process {
            began_unix_s: Some(unix_s()),
            device: Some(started.device.clone()),
            matmul_precision: serde_json::to_value(started.matmul_precision).ok(),
            parameters: Some(started.parameters),
            trained_parameters: Some(started.trained_parameters),
            vocab_size: Some(started.vocab_size as u64),
            train_tokens: Some(started.train_tokens as u64),
            val_tokens: Some(started.val_tokens as u64),
            val_bytes: Some(started.val_bytes),
            from: started.from.clone(),
            ranks: (started.ranks > 1).then_some(started.ranks as u64),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            ..Process::default()
        };
        let step = started.step as u64;
        Ok(self.timings.line(&TimingsLine { step, session: Some(Box::new(session)), ..Default::default() })?)
    }

    /// Logs the end of the process after `step`; the run may not be done yet.
    pub(super) fn ended(&mut self, step: usize, elapsed: Elapsed, peak_rss_mib: Option<f64>) -> Result<(), TrainError> {
        let line = self.elapsed_line(step, elapsed);
        self.timings.line(&TimingsLine { end: Some(End { peak_rss_mib }), ..line })?;
        self.sync()
    }

    /// Logs an interval; `norms` has the gradient norm of each layer in its last step.
    pub(super) fn logged(
        &mut self,
        logged: &Logged,
        norms: &[(String, f64)],
        tokens: u64,
        elapsed: Elapsed,
    ) -> Result<(), TrainError> {
        let Logged { step, train_loss, learning_rate, gradient_norm, median_step_ms, tokens_per_s, exchange } = *logged;
        let gradient_norm = f64::from(gradient_norm);
        self.metrics.line(&MetricsLine {
            step: step as u64,
            tokens: Some(tokens),
            train_loss: Some(train_loss),
            learning_rate: Some(learning_rate),
            gradient_norm: Some(gradient_norm),
            gradient_norms: norms.iter().map(|(layer, norm)| (gradient_norm_of(layer), four_digits(*norm))).collect(),
            ..MetricsLine::default()
        })?;
        self.timings.line(&TimingsLine {
            median_step_ms: Some(median_step_ms),
            tokens_per_s: Some(tokens_per_s),
            waiting_share: exchange.map(|exchange| exchange.waiting_share),
            communication_share: exchange.map(|exchange| exchange.communication_share),
            ..self.elapsed_line(step, elapsed)
        })?;
        let numbers = [
            ("loss/train", train_loss),
            ("learning_rate", learning_rate),
            ("gradient_norm", gradient_norm),
            ("tokens_per_s", tokens_per_s),
        ];
        self.scalars(step, &numbers)?;
        let by_layer = norms.iter().map(|(layer, norm)| (format!("gradient_norm/{layer}"), *norm));
        self.scalars(step, &by_layer.collect::<Vec<_>>())
    }

    pub(super) fn evaluated(&mut self, evaluation: &Evaluation, tokens: u64) -> Result<(), TrainError> {
        let Evaluation { step, train_loss, val_loss, val_bits_per_byte, preferred, is_best } = *evaluation;
        let [accuracy, margin] = [preferred.map(|it| it.accuracy), preferred.map(|it| it.margin)];
        self.metrics.line(&MetricsLine {
            step: step as u64,
            tokens: Some(tokens),
            train_loss_estimate: Some(train_loss),
            val_loss_estimate: Some(val_loss),
            val_bits_per_byte_estimate: val_bits_per_byte,
            val_accuracy_estimate: accuracy,
            val_margin_estimate: margin,
            is_best: Some(is_best),
            ..MetricsLine::default()
        })?;
        let numbers = [
            ("loss/train_estimate", Some(train_loss)),
            ("loss/val_estimate", Some(val_loss)),
            ("bits_per_byte/val_estimate", val_bits_per_byte),
            ("accuracy/val_estimate", accuracy),
            ("margin/val_estimate", margin),
        ];
        self.known_scalars(step, numbers)
    }

    pub(super) fn heads(&mut self, step: usize, heads: &ScoredHeads) -> Result<(), TrainError> {
        let Some(log) = &mut self.heads else { return Ok(()) };
        let json = serde_json::to_value(heads).expect("scores are plain data");
        log.line(&HeadMetricsLine { step: step as u64, heads: json })?;
        let mut numbers = Vec::new();
        for (layer, heads) in heads.scores.iter().enumerate() {
            for (head, scores) in heads.iter().enumerate() {
                let known = scores.named().into_iter().filter_map(|(name, score)| Some((name, score?)));
                numbers.extend(known.map(|(name, score)| (format!("heads/{name}/{layer}.{head}"), score)));
            }
        }
        self.scalars(step, &numbers)
    }

    /// Logs the end of the run, with the losses on the whole validation split.
    pub(super) fn finished(&mut self, summary: &Summary) -> Result<(), TrainError> {
        self.metrics.line(&MetricsLine {
            step: summary.steps as u64,
            tokens: Some(summary.tokens),
            val_loss: summary.val_loss,
            val_bits_per_byte: summary.val_bits_per_byte,
            val_accuracy: summary.preferred.map(|it| it.accuracy),
            val_margin: summary.preferred.map(|it| it.margin),
            best_step: summary.best_step.map(|step| step as u64),
            best_val_loss: summary.best_val_loss,
            ..MetricsLine::default()
        })?;
        let numbers = [("loss/val", summary.val_loss), ("bits_per_byte/val", summary.val_bits_per_byte)];
        self.known_scalars(summary.steps, numbers)
    }

    pub(super) fn sampled(&mut self, step: usize, text: &str) -> Result<(), TrainError> {
        self.samples.write(samples::entry(step, text).as_bytes())?;
        if let Some(events) = &mut self.events {
            events.write(&tensorboard::text(unix_s(), step, "sample", text))?;
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), TrainError> {
        let files = [&self.metrics, &self.timings, &self.samples];
        let mut files = files.into_iter().chain(&self.heads).chain(&self.events);
        Ok(files.try_for_each(LogFile::sync)?)
    }

    fn elapsed_line(&self, step: usize, elapsed: Elapsed) -> TimingsLine {
        TimingsLine {
            step: step as u64,
            train_s: Some(self.before.train_s + elapsed.train_s),
            wall_s: Some(self.before.wall_s + elapsed.wall_s),
            ..TimingsLine::default()
        }
    }

    fn known_scalars<const N: usize>(
        &mut self,
        step: usize,
        numbers: [(&'static str, Option<f64>); N],
    ) -> Result<(), TrainError> {
        let known = numbers.into_iter().filter_map(|(tag, number)| Some((tag, number?)));
        self.scalars(step, &known.collect::<Vec<_>>())
    }

    fn scalars(&mut self, step: usize, numbers: &[(impl AsRef<str>, f64)]) -> Result<(), TrainError> {
        if let Some(events) = &mut self.events {
            events.write(&tensorboard::scalars(unix_s(), step, numbers))?;
        }
        Ok(())
    }
}

/// A number with four significant digits, which make short lines.
fn four_digits(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}
