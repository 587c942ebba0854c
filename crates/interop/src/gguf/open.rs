//! Opens a GGUF file as a model of another project.

use std::collections::BTreeMap;
use std::path::Path;

use super::TensorType;
use super::read::Gguf;
use super::vocab::Vocab;
use super::{rope_freqs, settings};
use crate::{ForeignModel, InteropError, Naming};
use tinderbox_model::config::GenerateConfig;

/// Opens the file at `path`. Its tensors are read on demand.
pub fn open(path: &Path) -> Result<ForeignModel, InteropError> {
    let Gguf { metadata, mut tensors } = Gguf::read(path)?;
    if let Some(n @ 2..) = metadata.count("split.count")? {
        return Err(InteropError::NotAModel {
            path: path.to_owned(),
            reason: format!("it is one of {n} parts of a model"),
            hint: "join them with llama.cpp: llama-gguf-split --merge FIRST-PART WHOLE.gguf".to_owned(),
        });
    }
    if metadata.string(settings::TYPE)? == Some(settings::ADAPTER) {
        return Err(InteropError::adapters_alone(path, metadata.string("general.base_model.0.name")?));
    }
    let (family, config) = settings::read(&metadata, &tensors)?;
    let document_separator = settings::document_separator(&metadata)?;
    let vocab = Vocab::read(&metadata)?;
    let tokenizer = vocab.to_tokenizer(&metadata)?;
    let mut generate = GenerateConfig { stop_token_ids: vocab.ends, ..GenerateConfig::default() };
    if tokenizer.has_chat_template() {
        generate.temperature = 0.0; // as for a folder that does not say how to sample
    }
    // These are part of the config.
    rope_freqs::LONGROPE.into_iter().chain([rope_freqs::TENSOR]).for_each(|name| drop(tensors.remove(name)));
    let tensors = tensors.into_iter().map(|(name, tensor)| (name, tensor.numbers)).collect();
    let path = path.to_owned();
    Ok(ForeignModel { path, family, naming: Naming::Gguf, config, tokenizer, document_separator, generate, tensors })
}

/// The number types of the file at `path`, by tensor.
pub(crate) fn tensor_types(path: &Path) -> Result<BTreeMap<String, TensorType>, InteropError> {
    Ok(Gguf::read(path)?.tensors.into_iter().map(|(name, tensor)| (name, tensor.kind)).collect())
}
