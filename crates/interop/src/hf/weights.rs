//! The tensors of a folder: `model.safetensors`, or the files that `model.safetensors.index.json` names.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::folder::Folder;
use super::{CONFIG, INDEX, PICKLES, WEIGHTS};
use crate::convert::Tensors;
use crate::error::{cannot_read, damaged};
use crate::{Family, InteropError};
use tinderbox_model::tensor_file::{OpenTensorsError, open_as};
use tinderbox_model::{Dtype, LazyTensor, Role};

/// Suffixes of tensors that older versions saved and that are not parameters: masks and `RoPE` frequencies.
const BUFFERS: [&str; 5] =
    [".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"];

/// Opens the tensors, with the names that transformers uses in the whole model. A tied output layer is left out.
pub(super) fn open(folder: &Folder, family: &Family, is_tied: bool) -> Result<Tensors, InteropError> {
    let mut tensors = Tensors::new();
    for path in files(folder)? {
        for (name, tensor) in open_file(&path)? {
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(damaged(&path, format!("another file of the folder has `{name}` too")));
            }
        }
    }
    let mut tensors = with_prefix(tensors, family);
    if is_tied {
        let embedding = format!("{}.weight", family.hf.tensors.name(Role::TokenEmbedding));
        for (name, output) in tensors.extract_if(.., |name, _| is_output(name)).collect::<Vec<_>>() {
            let is_copy = tensors.get(&embedding).map_or(Ok(true), |tied| is_same(tied, &output));
            if !is_copy.map_err(cannot_read(folder.path()))? {
                return Err(InteropError::NotAModel {
                    path: folder.path().to_owned(),
                    reason: format!("its config ties `{name}` to `{embedding}`, but they differ"),
                    hint: format!(
                        "set tie_word_embeddings to false in its {CONFIG} to keep both, or remove `{name}` from its tensors"
                    ),
                });
            }
        }
    }
    Ok(tensors)
}

/// Whether two tensors have the same values. Only the first one is held in memory.
fn is_same(one: &LazyTensor, other: &LazyTensor) -> io::Result<bool> {
    if one.shape() != other.shape() {
        return Ok(false);
    }
    let one = one.read()?.values;
    let (mut rest, mut is_same) = (&one[..], true);
    other.stream(&mut |values| {
        let (these, after) = rest.split_at(values.len());
        is_same &= these.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits());
        rest = after;
        Ok(())
    })?;
    Ok(is_same)
}

fn files(folder: &Folder) -> Result<Vec<PathBuf>, InteropError> {
    if let Some(path) = folder.file(WEIGHTS)? {
        return Ok(vec![path]);
    }
    let Some(index) = folder.json(INDEX)? else {
        let (reason, hint) = match PICKLES.into_iter().find(|name| folder.path().join(name).is_file()) {
            Some(pickle) => (
                format!("its weights are in {pickle}, a format that can run any code, and not in {WEIGHTS}"),
                format!("if you trust it, {}", super::conversion(&folder.path().display().to_string())),
            ),
            None => (
                format!("it has neither {WEIGHTS} nor {INDEX}"),
                "name a folder that transformers' save_pretrained wrote".to_owned(),
            ),
        };
        return Err(InteropError::NotAModel { path: folder.path().to_owned(), reason, hint });
    };
    let path = folder.path().join(INDEX);
    let names = index.get("weight_map").and_then(Value::as_object).and_then(|map| {
        let names: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
        names.filter(|names| !names.is_empty())
    });
    let Some(names) = names else { return Err(damaged(&path, "its `weight_map` does not name the files of tensors")) };
    let files = names
        .into_iter()
        .map(|name| folder.file(name)?.ok_or_else(|| damaged(&path, format!("it names `{name}`, which is not there"))));
    files.collect()
}

pub(super) fn open_file(path: &Path) -> Result<Tensors, InteropError> {
    open_as(path, |name, dtype| match dtype {
        _ if BUFFERS.iter().any(|end| name.ends_with(end)) => Ok(None),
        safetensors::Dtype::F32 => Ok(Some(Dtype::F32)),
        safetensors::Dtype::F16 => Ok(Some(Dtype::F16)),
        safetensors::Dtype::BF16 => Ok(Some(Dtype::Bf16)),
        safetensors::Dtype::F64 => Ok(Some(Dtype::F64)),
        other => Err(format!("`{name}` holds {other:?}; F32, F16, BF16 and F64 are supported")),
    })
    .map_err(|error| match error {
        OpenTensorsError::Read(source) => cannot_read(path)(source),
        OpenTensorsError::Damaged(reason) => damaged(path, reason),
    })
}

/// Whether it is the output layer, in any family.
fn is_output(name: &str) -> bool {
    Family::ALL.iter().any(|family| name.strip_suffix(".weight") == Some(family.hf.tensors.name(Role::Output)))
}

/// Adds the prefix of the base model within the whole, such as `model.`, which is missing if the base model was saved
/// alone. The output layer never has it.
fn with_prefix(tensors: Tensors, family: &Family) -> Tensors {
    let prefix = family.hf.tensors.name(Role::TokenEmbedding).split_inclusive('.').next().expect("a name");
    if tensors.keys().any(|name| name.starts_with(prefix)) {
        return tensors;
    }
    let named = tensors.into_iter().map(|(name, tensor)| match is_output(&name) {
        true => (name, tensor),
        false => (format!("{prefix}{name}"), tensor),
    });
    named.collect()
}
