//! The measurements due after some steps: losses of both splits, attention heads and a sample; and the whole validation
//! split at the end.

use burn::tensor::TensorReadError;

use super::Training;
use crate::config::{Config, GenerateConfig, TrainConfig};
use crate::data::{Batch, BatchSource, batch};
use crate::run::{Best, Checkpoint, Pending};
use crate::train::TrainError;
use crate::train::evaluate::{self, Loss};
use crate::train::observer::{Evaluation, Event};
use crate::train::parallel::weights_of_first;
use tinderbox_inspect::{self as inspect, ScoredHeads};
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
        if self.state.started_from.is_some() {
            // This evaluation is for comparison only: the best checkpoint must have weights trained by this run.
            let Some(inherited) = self.estimate_losses()? else { return Ok(false) };
            self.write(|logs| logs.evaluated(&inherited, 0))?;
            self.observer.observe(&Event::Evaluated(&inherited));
        }
        self.measure_heads()?;
        Ok(true)
    }

    /// Whether the latest model counts as the best: the validation loss of preferences is that of the chosen answers,
    /// which does not rank models.
    fn is_latest_best(&self) -> bool {
        self.corpus.train_batches().are_preferences()
    }

    /// Estimates the losses on both splits, and measures the attention heads if configured; false if interrupted.
    fn evaluate(&mut self) -> Result<bool, TrainError> {
        self.observer.observe(&Event::Evaluating);
        let Some(mut evaluation) = self.estimate_losses()? else { return Ok(false) };
        let Evaluation { step, val_loss, .. } = evaluation;
        self.evaluated_step = Some(step);
        if self.is_latest_best() || self.state.best.is_none_or(|best| val_loss < best.val_loss) {
            self.state.best = Some(Best { step, val_loss });
            self.state.evaluations_without_improvement = 0;
            evaluation.is_best = true;
        } else {
            self.state.evaluations_without_improvement += 1;
        }
        let tokens = self.tokens();
        self.write(|logs| logs.evaluated(&evaluation, tokens))?;
        self.observer.observe(&Event::Evaluated(&evaluation));
        self.measure_heads()?;
        Ok(true)
    }

    /// Estimates the losses on both splits; `None` if interrupted.
    fn estimate_losses(&self) -> Result<Option<Evaluation>, TrainError> {
        let model = self.trainer.evaluated();
        let TrainConfig { eval_batches, batch_size, matmul_precision, .. } = self.config.train;
        let precision = matmul_precision.on(&self.device.device);
        let splits = [self.corpus.val_batches(), self.corpus.train_batches()];
        let context_length = self.config.model.context_length;
        let losses = splits
            .each_ref()
            .map(|split| self.mean_loss(&model, split.spread(context_length, batch_size, eval_batches), precision));
        splits.iter().try_for_each(BatchSource::check)?;
        let [Some(val_loss), Some(train_loss)] = losses else { return Ok(None) };
        let (val_loss, train_loss) = (self.finite(val_loss)?, self.finite(train_loss)?);
        let val_bits_per_byte = evaluate::bits_per_byte(val_loss, self.corpus.val_tokens_per_byte());
        Ok(Some(Evaluation { step: self.trainer.steps(), train_loss, val_loss, val_bits_per_byte, is_best: false }))
    }

    /// The mean loss over all batches, which are divided among the ranks; `None` if interrupted.
    fn mean_loss(
        &self,
        model: &Gpt,
        batches: impl Iterator<Item = Batch>,
        precision: MatmulPrecision,
    ) -> Option<Result<Loss, TensorReadError>> {
        let goes_on = |_| !self.interrupter.should_stop();
        evaluate::mean_while(model, batches, precision, self.trainer.ranks(), goes_on).transpose()
    }

    /// Checks that an evaluated loss is finite, which checks the last update too: the loss of a step is computed with
    /// the weights before the update. All ranks have the same loss, and rank 0 reports it.
    pub(super) fn finite(&self, loss: Result<Loss, TensorReadError>) -> Result<f64, TrainError> {
        let loss = loss.map_err(|error| self.device_failed(&error))?.nats_per_token;
        match loss.is_finite() || !self.trainer.ranks().is_first() {
            true => Ok(loss),
            false => Err(self.not_finite(self.trainer.steps(), "evaluated loss", loss, self.trainer.weight_norms())),
        }
    }

    fn measure_heads(&mut self) -> Result<(), TrainError> {
        if !self.config.train.head_metrics {
            return Ok(());
        }
        self.on_first(|run| {
            let step = run.trainer.steps();
            let model = run.trainer.evaluated();
            let windows = batch::spread_tokens(&run.corpus.val, model.config().context_length, inspect::N_WINDOWS)?;
            let heads = ScoredHeads::measure(&model, &windows).map_err(|source| TrainError::Heads {
                step,
                source: Box::new(source),
                kept: run.kept(),
            })?;
            run.write(|logs| logs.heads(step, &heads))
        })
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
    pub(super) fn evaluate_fully(&mut self) -> Result<Option<(f64, Best)>, TrainError> {
        let step = self.trainer.steps();
        // Adapters are used with the exact weights of their base.
        let last = match self.config.finetune.base_weights.precision() {
            Some(_) => self.saved_model(step)?,
            None => self.trainer.evaluated(),
        };
        let Some(val_loss) = self.full_loss(&last)? else { return Ok(None) };
        drop(last);
        let mut best = Best { step, val_loss };
        let is_latest_best = self.is_latest_best();
        if let Some(earlier) = self.state.best.filter(|best| best.step != step && !is_latest_best) {
            let model = self.saved_model(earlier.step)?;
            let Some(loss) = self.full_loss(&model)? else { return Ok(None) };
            if loss <= val_loss {
                best = Best { step: earlier.step, val_loss: loss };
            }
        }
        if let Some(files) = &self.files {
            files.set_best(best.step)?; // the whole split may rank the checkpoints differently than the estimates
        }
        Ok(Some((val_loss, best)))
    }

    /// The model of a checkpoint, which rank 0 reads.
    fn saved_model(&self, step: usize) -> Result<Gpt, TrainError> {
        let vocab_size = self.corpus.tokenizer.vocab_size();
        let mut model = Gpt::zeros(&self.config.model, vocab_size, &self.device.device);
        if let Some(files) = &self.files {
            model = Checkpoint::load_model(&files.run.checkpoint(step), model)?;
        }
        self.trainer.ranks().check_peers_alive()?;
        Ok(weights_of_first(self.trainer.ranks(), model))
    }

    /// The loss over the whole validation split, computed together with the other ranks; `None` if interrupted.
    fn full_loss(&mut self, model: &Gpt) -> Result<Option<f64>, TrainError> {
        let ranks = self.trainer.ranks().clone();
        ranks.check_peers_alive()?;
        let Config { model: shape, train, .. } = &self.config;
        let batches = self.corpus.val_batches().windows(shape.context_length, train.batch_size);
        let of = evaluate::n_batches(&batches);
        let (observer, interrupter) = (&mut *self.observer, &self.interrupter);
        let loss = evaluate::mean_while(model, batches, MatmulPrecision::F32, &ranks, |done| {
            observer.observe(&Event::FinalEvaluation { done, of });
            !interrupter.should_stop()
        });
        self.corpus.val.check()?;
        loss.transpose().map(|loss| self.finite(loss)).transpose()
    }
}
