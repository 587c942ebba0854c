//! The tensors of a folder: `model.safetensors`, or the files that `model.safetensors.index.json` names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::folder::Folder;
use crate::convert::Tensors;
use crate::error::cannot_read;
use crate::{Family, InteropError};
use tinderbox_model::Dtype;
use tinderbox_train::run::tensors::{OpenTensorsError, open_as};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Suffixes of tensors that older versions saved although they are not parameters: masks and `RoPE` frequencies.
const BUFFERS: [&str; 5] =
    [".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"];

/// The output layer, which never has the prefix.
const OUTPUT: [&str; 2] = ["lm_head.weight", "embed_out.weight"];

/// Opens the tensors, with the names that transformers uses in the whole model. A tied output layer is left out, saved
/// or not.
pub(super) fn open(folder: &Folder, family: Family, is_tied: bool) -> Result<Tensors, InteropError> {
    let mut tensors = Tensors::new();
    for path in files(folder)? {
        for (name, tensor) in open_file(&path)? {
            if tensors.insert(name.clone(), tensor).is_some() {
                let reason = format!("another file of the folder has `{name}` too");
                return Err(InteropError::Damaged { path, reason });
            }
        }
    }
    if is_tied {
        tensors.retain(|name, _| !OUTPUT.contains(&name.as_str()));
    }
    Ok(with_prefix(tensors, family))
}

fn files(folder: &Folder) -> Result<Vec<PathBuf>, InteropError> {
    if let Some(path) = folder.file(SINGLE)? {
        return Ok(vec![path]);
    }
    let Some(index) = folder.json(INDEX)? else {
        return Err(InteropError::NotAModel {
            path: folder.path().to_owned(),
            reason: format!("it has neither {SINGLE} nor {INDEX}"),
            hint: "older models have pytorch_model.bin: open them with transformers, and save them with \
                   save_pretrained"
                .to_owned(),
        });
    };
    let path = folder.path().join(INDEX);
    let names = index.get("weight_map").and_then(Value::as_object).and_then(|map| {
        let names: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
        names.filter(|names| !names.is_empty())
    });
    let Some(names) = names else {
        let reason = "its `weight_map` does not name the files of tensors".to_owned();
        return Err(InteropError::Damaged { path, reason });
    };
    let files = names.into_iter().map(|name| {
        folder.file(name)?.ok_or_else(|| InteropError::Damaged {
            path: path.clone(),
            reason: format!("it names `{name}`, which is not there"),
        })
    });
    files.collect()
}

fn open_file(path: &Path) -> Result<Tensors, InteropError> {
    open_as(path, |name, dtype| match dtype {
        _ if BUFFERS.iter().any(|end| name.ends_with(end)) => Ok(None),
        safetensors::Dtype::F32 => Ok(Some(Dtype::F32)),
        safetensors::Dtype::F16 => Ok(Some(Dtype::F16)),
        safetensors::Dtype::BF16 => Ok(Some(Dtype::Bf16)),
        other => Err(format!("`{name}` holds {other:?}; F32, F16 and BF16 are supported")),
    })
    .map_err(|error| match error {
        OpenTensorsError::Read(source) => cannot_read(path)(source),
        OpenTensorsError::Damaged(reason) => InteropError::Damaged { path: path.to_owned(), reason },
    })
}

/// Adds the prefix of the base model within the whole, which is missing if it was saved by itself.
fn with_prefix(tensors: Tensors, family: Family) -> Tensors {
    let prefix = match family {
        Family::Gpt2 | Family::GptNeo => "transformer.",
        Family::GptNeox => "gpt_neox.",
        _ => "model.",
    };
    if tensors.keys().any(|name| name.starts_with(prefix)) {
        return tensors;
    }
    let named = tensors.into_iter().map(|(name, tensor)| match OUTPUT.contains(&name.as_str()) {
        true => (name, tensor),
        false => (format!("{prefix}{name}"), tensor),
    });
    named.collect()
}
