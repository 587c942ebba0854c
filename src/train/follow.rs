//! The processes that train with rank 0 and do as it orders. They write nothing.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{TrainError, Trainer};
use crate::config::Config;
use crate::data::{Corpus, DataError, OpenOptions};
use crate::device::OpenDevice;
use crate::distributed::Ranks;
use crate::model::{Gpt, LazyTensor};
use crate::optimizer::StateError;
use crate::run::{Checkpoint, TrainState};
use crate::tokenizer::Tokenizer;

/// The next task that rank 0 gives the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Take an [`Assignment`].
    Begin,
    /// Make a step.
    Step,
    /// Average the weights, if each rank made steps by itself.
    Average,
    /// Stop: the run ends, however it does.
    End,
}

impl Order {
    const ALL: [Self; 4] = [Self::Begin, Self::Step, Self::Average, Self::End];

    /// Tells the other ranks, which wait for it.
    pub(super) fn give(self, ranks: &Ranks) {
        ranks.broadcast(&mut [self as u8]);
    }

    /// Waits for it.
    fn wait(ranks: &Ranks) -> Self {
        let mut order = [0];
        ranks.broadcast(&mut order);
        Self::ALL[usize::from(order[0])]
    }
}

/// The part of a rank but the first in a run: everything that it needs, short of the text.
#[derive(Debug)]
pub struct Assignment {
    /// The config of the run, as rank 0 resolved it.
    pub config: Config,
    tokenizer: Tokenizer,
    checkpoint: Checkpoint,
}

/// The head of an assignment, which tensors follow.
#[derive(Serialize, Deserialize)]
struct Head {
    config: String,
    tokenizer: String,
    state: TrainState,
    /// Name and shape of the weights and of the optimizer's running means.
    tensors: [Vec<(String, Vec<usize>)>; 2],
}

/// The place of what came from rank 0, in messages.
const ORIGIN: &str = "rank 0";

impl Assignment {
    /// Gives every other rank what it needs to make the same steps as this one.
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
        Order::Begin.give(ranks);
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

    /// Waits until rank 0 has prepared the run; `None` if it ends before its first step.
    ///
    /// # Errors
    /// If the programs of the ranks do not fit each other.
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

    /// Reads the text, and makes steps until rank 0 ends the run.
    ///
    /// # Errors
    /// If the text cannot be read or is another than that of rank 0, or the device fails.
    pub fn work(self, device: &OpenDevice, ranks: &Ranks) -> Result<(), TrainError> {
        let Self { config, tokenizer, checkpoint } = self;
        let options = OpenOptions::earlier(&tokenizer, &checkpoint.state.text_sha256);
        let Corpus { train: text, tokenizer, .. } = Corpus::open(&config, options).map_err(|error| match error {
            DataError::OtherText { .. } => TrainError::from(ranks.differs("text")),
            other => other.into(),
        })?;
        let model = Gpt::zeros(&config.model, tokenizer.vocab_size(), &device.device.clone().autodiff());
        let mut step = checkpoint.state.step;
        let mut trainer = Trainer::new(model, &config, text.clone());
        trainer.restore(checkpoint, Path::new(ORIGIN))?;
        trainer.share_with(ranks);
        loop {
            match Order::wait(ranks) {
                Order::Step => {
                    step += 1;
                    let kept = "what rank 0 saved is from before".to_owned();
                    let failed = |message| TrainError::Device { step, message, kept };
                    trainer.step().wait().map_err(failed)?;
                    text.check()?;
                }
                Order::Average => trainer.average(),
                Order::Begin | Order::End => return Ok(()),
            }
        }
    }
}
