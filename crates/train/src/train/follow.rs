//! The ranks other than 0, which train under the orders of rank 0 and write no files.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::evaluate;
use super::order::Order;
use super::share::weights_of_first;
use super::skip::{Skipped, Tolerance};
use super::{TrainError, Trainer};
use crate::config::{Config, SyncKind};
use crate::data::{Corpus, DataError, OpenOptions, Split};
use crate::distributed::Ranks;
use crate::optimizer::StateError;
use crate::run::{Checkpoint, TrainState};
use tinderbox_model::device::OpenDevice;
use tinderbox_model::tokenizer::Tokenizer;
use tinderbox_model::{Gpt, LazyTensor};

/// All data that a rank other than 0 needs to take part in a run, except the text.
#[derive(Debug)]
pub struct Assignment {
    /// The run's config, as resolved by rank 0.
    pub config: Config,
    tokenizer: Tokenizer,
    checkpoint: Checkpoint,
}

/// The header of an assignment message; the tensors follow it.
#[derive(Serialize, Deserialize)]
struct Head {
    config: String,
    tokenizer: String,
    state: TrainState,
    /// Names and shapes of the weights and of the optimizer's running means.
    tensors: [Vec<(String, Vec<usize>)>; 2],
}

/// The source named in error messages about data from rank 0.
const ORIGIN: &str = "rank 0";

impl Assignment {
    /// Sends every other rank the data it needs to make the same steps as this rank.
    pub(super) fn give(
        ranks: &Ranks,
        config: &Config,
        tokenizer: &Tokenizer,
        checkpoint: Checkpoint,
    ) -> Result<(), TrainError> {
        let Checkpoint { model, optimizer, state } = checkpoint;
        let shapes = |tensors: &BTreeMap<String, LazyTensor>| {
            tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec())).collect()
        };
        let tensors = [shapes(&model), shapes(&optimizer)];
        let head = Head { config: config.to_toml(), tokenizer: tokenizer.to_json(), state, tensors };
        let _turn = Order::Begin.give(ranks);
        ranks.broadcast_text(&serde_json::to_string(&head).expect("plain data"));
        for (key, tensor) in model.into_iter().chain(optimizer) {
            let unreadable = |error: std::io::Error| {
                let source = StateError::Unreadable { key, reason: error.to_string() };
                TrainError::OptimizerState { path: ORIGIN.into(), source }
            };
            let mut read = tensor.read().map_err(unreadable)?;
            ranks.broadcast_numbers(&mut read.values);
        }
        Ok(())
    }

    /// Waits until rank 0 has prepared the run, and receives the assignment; `None` if the run ends before its first
    /// step.
    ///
    /// # Errors
    /// If the ranks run different versions of the program.
    pub fn receive(ranks: &Ranks) -> Result<Option<Self>, TrainError> {
        if Order::wait(ranks) != Order::Begin {
            return Ok(None);
        }
        let head = ranks.broadcast_text("");
        let Head { config, tokenizer, state, tensors } =
            serde_json::from_str(&head).map_err(|_| ranks.differs("version of the program"))?;
        let [model, optimizer] = tensors.map(|tensors| {
            let receive = |(name, shape): (String, Vec<usize>)| {
                let mut values = vec![0.0; shape.iter().product()];
                ranks.broadcast_numbers(&mut values);
                (name, LazyTensor::computed(shape, move |sink| sink(&values)))
            };
            tensors.into_iter().map(receive).collect()
        });
        Ok(Some(Self {
            config: Config::from_toml(&config, Path::new(ORIGIN), &[])?,
            tokenizer: Tokenizer::from_json(tokenizer, Path::new(ORIGIN)).map_err(DataError::Tokenizer)?,
            checkpoint: Checkpoint { model, optimizer, state },
        }))
    }

    /// Reads the text, and follows the orders of rank 0 until it ends the run. `on_skipped` is called with the number
    /// of each step that did not change the weights, if each rank makes local steps.
    ///
    /// # Errors
    /// If the text cannot be read or differs from that of rank 0, if the device fails, or if a loss is not finite in a
    /// local step of this rank.
    pub fn work(
        self,
        device: &OpenDevice,
        ranks: &Ranks,
        on_skipped: impl FnMut(usize, &Skipped),
    ) -> Result<(), TrainError> {
        let Self { config, tokenizer, checkpoint } = self;
        let options = OpenOptions::earlier(&tokenizer, &checkpoint.state.text_sha256);
        let corpus = Corpus::open(&config, options).map_err(|error| match error {
            DataError::OtherText { .. } => TrainError::from(ranks.differs("text")),
            other => other.into(),
        })?;
        let model = Gpt::zeros(&config.model, corpus.tokenizer.vocab_size(), &device.device.clone().autodiff());
        let step = checkpoint.state.step;
        let mut trainer = Trainer::new(model, &config, corpus.train.clone());
        trainer.restore(checkpoint, Path::new(ORIGIN))?;
        trainer.share_with(ranks);
        ranks.meet(); // other ranks may take long to read the text
        ranks.limit_waiting(config.distributed.time_limit());
        let tolerance = Tolerance::new(&config.train);
        Follower { config, corpus, trainer, ranks, step, tolerance, on_skipped }.work()
    }
}

