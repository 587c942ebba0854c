//! A run's model, opened for export. Its tensors are read on demand.

use std::path::{Path, PathBuf};

use super::convert::{self, Tensors};
use super::layout::{Naming, layout};
use super::{Family, InteropError};
use tinderbox_model::config::ModelConfig;
use tinderbox_model::tokenizer::Tokenizer;
use tinderbox_train::config::Config;
use tinderbox_train::run::{Checkpoint, RunDir, TrainState, locate};

/// A run's model to be exported.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The run.
    pub run: RunDir,
    /// The directory of the checkpoint.
    pub checkpoint: PathBuf,
    /// The training state of the checkpoint.
    pub state: TrainState,
    /// The run's config.
    pub config: Config,
    /// The family of the model in other projects.
    pub family: &'static Family,
    /// The run's tokenizer, padded to the number of the model's embedding rows.
    pub tokenizer: Tokenizer,
    parameters: Tensors,
}

impl Outgoing {
    /// Opens the best checkpoint of a run directory, its `best` or `last`, or one of its `checkpoints/step-N`.
    pub fn open(run: &Path) -> Result<Self, InteropError> {
        let located = locate(run)?;
        let config = located.run.config()?;
        let checkpoint = Checkpoint::read(&located.checkpoint)?;
        let (parameters, state) = (checkpoint.model, checkpoint.state);
        let family = Family::of_run(&config.model, &state)?;
        let tokenizer = located.run.tokenizer_of_model(&config)?;
        let (run, checkpoint) = (located.run, located.checkpoint);
        Ok(Self { run, checkpoint, state, config, family, tokenizer, parameters })
    }

    /// The config of the model.
    pub fn model(&self) -> &ModelConfig {
        &self.config.model
    }

    /// The number of token embedding rows.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// The number of parameters.
    pub fn n_parameters(&self) -> usize {
        self.parameters.values().map(tinderbox_model::LazyTensor::n_numbers).sum()
    }

    /// Its parameters as tensors of another project.
    pub fn tensors(&self, naming: Naming) -> Result<Tensors, InteropError> {
        let layout = layout(self.family, naming, self.model(), self.vocab_size());
        convert::to_theirs(&layout, &self.parameters)
            .map_err(|problems| InteropError::Tensors { path: self.checkpoint.clone(), problems })
    }

    /// The name of the run's folder.
    pub fn name(&self) -> String {
        let root = self.run.root();
        let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        root.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}
