//! The measurements due after some steps: losses of both splits, attention heads and a sample; and the whole validation
//! split at the end.

use std::path::PathBuf;

use burn::tensor::TensorReadError;

use super::Training;
use crate::config::{Config, GenerateConfig, TrainConfig};
use crate::data::{Batch, BatchSource, batch};
use crate::distributed::Ranks;
use crate::run::{Best, Checkpoint, Pending};
use crate::train::TrainError;
use crate::train::evaluate;
use crate::train::files::Files;
use crate::train::observer::{Evaluation, Event, Preferred};
use crate::train::parallel::weights_of_first;
use crate::train::preference::Preference;
use tinderbox_inspect::{self as inspect, InspectError, ScoredHeads};
use tinderbox_kernels::MatmulPrecision;
use tinderbox_model::Gpt;
use tinderbox_model::generate::Generator;

impl Training<'_> {
    /// Makes the measurements and samples that are pending at this step; false if interrupted, and the rest stays
    /// pending.
    pub(in crate::train) fn run_pending_evaluations(&mut self) -> Result<bool, TrainError> {
        if self.has_pending() {
            self.read_back()?;
            self.average()?;
        }
        while let Some(pending) = self.state.pending {
            let (is_done, next) = match pending {
                Pending::Start => (self.measure_start()?, None),
                Pending::Evaluation => (self.evaluate()?, Some(Pending::Sample)),
                Pending::Sample => (self.sample()?, None),
            };
            if !is_done {
                return Ok(false);
            }
            self.state.pending = next;
            if pending == Pending::Sample {
                self.report_early_stop();
            }
        }
        Ok(true)
    }

    /// Measures the initial weights of a new run; false if interrupted.
    fn measure_start(&mut self) -> Result<bool, TrainError> {
        let mut inherited = None;
        if self.state.started_from.is_some() {
            // This evaluation is for comparison only: the best checkpoint must have weights trained by this run.
            inherited = self.estimate_losses()?;
            if inherited.is_none() {
                return Ok(false);
            }
        }
        let (true, heads) = self.score_heads()? else { return Ok(false) };
        if let Some(inherited) = inherited {
            self.write(|logs| logs.evaluated(&inherited, 0))?;
            self.observer.observe(&Event::Evaluated(&inherited));
        }
        self.write_heads(heads)?;
        Ok(true)
    }

    /// Estimates the losses on both splits, and measures the attention heads if configured; false if interrupted.
    fn evaluate(&mut self) -> Result<bool, TrainError> {
        self.observer.observe(&Event::Evaluating);
        let Some(mut evaluation) = self.estimate_losses()? else { return Ok(false) };
        let (true, heads) = self.score_heads()? else { return Ok(false) };
        let Evaluation { step, val_loss, preferred, .. } = evaluation;
        self.evaluated_step = Some(step);
        if self.state.best.is_none_or(|best| val_loss < best.val_loss) {
            self.state.best = Some(Best { step, val_loss, val_accuracy: preferred.map(|it| it.accuracy) });
            self.state.evaluations_without_improvement = 0;
            evaluation.is_best = true;
        } else {
            self.state.evaluations_without_improvement += 1;
        }
        let tokens = self.tokens();
        self.write(|logs| logs.evaluated(&evaluation, tokens))?;
        self.observer.observe(&Event::Evaluated(&evaluation));
        self.write_heads(heads)?;
        Ok(true)
    }

    /// Estimates the losses on both splits; `None` if interrupted.
    fn estimate_losses(&self) -> Result<Option<Evaluation>, TrainError> {
        let model = self.trainer.evaluated();
        let TrainConfig { eval_batches, batch_size, matmul_precision, .. } = self.config.train;
        let precision = matmul_precision.on(&self.device.device);
        let splits = [self.corpus.val_batches(), self.corpus.train_batches()];
        let context_length = self.config.model.context_length;
        let preference = self.trainer.preference();
        let base = preference.map(|_| model.clone().without_adapters());
        let measure = Measure { model: &model, preference: preference.zip(base.as_ref()), precision };
        let losses = splits.each_ref().map(|split| {
            let batches = split.spread_pairs(context_length, batch_size, eval_batches);
            measure.mean(batches, self.trainer.ranks(), |_| !self.interrupter.should_stop()).transpose()
        });
        splits.iter().try_for_each(BatchSource::check)?;
        let [Some(val), Some(train)] = losses else { return Ok(None) };
        let (val, train) = (self.finite_mean(val)?, self.finite_mean(train)?);
        Ok(Some(Evaluation {
            step: self.trainer.steps(),
            train_loss: train.loss,
            val_loss: val.loss,
            val_bits_per_byte: self.val_bits_per_byte(&val),
            preferred: val.preferred,
            is_best: false,
        }))
    }

    /// A loss on the validation split in bits per byte of its text; `None` of preferences.
    pub(super) fn val_bits_per_byte(&self, val: &Mean) -> Option<f64> {
        let bits = || evaluate::bits_per_byte(val.loss, self.corpus.val_tokens_per_byte());
        val.preferred.is_none().then(bits)
    }

    fn finite_mean(&self, mean: Result<Mean, TensorReadError>) -> Result<Mean, TrainError> {
        let mean = mean.map_err(|error| self.device_failed(&error))?;
        self.check_finite(mean.loss).map(|()| mean)
    }

    /// Checks that an evaluated loss is finite, which checks the last update too: the loss of a step is computed with
    /// the weights before the update. All ranks have the same loss, and rank 0 reports it.
    pub(super) fn check_finite(&self, loss: f64) -> Result<(), TrainError> {
        match loss.is_finite() || !self.trainer.ranks().is_first() {
            true => Ok(()),
            false => Err(self.not_finite(self.trainer.steps(), "evaluated loss", loss, self.trainer.weight_norms())),
        }
    }

    /// Scores the attention heads on rank 0, if configured; false if interrupted.
    fn score_heads(&mut self) -> Result<(bool, Option<ScoredHeads>), TrainError> {
        if !self.config.train.head_metrics {
            return Ok((true, None));
        }
        let (is_done, heads) = self.on_first(|run| {
            let model = run.trainer.evaluated();
            let windows = batch::spread_tokens(&run.corpus.val, model.config().context_length, inspect::N_WINDOWS)?;
            match ScoredHeads::measure(&model, &windows, &|| !run.interrupter.should_stop()) {
                Ok(heads) => Ok((true, Some(heads))),
                Err(InspectError::Stopped) => Ok((false, None)),
                Err(source) => {
                    let (step, source) = (run.trainer.steps(), Box::new(source));
                    Err(TrainError::Heads { step, source, kept: run.kept() })
                }
            }
        })?;
        Ok((self.trainer.ranks().agree(is_done)?, heads))
    }

    fn write_heads(&mut self, heads: Option<ScoredHeads>) -> Result<(), TrainError> {
        let step = self.trainer.steps();
        heads.map_or(Ok(()), |heads| self.write(|logs| logs.heads(step, &heads)))
    }

    /// Generates a sample, if configured; false if interrupted.
    fn sample(&mut self) -> Result<bool, TrainError> {
        if self.config.train.sample_tokens == 0 {
            return Ok(true);
        }
        let is_done = self.on_first(Self::write_sample)?;
        Ok(self.trainer.ranks().agree(is_done)?)
    }

    fn write_sample(&mut self) -> Result<bool, TrainError> {
        let (n, prompt) = (self.config.train.sample_tokens, &self.config.train.sample_prompt);
        let config = GenerateConfig { max_new_tokens: n, seed: self.config.train.seed, ..self.config.generate.clone() };
        let model = self.trainer.evaluated();
        let mut text = prompt.clone();
        for piece in Generator::new(&model, &self.corpus.tokenizer, &config, prompt, 0)? {
            text.push_str(&piece?);
            if self.interrupter.should_stop() {
                return Ok(false);
            }
        }
        let step = self.trainer.steps();
        self.write(|logs| logs.sampled(step, &text))?;
        self.observer.observe(&Event::Sampled { step, text: &text });
        Ok(true)
    }

    /// Reports to the observer if the run stops early.
    fn report_early_stop(&mut self) {
        if self.is_done() && !self.is_last_step() {
            let evaluations = self.state.evaluations_without_improvement;
            self.observer.observe(&Event::StoppedEarly { step: self.trainer.steps(), evaluations });
        }
    }

    /// The loss of the last weights over the whole validation split, and the better of the last weights and the best
    /// checkpoint. `None` if interrupted; `--resume` then repeats the evaluation.
    pub(super) fn evaluate_fully(&mut self) -> Result<Option<(Mean, Best)>, TrainError> {
        let step = self.trainer.steps();
        // Adapters are used with the exact weights of their base.
        let is_rounded = self.config.finetune.base_weights.precision().is_some();
        let last = if is_rounded { self.saved_model(step)? } else { self.trainer.evaluated() };
        // Not that of the steps, which has what the rounded base finds of each pair.
        let preference = self.trainer.preference().map(|_| Preference::new(&self.config.finetune));
        let base = match &preference {
            Some(_) if is_rounded => Some(self.exact_base(step)?),
            Some(_) => Some(last.clone().without_adapters()),
            None => None,
        };
        let preference = preference.as_ref().zip(base.as_ref());
        let Some(val) = self.full_loss(&last, preference)? else { return Ok(None) };
        drop(last);
        let best_of = |step: usize, val: &Mean| Best {
            step,
            val_loss: val.loss,
            val_accuracy: val.preferred.map(|it| it.accuracy),
        };
        let mut best = best_of(step, &val);
        if let Some(earlier) = self.state.best.filter(|best| best.step != step) {
            let model = self.saved_model(earlier.step)?;
            let Some(of_earlier) = self.full_loss(&model, preference)? else { return Ok(None) };
            if of_earlier.loss <= val.loss {
                best = best_of(earlier.step, &of_earlier);
            }
        }
        if let Some(files) = &self.files {
            files.set_best(best.step)?; // the whole split may rank the checkpoints differently than the estimates
        }
        Ok(Some((val, best)))
    }

    /// The model of a checkpoint, which rank 0 reads.
    fn saved_model(&self, step: usize) -> Result<Gpt, TrainError> {
        self.model_of(|files| Some(files.run.checkpoint(step)))
    }

    /// The base of the adapters in a checkpoint, as it is.
    fn exact_base(&self, step: usize) -> Result<Gpt, TrainError> {
        self.model_of(|files| self.state.base(&files.run.checkpoint(step)))
    }

    fn model_of(&self, checkpoint: impl FnOnce(&Files) -> Option<PathBuf>) -> Result<Gpt, TrainError> {
        let vocab_size = self.corpus.tokenizer.vocab_size();
        let mut model = Gpt::zeros(&self.config.model, vocab_size, &self.device.device);
        if let Some(dir) = self.files.as_ref().and_then(checkpoint) {
            model = Checkpoint::load_model(&dir, model)?;
        }
        self.trainer.ranks().check_peers_alive()?;
        Ok(weights_of_first(self.trainer.ranks(), model))
    }

    /// The mean over the whole validation split, computed together with the other ranks; `None` if interrupted.
    fn full_loss(&mut self, model: &Gpt, preference: Option<(&Preference, &Gpt)>) -> Result<Option<Mean>, TrainError> {
        let ranks = self.trainer.ranks().clone();
        ranks.check_peers_alive()?;
        let Config { model: shape, train, .. } = &self.config;
        let batches = self.corpus.val_batches().spread_pairs(shape.context_length, train.batch_size, usize::MAX);
        let of = evaluate::n_batches(&batches);
        let (observer, interrupter) = (&mut *self.observer, &self.interrupter);
        let mean = Measure { model, preference, precision: MatmulPrecision::F32 }.mean(batches, &ranks, |done| {
            observer.observe(&Event::FinalEvaluation { done, of });
            !interrupter.should_stop()
        });
        self.corpus.val.check()?;
        mean.transpose().map(|mean| self.finite_mean(mean)).transpose()
    }
}

