//! Writes a run's model as a GGUF file, with a `Modelfile` beside it.

use std::path::{Path, PathBuf};

use super::go_template::go_template;
use super::modelfile::{self, MODELFILE, Template, modelfile};
use super::value::Value;
use super::vocab::Vocab;
use super::write::{NewTensor, write};
use super::{TensorType, rope_freqs, settings};
use crate::error::cannot_write;
use crate::{Family, InteropError, Naming, Outgoing};
use tinderbox_model::LazyTensor;
use tinderbox_model::config::{ModelConfig, PositionKind};
use tinderbox_model::disk::{PartialFile, folder_of, lock_folder, remove_left_over_of, write_atomically};
use tinderbox_model::tokenizer::Tokenizer;

/// The position embedding, which llama.cpp keeps in f32.
const POSITIONS: &str = "position_embd.weight";

/// Writes the file `output`, or one named after the run if `output` is a folder, replacing an earlier export if
/// `overwrite`. Returns its path.
pub fn export(model: &Outgoing, numbers: TensorType, output: &Path, overwrite: bool) -> Result<PathBuf, InteropError> {
    let path = file_of(output, &model.name());
    check_new(&path, overwrite)?;
    let config = model.model();
    let mut values = settings::write(model.family, config, &model.name(), model.vocab_size(), numbers.file_type())?;
    values.extend(model.config.data.document_separator.as_deref().map(settings::write_document_separator));
    let vocab = Vocab::of_tokenizer(&model.tokenizer)?.with_ends(&model.config.generate.stop_token_ids);
    values.extend(vocab.write());
    let tensors = model.tensors(Naming::Gguf)?.into_iter().chain(rope_freqs(config));
    let tensors: Vec<NewTensor> =
        tensors.map(|(name, tensor)| NewTensor { kind: kind(&name, tensor.shape(), numbers), name, tensor }).collect();
    let file = write_file(&path, &values, &tensors)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let template = match model.tokenizer.chat_template() {
        None => Template::Verbatim,
        Some(_) => go_template(&model.tokenizer, &model.config.generate).map_or(Template::Jinja, Template::Go),
    };
    let text = modelfile(&name, &model.config.generate, config.context_length, &template);
    let beside = path.with_file_name(MODELFILE);
    // Other exports to this folder wait, so that both files are of one export; one may have been faster.
    let _waiting = lock_folder(folder_of(&path));
    check_new(&path, overwrite)?;
    file.rename().map_err(cannot_write(&path))?;
    write_atomically(&beside, text.as_bytes()).map_err(cannot_write(&beside))?;
    Ok(path)
}

/// Whether such a model can be exported, as its settings and its tokenizer tell.
pub fn can_hold(family: &Family, config: &ModelConfig, tokenizer: &Tokenizer) -> bool {
    let settings = settings::write(family, config, "", tokenizer.vocab_size(), TensorType::F32.file_type());
    settings.is_ok() && Vocab::of_tokenizer(tokenizer).is_ok()
}

/// The file `output`, or `NAME.gguf` in it if it is a folder.
pub(super) fn file_of(output: &Path, name: &str) -> PathBuf {
    let is_folder = output.is_dir() || output.extension().is_none_or(|extension| extension != "gguf");
    if is_folder { output.join(format!("{name}.gguf")) } else { output.to_owned() }
}

/// Writes the file `path` under a temporary name in its folder, which is created if it is missing.
pub(super) fn write_file(
    path: &Path,
    metadata: &[(String, Value)],
    tensors: &[NewTensor],
) -> Result<PartialFile, InteropError> {
    let folder = folder_of(path);
    std::fs::create_dir_all(folder).map_err(cannot_write(folder))?;
    remove_left_over_of(path);
    write(path, metadata, tensors).map_err(cannot_write(path))
}

/// Checks, without changing anything, that the file `path` and a Modelfile beside it may be written: nothing is there,
/// or only earlier exports and, for the file, `overwrite` is set.
pub(super) fn check_new(path: &Path, overwrite: bool) -> Result<(), InteropError> {
    let is_there = path.symlink_metadata().is_ok();
    if is_there && !overwrite {
        return Err(InteropError::Exists(path.to_owned()));
    }
    let modelfile = path.with_file_name(MODELFILE);
    let is_foreign = modelfile.symlink_metadata().is_ok()
        && !std::fs::read_to_string(&modelfile).is_ok_and(|text| modelfile::is_ours(&text));
    let others = [(path, is_there && !settings::is_exported(path)), (&modelfile, is_foreign)];
    let others = others.into_iter().filter(|(_, is_foreign)| *is_foreign);
    let others: Vec<String> =
        others.map(|(path, _)| path.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect();
    if others.is_empty() { Ok(()) } else { Err(InteropError::InTheWay { path: folder_of(path).to_owned(), others }) }
}

/// The type of a tensor if matrices are of the type `numbers`: vectors are always f32, and rows that are not whole
/// blocks f16, as in llama.cpp.
pub(super) fn kind(name: &str, shape: &[usize], numbers: TensorType) -> TensorType {
    match shape {
        [_, row] if name != POSITIONS => match row.is_multiple_of(numbers.block_len()) {
            true => numbers,
            false => TensorType::F16,
        },
        _ => TensorType::F32,
    }
}

fn rope_freqs(config: &ModelConfig) -> impl Iterator<Item = (String, LazyTensor)> {
    let scaling = config.rope_scaling.as_ref().filter(|_| config.position == PositionKind::Rope);
    let tensors = scaling.map(|scaling| rope_freqs::tensors(scaling, config.rope_theta, config.rotary_dim()));
    tensors
        .into_iter()
        .flatten()
        .map(|(name, factors)| (name.to_owned(), LazyTensor::computed(vec![factors.len()], move |sink| sink(&factors))))
}
