//! Writes the adapters of a fine-tuned run as a folder that PEFT can load beside their base.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::{export, pretty};
use crate::error::cannot_write;
use crate::layout::layout;
use crate::{InteropError, Naming, Outgoing};
use tinderbox_model::{Dtype, LazyTensor};
use tinderbox_train::run::tensors::write_as;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Writes the folder `output`, replacing an earlier export if `overwrite`.
///
/// # Errors
/// If the run has no adapters, its family has one layer for queries, keys and values, the path is taken, or the folder
/// cannot be written.
pub fn export_adapter(model: &Outgoing, dtype: Dtype, output: &Path, overwrite: bool) -> Result<(), InteropError> {
    let adapter = model.state.adapter.as_ref().ok_or_else(|| InteropError::NoAdapter(model.run.root().to_owned()))?;
    let layout = layout(model.family, Naming::Hf, model.model(), model.vocab_size());
    let (mut tensors, mut modules, mut blocks) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    for (rows, [a, b]) in adapter.tensors(&model.checkpoint)? {
        let theirs = layout.iter().find(|tensor| match &tensor.columns[..] {
            [columns] => columns.path == rows.weight && columns.ranges == [rows.columns.clone()],
            _ => false,
        });
        let theirs = theirs.ok_or(InteropError::NoLayerOfAdapter { family: model.family, target: rows.target })?;
        let module = theirs.name.trim_end_matches(".weight");
        modules.insert(module.rsplit('.').next().unwrap_or(module).to_owned());
        blocks.extend(module.split('.').find_map(|part| part.parse::<usize>().ok()));
        for (name, matrix) in [("A", a), ("B", b)] {
            tensors.insert(format!("base_model.model.{module}.lora_{name}.weight"), transposed(matrix));
        }
    }
    let lora = &adapter.lora;
    let config = json!({
        "base_model_name_or_path": adapter.base,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layers_to_transform": lora.last_blocks.map_or(Value::Null, |_| json!(blocks)),
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": modules,
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": lora.use_rslora,
    });
    export::write_folder(output, overwrite, |folder, text| {
        text(CONFIG, &pretty(&config))?;
        let path = folder.join(WEIGHTS);
        write_as(&path, &tensors, dtype).map(drop).map_err(cannot_write(&path))
    })
}

/// A matrix as PyTorch stores it, `[out, in]`.
fn transposed(matrix: LazyTensor) -> LazyTensor {
    let [n_rows, n_columns] = matrix.shape()[..] else { unreachable!("a matrix") };
    LazyTensor::computed(vec![n_columns, n_rows], move |sink| {
        let values = matrix.read()?.values;
        let turned: Vec<f32> = (0..n_columns)
            .flat_map(|column| (0..n_rows).map(move |row| row * n_columns + column))
            .map(|at| values[at])
            .collect();
        sink(&turned)
    })
}