/// The mean loss over a text, of preferences theirs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mean {
    pub(super) loss: f64,
    pub(super) preferred: Option<Preferred>,
}

/// A model, and the loss of its preferences with their base.
struct Measure<'a> {
    model: &'a Gpt,
    preference: Option<(&'a Preference, &'a Gpt)>,
    precision: MatmulPrecision,
}

impl Measure<'_> {
    /// The mean over all batches, which are divided among the ranks; `None` if `goes_on` said no.
    fn mean(
        &self,
        batches: impl Iterator<Item = Batch>,
        ranks: &Ranks,
        goes_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<Mean>, TensorReadError> {
        let Self { model, preference, precision } = *self;
        let Some((preference, base)) = preference else {
            let loss = evaluate::mean_while(model, batches, precision, ranks, goes_on)?;
            return Ok(loss.map(|loss| Mean { loss: loss.nats_per_token, preferred: None }));
        };
        let measure = |batch: Batch, goes_on: &mut dyn FnMut() -> bool| {
            preference.measure(model, base, &batch, precision, goes_on)
        };
        let means = evaluate::means_while(batches, |batch| batch.batch_size / 2, measure, ranks, goes_on)?;
        Ok(means.map(|(_, [loss, accuracy, margin])| Mean { loss, preferred: Some(Preferred { accuracy, margin }) }))
    }
}
