//! Writes a run's model as a folder that transformers opens: complete under its name, or not at all.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::config_out::{self, Ends};
use super::{CONFIG, card};
use crate::interop::error::cannot_write;
use crate::interop::{InteropError, Naming, Outgoing};
use crate::model::Dtype;
use crate::run::files::{partial_name, rename, sync_dir, write_synced};
use crate::run::layout::LOSS_SVG;
use crate::run::tensors::write_as;

/// Writes the folder `output`, in place of an old one if `overwrite`.
///
/// # Errors
/// If there is something already, or it cannot be written.
pub fn export(model: &Outgoing, dtype: Dtype, output: &Path, overwrite: bool) -> Result<(), InteropError> {
    check_new(output, overwrite)?;
    let partial = partial_name(output);
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(cannot_write(&partial))?; // a crash left it
    }
    let written = write_files(model, dtype, &partial).and_then(|()| {
        if output.exists() {
            fs::remove_dir_all(output).map_err(cannot_write(output))?; // the new one is whole, beside it
        }
        rename(&partial, output).map_err(cannot_write(output))
    });
    written.inspect_err(|_| {
        fs::remove_dir_all(&partial).ok(); // the first error is the one to report
    })
}

/// Checks, changing nothing, that a folder may be written at `output`: there is nothing, or a model and `overwrite`.
fn check_new(output: &Path, overwrite: bool) -> Result<(), InteropError> {
    let Ok(mut entries) = fs::read_dir(output) else {
        return match output.symlink_metadata() {
            Ok(_) => Err(InteropError::Exists(output.to_owned())),
            Err(_) => Ok(()),
        };
    };
    match entries.next() {
        None => Ok(()),
        Some(_) if !overwrite => Err(InteropError::Exists(output.to_owned())),
        Some(_) if output.join(CONFIG).is_file() => Ok(()),
        Some(_) => Err(InteropError::NotAnExport(output.to_owned())),
    }
}

fn write_files(model: &Outgoing, dtype: Dtype, folder: &Path) -> Result<(), InteropError> {
    fs::create_dir_all(folder).map_err(cannot_write(folder))?;
    let tokenizer_config = tokenizer_config(model);
    let ends = Ends { bos: token_id(model, &tokenizer_config, "bos_token"), eos: model.tokenizer.end_of_text() };
    let text = |name: &str, text: &str| {
        let path = folder.join(name);
        write_synced(&path, |file| file.write_all(text.as_bytes())).map_err(cannot_write(&path))
    };
    text(CONFIG, &pretty(&config_out::config(model, dtype, ends)))?;
    text("generation_config.json", &pretty(&config_out::generation(&model.config.generate, ends)))?;
    text("tokenizer.json", &model.tokenizer.to_json())?;
    text("tokenizer_config.json", &pretty(&Value::Object(tokenizer_config)))?;
    let curve = fs::read_to_string(model.run.join(LOSS_SVG)).ok();
    if let Some(curve) = &curve {
        text(LOSS_SVG, curve)?;
    }
    text("README.md", &card::card(model, curve.is_some().then_some(LOSS_SVG))?)?;
    let path = folder.join("model.safetensors");
    write_as(&path, &model.tensors(Naming::Hf)?, dtype).map_err(cannot_write(&path))?;
    sync_dir(folder).map_err(cannot_write(folder))
}

/// The run's own, if it has one, with what keeps our ids in `AutoTokenizer`.
fn tokenizer_config(model: &Outgoing) -> Map<String, Value> {
    let mut config = model.tokenizer_config.clone();
    let end = model.tokenizer.end_of_text().map(|id| model.tokenizer.piece(id));
    if let Some(end) = end {
        config.entry("eos_token").or_insert_with(|| end.into());
    }
    config.entry("model_max_length").or_insert_with(|| model.model().context_length.into());
    config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
    config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    config
}

/// The id of a special token that the tokenizer's config names.
fn token_id(model: &Outgoing, config: &Map<String, Value>, key: &str) -> Option<u32> {
    let token = config.get(key)?;
    let name = token.as_str().or_else(|| token.get("content")?.as_str())?;
    let added = model.tokenizer.added_tokens();
    added.into_iter().find(|(_, token)| token == name).map(|(id, _)| id)
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("plain data") + "\n"
}
