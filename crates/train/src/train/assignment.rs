//! The ranks other than 0: they make the same steps as rank 0 and write no files.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::prepare::{Prepared, with_adapters};
use super::training::Training;
use super::{Event, Interrupter, Observer, Skipped, TrainError, Trainer, to_the_end};
use crate::config::Config;
use crate::data::{Corpus, DataError, OpenOptions};
use crate::distributed::{DistributedError, Ranks};
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
    resumed: bool,
}

/// The header of an assignment message; the tensors follow it.
#[derive(Serialize, Deserialize)]
struct Head {
    config: String,
    tokenizer: String,
    /// The companion of the tokenizer, whose chat template renders records.
    tokenizer_config: Option<String>,
    state: TrainState,
    resumed: bool,
    /// Names and shapes of the weights and of the optimizer's running means.
    tensors: [Vec<(String, Vec<usize>)>; 2],
}

/// The source named in error messages about data from rank 0.
const ORIGIN: &str = "rank 0";

impl Assignment {
    /// Sends every other rank the data it needs to make the same steps as this rank, and divides the coming steps among
    /// all ranks.
    pub(super) fn broadcast(ranks: &Ranks, prepared: &mut Prepared) -> Result<(), TrainError> {
        if ranks.is_alone() {
            return Ok(());
        }
        let Prepared { config, corpus, trainer, state, resumed, .. } = prepared;
        trainer.join(ranks);
        let Checkpoint { model, optimizer, state } = trainer.checkpoint(state.clone());
        let shapes = |tensors: &BTreeMap<String, LazyTensor>| {
            tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec())).collect()
        };
        let tensors = [shapes(&model), shapes(&optimizer)];
        let (config, tokenizer) = (config.to_toml(), corpus.tokenizer.to_json());
        let tokenizer_config = corpus.tokenizer.config_json().map(str::to_owned);
        let head = Head { config, tokenizer, tokenizer_config, state, resumed: *resumed, tensors };
        ranks.check_peers_alive()?;
        ranks.broadcast_text(&serde_json::to_string(&head).expect("plain data serializes"));
        for (key, tensor) in model.into_iter().chain(optimizer) {
            let unreadable = |error: std::io::Error| {
                let source = StateError::Unreadable { key, reason: error.to_string() };
                TrainError::OptimizerState { path: ORIGIN.into(), source }
            };
            let mut read = tensor.read().map_err(unreadable)?;
            ranks.broadcast_numbers(&mut read.values);
        }
        start_together(ranks, &prepared.config);
        Ok(())
    }

    /// Waits until rank 0 has prepared the run, and receives the assignment; `None` if the run ends before its first
    /// step.
    pub fn receive(ranks: &Ranks) -> Result<Option<Self>, TrainError> {
        if ranks.check_peers_alive().is_err() {
            return Ok(None);
        }
        let head = ranks.broadcast_text("");
        let Head { config, tokenizer, tokenizer_config, state, resumed, tensors } =
            serde_json::from_str(&head).map_err(|_| ranks.differs("version of the program"))?;
        let [model, optimizer] = tensors.map(|tensors| {
            let receive = |(name, shape): (String, Vec<usize>)| {
                let mut values = vec![0.0; shape.iter().product()];
                ranks.broadcast_numbers(&mut values);
                (name, LazyTensor::computed(shape, move |sink| sink(&values)))
            };
            tensors.into_iter().map(receive).collect()
        });
        let tokenizer =
            Tokenizer::from_json(tokenizer, Path::new(ORIGIN)).and_then(|tokenizer| match tokenizer_config {
                Some(json) => tokenizer.with_config(json, Path::new(ORIGIN)),
                None => Ok(tokenizer),
            });
        Ok(Some(Self {
            config: Config::from_toml(&config, Path::new(ORIGIN), &[])?,
            tokenizer: tokenizer.map_err(DataError::Tokenizer)?,
            checkpoint: Checkpoint { model, optimizer, state },
            resumed,
        }))
    }

    /// Reads the text, and trains together with rank 0 until it ends the run. `on_skipped` is called with the number of
    /// each step that did not change the weights, if each rank makes local steps.
    pub fn work(
        self,
        device: OpenDevice,
        ranks: &Ranks,
        on_skipped: impl FnMut(usize, &Skipped) + Send,
    ) -> Result<(), TrainError> {
        let Self { config, tokenizer, checkpoint, resumed } = self;
        let options = OpenOptions::earlier(&tokenizer, &checkpoint.state.text_sha256);
        let corpus = Corpus::open(&config, options).map_err(|error| match error {
            DataError::OtherText { .. } => TrainError::from(ranks.differs("text")),
            other => other.into(),
        })?;
        let model = Gpt::zeros(&config.model, corpus.tokenizer.vocab_size(), &device.device.clone().autodiff());
        let model = with_adapters(model, &config);
        let state = checkpoint.state.clone();
        let mut trainer = Trainer::new(model, &config, corpus.train_batches());
        trainer.restore(checkpoint, Path::new(ORIGIN))?;
        trainer.join(ranks);
        start_together(ranks, &config);
        let prepared = Prepared { resumed, ..Prepared::new(config, corpus, trainer, state) };
        let mut observer = OnSkipped(on_skipped);
        let run = Training::start(prepared, device, &mut observer, &Interrupter::new(), Instant::now());
        let done = run.and_then(to_the_end);
        ranks.limit_waiting(None); // rank 0 may write a long report
        match done {
            Ok(_) | Err(TrainError::Distributed(DistributedError::Ended)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Waits for ranks that take longer to read the text, and limits all later waits.
fn start_together(ranks: &Ranks, config: &Config) {
    ranks.barrier();
    ranks.limit_waiting(config.distributed.time_limit());
}

/// Observes skipped steps alone: rank 0 reports everything else.
struct OnSkipped<F>(F);

impl<F: FnMut(usize, &Skipped) + Send> Observer for OnSkipped<F> {
    fn observe(&mut self, event: &Event<'_>) {
        if let Event::Skipped { step, skipped } = event {
            (self.0)(*step, skipped);
        }
    }
}
