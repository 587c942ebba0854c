//! Models in the format of the Hugging Face hub and the transformers library: a folder with a `config.json`,
//! safetensors files and a `tokenizer.json` or older tokenizer files.

pub(super) mod adapter;
mod card;
mod config;
mod config_json;
mod export;
pub(super) mod folder;
mod generation;
mod key;
mod manifest;
mod rope;
mod sentencepiece;
mod tokenizer;
mod weights;

use std::path::Path;

pub use adapter::export_adapter;
pub(crate) use adapter::{is_adapter_folder, read_adapters};
pub(crate) use config_json::ConfigJson;
pub use export::export;
use folder::Folder;
pub(crate) use key::Key;
pub(crate) use rope::read_rope_by_type;

use super::error::cannot_read;
use super::layout::Naming;
use super::{ForeignModel, InteropError};

pub(super) const CONFIG: &str = "config.json";
/// The settings for generation: stop tokens and sampling.
pub(super) const GENERATION: &str = "generation_config.json";
/// Weights as Python pickles, which may run any code.
pub(super) const PICKLES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
pub(super) const WEIGHTS: &str = "model.safetensors";
/// The index of a model whose weights are in several files.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Opens a folder. The values of its tensors are read on demand.
pub(super) fn open(path: &Path) -> Result<ForeignModel, InteropError> {
    let folder = Folder::open(path)?;
    adapter::refuse_adapters(&folder)?;
    let Some(map) = folder.json(CONFIG)? else {
        let entries = path.read_dir().map_err(cannot_read(path))?.flatten();
        let files = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "gguf"));
        let hint = match files.min() {
            Some(file) => {
                format!("name a .gguf file in it, such as {}", file.file_name().unwrap_or_default().display())
            }
            None => {
                "name a folder that transformers' save_pretrained wrote, or one from the Hugging Face hub".to_owned()
            }
        };
        let reason = "it has no config.json".to_owned();
        return Err(InteropError::NotAModel { path: path.to_owned(), reason, hint });
    };
    let (family, config) =
        config::read(&map).map_err(|problems| InteropError::Unsupported { path: path.join(CONFIG), problems })?;
    let tokenizer = tokenizer::read(&folder, &map)?;
    let tensors = weights::open(&folder, family, config.tie_embeddings)?;
    let document_separator = config::document_separator(&map);
    let generation = folder.json(GENERATION)?.unwrap_or_default();
    let mut generate = generation::read(&map, &generation)
        .map_err(|problems| InteropError::Unsupported { path: path.join(GENERATION), problems })?;
    // As in transformers; a model that only continues texts would repeat itself.
    if tokenizer.has_chat_template() && !generation.contains_key("do_sample") {
        generate.temperature = 0.0;
    }
    let path = path.to_owned();
    Ok(ForeignModel { path, family, naming: Naming::Hf, config, tokenizer, document_separator, generate, tensors })
}

/// The command that converts the model `from`, a folder or a name, to files that can be read here.
pub(super) fn conversion(from: &str) -> String {
    format!(
        "convert it with transformers, and import the new folder: python -c \"import sys, transformers as t; \
         [c.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) for c in (t.AutoModelForCausalLM, \
         t.AutoTokenizer)]\" {from} NEW_FOLDER"
    )
}

/// The content of a JSON file, whose keys are sorted.
fn pretty(value: &serde_json::Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    serde_json::to_string_pretty(&value).expect("the values are plain data") + "\n"
}
