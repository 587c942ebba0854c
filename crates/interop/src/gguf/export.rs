//! Writes a run's model as a GGUF file, with a `Modelfile` beside it.

use std::path::{Path, PathBuf};

use super::modelfile::{MODELFILE, is_ours, modelfile};
use super::vocab::Vocab;
use super::write::{NewTensor, write};
use super::{TensorType, rope_freqs, settings};
use crate::error::cannot_write;
use crate::{InteropError, Naming, Outgoing};
use tinderbox_model::LazyTensor;
use tinderbox_train::config::{ModelConfig, PositionKind};
use tinderbox_train::run::write_atomically;

/// The position embedding, which llama.cpp keeps in f32.
const POSITIONS: &str = "position_embd.weight";

/// Writes the file `output`, or one named after the run if `output` is a folder, replacing an old one if `overwrite`.
/// Returns its path.
///
/// # Errors
/// If llama.cpp does not support the model or tokenizer, there is a file already, or it cannot be written.
pub fn export(model: &Outgoing, numbers: TensorType, output: &Path, overwrite: bool) -> Result<PathBuf, InteropError> {
    let is_folder = output.is_dir() || output.extension().is_none_or(|extension| extension != "gguf");
    let path = if is_folder { output.join(format!("{}.gguf", model.name())) } else { output.to_owned() };
    let beside = path.with_file_name(MODELFILE);
    let others = beside.exists() && !std::fs::read_to_string(&beside).is_ok_and(|text| is_ours(&text));
    let in_the_way = [(&path, path.exists()), (&beside, others)].into_iter().find(|(_, is)| *is && !overwrite);
    if let Some((path, _)) = in_the_way {
        return Err(InteropError::Exists(path.clone()));
    }
    let config = model.model();
    let mut values = settings::write(model.family, config, &model.name(), model.vocab_size(), numbers.file_type())?;
    values.extend(Vocab::of_tokenizer(&model.tokenizer)?.write());
    let tensors = model.tensors(Naming::Gguf)?.into_iter().chain(rope_freqs(config));
    let tensors: Vec<NewTensor> =
        tensors.map(|(name, tensor)| NewTensor { kind: kind(&name, tensor.shape(), numbers), name, tensor }).collect();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(cannot_write(folder))?;
    }
    write(&path, &values, &tensors)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let has_chat_template = model.tokenizer.chat_template().is_some();
    let text = modelfile(&name, &model.config.generate, config.context_length, has_chat_template);
    write_atomically(&beside, text.as_bytes()).map_err(cannot_write(&beside))?;
    Ok(path)
}

/// The type of a tensor if matrices are of the type `numbers`: vectors are always f32, and rows that are not whole
/// blocks f16, as in llama.cpp.
fn kind(name: &str, shape: &[usize], numbers: TensorType) -> TensorType {
    match shape {
        [_, row] if name != POSITIONS => match row.is_multiple_of(numbers.block_len()) {
            true => numbers,
            false => TensorType::F16,
        },
        _ => TensorType::F32,
    }
}

/// The tensor that encodes Llama 3's `RoPE` scaling.
fn rope_freqs(config: &ModelConfig) -> Option<(String, LazyTensor)> {
    let scaling = config.rope_scaling.filter(|_| config.position == PositionKind::Rope)?;
    let factors = rope_freqs::factors(&scaling, config.rope_theta, config.rotary_dim())?;
    let tensor = LazyTensor::computed(vec![factors.len()], move |sink| sink(&factors));
    Some((rope_freqs::TENSOR.to_owned(), tensor))
}