/// The state of a rank other than 0 during training.
struct Follower<'a, F> {
    config: Config,
    corpus: Corpus,
    trainer: Trainer,
    ranks: &'a Ranks,
    step: usize,
    tolerance: Tolerance,
    on_skipped: F,
}

/// The end of the error message when a rank other than 0 ends the run.
const KEPT: &str = "what rank 0 saved is from before";

impl<F: FnMut(usize, &Skipped)> Follower<'_, F> {
    fn work(mut self) -> Result<(), TrainError> {
        loop {
            match Order::wait(self.ranks) {
                Order::Step => self.step()?,
                Order::Average => self.trainer.average(),
                Order::AverageOptimizer => self.trainer.average_optimizer(),
                Order::EstimateVal => self.estimate(&self.corpus.val)?,
                Order::EstimateTrain => self.estimate(&self.corpus.train)?,
                Order::Whole => self.evaluate_fully(&self.trainer.evaluated())?,
                Order::WholeOfBest => {
                    let best = weights_of_first(self.ranks, self.trainer.evaluated());
                    self.evaluate_fully(&best)?;
                }
                Order::Begin | Order::Wait | Order::End => break,
            }
        }
        self.ranks.limit_waiting(None); // rank 0 may write a long report
        Ok(())
    }

    fn step(&mut self) -> Result<(), TrainError> {
        self.step += 1;
        let result = self.trainer.step();
        let skipped = result.skipped().cloned();
        let [loss, gradient_norm] = result.read().map_err(|message| self.device_failed(message))?;
        self.corpus.train.check()?;
        // If gradients are summed over the ranks, rank 0 has the same numbers and decides.
        if self.config.distributed.sync == SyncKind::Local {
            if let Some((what, value)) = self.tolerance.fault(skipped.as_ref(), loss, gradient_norm) {
                let norms = skipped.map_or_else(|| self.trainer.weight_norms(), |skipped| skipped.norms);
                let kept = KEPT.to_owned();
                return Err(TrainError::not_finite(&self.config, self.step, what, value.into(), kept, norms));
            }
            if let Some(skipped) = skipped {
                (self.on_skipped)(self.step, &skipped);
            }
        }
        Ok(())
    }

    fn estimate(&self, split: &Split) -> Result<(), TrainError> {
        let (model, train) = (self.trainer.evaluated(), &self.config.train);
        let precision = train.matmul_precision.on(&model.device());
        let (batch_size, n_batches) = (train.batch_size, train.eval_batches);
        evaluate::estimate_unless(&model, split, batch_size, n_batches, precision, self.ranks, || false)
            .map_err(|error| self.device_failed(error.to_string()))?;
        Ok(split.check()?)
    }

    fn evaluate_fully(&self, model: &Gpt) -> Result<(), TrainError> {
        let split = &self.corpus.val;
        evaluate::full_unless(model, split, self.config.train.batch_size, self.ranks, || false)
            .map_err(|error| self.device_failed(error.to_string()))?;
        Ok(split.check()?)
    }

    fn device_failed(&self, message: String) -> TrainError {
        TrainError::Device { step: self.step, message, kept: KEPT.to_owned() }
    }
}
