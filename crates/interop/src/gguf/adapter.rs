//! Adapters as a GGUF file, which llama.cpp applies beside their base.
//!
//! Sources: llama.cpp, `convert_lora_to_gguf.py` for the keys and names, `llama-adapter.cpp` for what is read.

use std::path::{Path, PathBuf};

use super::TensorType;
use super::export::{check_new, file_of, kind, write_file};
use super::read::Gguf;
use super::settings;
use super::write::NewTensor;
use crate::adapter::{ForeignAdapters, Parts, adapters_of, assemble, to_theirs};
use crate::error::{cannot_read, cannot_write};
use crate::layout::layout;
use crate::{Family, InteropError, Naming, Outgoing};
use tinderbox_model::LazyTensor;

/// Writes the adapters of a fine-tuned run as the file `output`, or as one named after the run if `output` is a folder,
/// replacing an earlier export if `overwrite`. Returns its path.
pub fn export_adapter(
    model: &Outgoing,
    numbers: TensorType,
    output: &Path,
    overwrite: bool,
) -> Result<PathBuf, InteropError> {
    let (adapter, ours) = adapters_of(model)?;
    if adapter.lora.use_dora {
        let reason = "llama.cpp has no lengths beside adapters, which DoRA trains; without --adapter they are merged";
        return Err(InteropError::NoGguf { reason: reason.to_owned() });
    }
    let path = file_of(output, &format!("{}-adapter", model.name()));
    check_new(&path, overwrite)?;
    let lora = &adapter.lora;
    // llama.cpp divides alpha by the rank and knows no other rule.
    let alpha = lora.scale() * lora.rank as f64;
    let values = settings::write_adapter(model.family, &model.name(), alpha, numbers.file_type())?;
    let layout = layout(model.family, Naming::Gguf, model.model(), model.vocab_size());
    let theirs = to_theirs(&layout, &ours).map_err(cannot_read(&model.checkpoint))?;
    let mut tensors = Vec::new();
    for (layer, mut adapter) in theirs {
        // Concatenated adapters have a larger rank; each keeps its own scale.
        let factor = adapter.rank() as f32 / lora.rank as f32;
        adapter.b.values.iter_mut().for_each(|value| *value *= factor);
        for (end, tensor) in [("lora_a", adapter.a), ("lora_b", adapter.b)] {
            let (name, values) = (format!("{layer}.weight.{end}"), tensor.values);
            let tensor = LazyTensor::computed(tensor.shape, move |sink| sink(&values));
            tensors.push(NewTensor { kind: kind(&name, tensor.shape(), numbers), name, tensor });
        }
    }
    let file = write_file(&path, &values, &tensors)?;
    check_new(&path, overwrite)?;
    file.rename().map_err(cannot_write(&path))?;
    Ok(path)
}

/// Reads the file `path`, for a model of `family`.
pub(crate) fn read_adapters(path: &Path, family: &Family) -> Result<ForeignAdapters, InteropError> {
    let Gguf { metadata, tensors } = Gguf::read(path)?;
    let alpha = settings::read_adapter(&metadata, family)?;
    let (mut parts, mut problems) = (Parts::new(), Vec::new());
    for (name, tensor) in tensors {
        let part = ["a", "b"].iter().position(|end| name.ends_with(&format!(".weight.lora_{end}")));
        match (part, name.rsplit_once(".weight.")) {
            (Some(part), Some((layer, _))) if tensor.numbers.shape().len() == 2 => {
                let read = tensor.numbers.read().map_err(cannot_read(path))?;
                parts.entry(layer.to_owned()).or_default()[part] = Some(read);
            }
            _ => problems.push(format!("`{name}` is no part of an adapter of a linear layer")),
        }
    }
    // As in llama.cpp, an alpha of 0 stands for no scale.
    let scale = |_: &str, rank: usize| if alpha == 0.0 { 1.0 } else { alpha / rank as f64 };
    let layers = assemble(parts, scale, &mut problems);
    match problems.is_empty() {
        true => Ok(ForeignAdapters { layers, dropout: 0.0, principal: None }),
        false => Err(InteropError::Adapters { path: path.to_owned(), problems }),
    }
}
