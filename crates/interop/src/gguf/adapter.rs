//! Writes the adapters of a fine-tuned run as a GGUF file, which llama.cpp applies beside their base.
//!
//! Sources: llama.cpp, `convert_lora_to_gguf.py` for the keys and names, `llama-adapter.cpp` for what is read.

use std::path::{Path, PathBuf};

use super::TensorType;
use super::export::{check_new, file_of, kind, write_file};
use super::settings;
use super::write::NewTensor;
use crate::adapter::{adapters_of, to_theirs};
use crate::error::{cannot_read, cannot_write};
use crate::layout::layout;
use crate::{InteropError, Naming, Outgoing};
use tinderbox_model::LazyTensor;

/// Writes the file `output`, or one named after the run if `output` is a folder, replacing an earlier export if
/// `overwrite`. Returns its path.
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
