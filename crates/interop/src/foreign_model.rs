//! An opened model of another project: a Hugging Face folder or a GGUF file.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::convert::{self, Tensors};
use super::layout::{ForeignTensor, Naming, layout};
use super::{Family, InteropError, gguf, hf};
use tinderbox_model::config::{GenerateConfig, ModelConfig};

/// A model of another project. Its tensors are read on demand.
#[derive(Clone, Debug)]
pub struct ForeignModel {
    /// The path of the folder or file.
    pub path: PathBuf,
    /// The family that its settings name.
    pub family: &'static Family,
    /// The naming scheme of its tensors.
    pub naming: Naming,
    /// Our config of the model. `vocab_size` is always set: the number of token embedding rows.
    pub config: ModelConfig,
    /// Its tokenizer.
    pub tokenizer: TokenizerFiles,
    /// The separator of documents in its training text; only models of Tinderbox have one.
    pub document_separator: Option<String>,
    /// Its settings for generation, with defaults for those that its files lack. `stop_token_ids` may contain the
    /// tokenizer's end-of-text token.
    pub generate: GenerateConfig,
    /// Its tensors, by name, with shapes as in PyTorch. Buffers that are not parameters are left out.
    pub tensors: Tensors,
}

/// The files of a tokenizer, as copied into a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerFiles {
    /// The content of `tokenizer.json`.
    pub json: String,
    /// The content of `tokenizer_config.json`, its chat template included.
    pub config: Option<String>,
}

impl TokenizerFiles {
    /// Whether it has a chat template.
    pub(crate) fn has_chat_template(&self) -> bool {
        let config = self.config.as_deref().and_then(|json| serde_json::from_str::<Value>(json).ok());
        config.is_some_and(|config| !config["chat_template"].is_null())
    }
}

impl ForeignModel {
    /// Opens a Hugging Face folder or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, InteropError> {
        match path.metadata() {
            Ok(metadata) if metadata.is_dir() => hf::open(path),
            Ok(_) => gguf::open(path),
            Err(_) => Err(InteropError::NotFound(path.to_owned())),
        }
    }

    /// The number of token embedding rows.
    pub fn vocab_size(&self) -> usize {
        self.config.vocab_size.expect("an opened model has a vocab_size")
    }

    /// Its tensors and the columns of our parameters that they hold.
    pub fn layout(&self) -> Vec<ForeignTensor> {
        layout(self.family, self.naming, &self.config, self.vocab_size())
    }

    /// Its tensors as our parameters.
    pub fn parameters(&self) -> Result<Tensors, InteropError> {
        let misfit = |problems| InteropError::Tensors { path: self.path.clone(), problems };
        let (n_layers, n_tensors) = (self.config.n_layers, self.tensors.len());
        if n_layers > n_tensors {
            // Avoids listing millions of names.
            return Err(misfit(vec![format!(
                "there are {n_tensors} tensors, which are too few for {n_layers} layers"
            )]));
        }
        convert::to_ours(&self.layout(), &self.tensors).map_err(misfit)
    }
}
