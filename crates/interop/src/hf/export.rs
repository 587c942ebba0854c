//! Writes a run's model as a folder that transformers can open, atomically.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::config::{self, BosEos};
use super::manifest::{self, MANIFEST};
use super::{CONFIG, GENERATION, WEIGHTS, card, generation, pretty};
use crate::error::{cannot_read, cannot_write};
use crate::{InteropError, Naming, Outgoing};
use tinderbox_model::Dtype;
use tinderbox_model::disk::{PartialDir, write_synced};
use tinderbox_model::tensor_file::write_as;
use tinderbox_train::run::layout::LOSS_SVG;

/// Writes the folder `output`, replacing an earlier export if `overwrite`.
pub fn export(model: &Outgoing, dtype: Dtype, output: &Path, overwrite: bool) -> Result<(), InteropError> {
    write_folder(output, overwrite, |folder, text| write_files(model, dtype, folder, text))
}

type WriteText<'a> = &'a dyn Fn(&str, &str) -> Result<(), InteropError>;

/// Writes a folder and its manifest, atomically.
pub(super) fn write_folder(
    output: &Path,
    overwrite: bool,
    write_files: impl FnOnce(&Path, WriteText<'_>) -> Result<(), InteropError>,
) -> Result<(), InteropError> {
    check_new(output, overwrite)?;
    let folder = PartialDir::create(output).map_err(cannot_write(output))?;
    let text = |name: &str, text: &str| {
        let path = folder.path().join(name);
        write_synced(&path, |file| file.write_all(text.as_bytes())).map_err(cannot_write(&path))
    };
    write_files(folder.path(), &text)?;
    manifest::write(folder.path()).map_err(cannot_write(folder.path()))?;
    // Checked again: the folder may have changed in the meantime.
    folder.replace(cannot_write(output), || check_new(output, overwrite))
}

/// Checks, without changing anything, that a folder may be written at `output`: nothing is there, or only an earlier
/// export, and `overwrite` is set.
fn check_new(output: &Path, overwrite: bool) -> Result<(), InteropError> {
    if output.file_name().is_none() {
        return Err(InteropError::NoName(output.to_owned())); // `.` or `..`, which cannot be renamed
    }
    let Ok(mut entries) = fs::read_dir(output) else {
        return match output.symlink_metadata() {
            Ok(_) => Err(InteropError::NotAnExport(output.to_owned())),
            Err(_) => Ok(()),
        };
    };
    if entries.next().is_none() {
        return Ok(());
    }
    if !output.join(CONFIG).is_file() && !output.join(MANIFEST).is_file() {
        return Err(InteropError::NotAnExport(output.to_owned()));
    }
    if !overwrite {
        return Err(InteropError::Exists(output.to_owned()));
    }
    match manifest::others(output).map_err(cannot_read(output))? {
        others if others.is_empty() => Ok(()),
        others => Err(InteropError::InTheWay { path: output.to_owned(), others }),
    }
}

fn write_files(model: &Outgoing, dtype: Dtype, folder: &Path, text: WriteText<'_>) -> Result<(), InteropError> {
    let ends = BosEos { bos: model.tokenizer.bos_token(), eos: model.tokenizer.end_of_text() };
    text(CONFIG, &pretty(&config::write(model, dtype, ends)))?;
    text(GENERATION, &pretty(&generation::write(&model.config.generate, ends)))?;
    text("tokenizer.json", &model.tokenizer.to_json())?;
    text("tokenizer_config.json", &pretty(&Value::Object(tokenizer_config(model))))?;
    let curve = fs::read_to_string(model.run.join(LOSS_SVG)).ok();
    if let Some(curve) = &curve {
        text(LOSS_SVG, curve)?;
    }
    text("README.md", &card::card(model, curve.is_some().then_some(LOSS_SVG))?)?;
    let path = folder.join(WEIGHTS);
    write_as(&path, &model.tensors(Naming::Hf)?, dtype).map(drop).map_err(cannot_write(&path))
}

/// The run's `tokenizer_config.json`, if it has one, with the settings that make `AutoTokenizer` produce our ids.
fn tokenizer_config(model: &Outgoing) -> Map<String, Value> {
    let config = model.tokenizer.config_json().and_then(|json| serde_json::from_str(json).ok());
    let mut config: Map<String, Value> = config.unwrap_or_default();
    let end = model.tokenizer.end_of_text().map(|id| model.tokenizer.piece(id));
    if let Some(end) = end {
        config.entry("eos_token").or_insert_with(|| end.into());
    }
    config.entry("model_max_length").or_insert_with(|| model.model().context_length.into());
    config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
    config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    config
}
