//! A trained model, opened for use.

use std::path::{Path, PathBuf};

use super::{Adapters, Checkpoint, RunError, locate};
use crate::config::Config;
use crate::data::{self, Corpus, DataError, OpenOptions, Split};
use tinderbox_model::Gpt;
use tinderbox_model::device::{self, DeviceError, DeviceSpec, OpenDevice};
use tinderbox_model::tokenizer::Tokenizer;

/// A trained model with everything that belongs to it.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct Trained {
    pub config: Config,
    pub tokenizer: Tokenizer,
    /// Its weights, without gradients.
    pub model: Gpt,
    /// The device that the weights are on.
    pub device: OpenDevice,
    /// The checkpoint that the weights come from.
    pub checkpoint: PathBuf,
    /// Its [checksum](Checkpoint::weights_checksum).
    pub checksum: Option<String>,
}

/// The reason why a trained model cannot be opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum OpenError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Data(#[from] DataError),
}

impl Trained {
    /// Opens a run directory (its best checkpoint), its `best` or `last`, or one of its `checkpoints/step-N`, on
    /// `device`, or on that of its config.
    pub fn open(run: &Path, device: Option<&DeviceSpec>) -> Result<Self, OpenError> {
        Self::open_adapted(run, device, None)
    }

    /// Like [`Trained::open`], with the changes of `adapters`.
    pub fn open_adapted(
        run: &Path,
        device: Option<&DeviceSpec>,
        adapters: Option<Adapters>,
    ) -> Result<Self, OpenError> {
        let located = locate(run)?;
        let config = located.run.config()?;
        let tokenizer = located.run.tokenizer_of_model(&config)?;
        let spec = device.copied().map_or_else(|| config.train.device.parse(), Ok)?;
        let opened = device::open(&spec)?;
        let checksum = Checkpoint::weights_checksum(&located.checkpoint);
        Checkpoint::check_shapes(&located.checkpoint, &config.model, tokenizer.vocab_size())?;
        let model = Gpt::zeros(&config.model, tokenizer.vocab_size(), &opened.device);
        let model = match adapters {
            None => Checkpoint::load_model(&located.checkpoint, model)?,
            Some(adapters) => Checkpoint::load_adapted(&located.checkpoint, model, adapters)?,
        };
        let checkpoint = located.checkpoint;
        Ok(Self { config, tokenizer, model, device: opened, checkpoint, checksum })
    }

    /// The text that the model was trained on, split as in training.
    pub fn corpus(&self) -> Result<Corpus, OpenError> {
        let state = Checkpoint::read_state(&self.checkpoint)?;
        Ok(Corpus::open(&self.config, OpenOptions::earlier(&self.tokenizer, &state.text_sha256))?)
    }

    /// The whole text at `path`, or the validation split of the text that the model was trained on.
    pub fn text_or_val(&self, path: Option<&Path>) -> Result<Split, OpenError> {
        match path {
            Some(path) => Ok(data::open_text(path, &self.config.data, &self.tokenizer)?),
            None => Ok(self.corpus()?.val),
        }
    }
}
