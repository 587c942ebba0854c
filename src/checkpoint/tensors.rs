//! Named tensors as safetensors files: the same tensors are always the same bytes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use super::CheckpointError;
use super::files::write_synced;
use crate::model::parameters::HostTensor;

/// Writes `tensors` to `path` and waits until they are on the disk.
pub(super) fn write(
    path: &Path,
    tensors: &BTreeMap<String, HostTensor>,
) -> Result<(), CheckpointError> {
    let bytes: Vec<(&str, &[usize], Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| {
            let bytes = tensor
                .values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            (name.as_str(), tensor.shape.as_slice(), bytes)
        })
        .collect();
    let damaged = |error: safetensors::SafeTensorError| CheckpointError::Damaged {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let views = bytes
        .iter()
        .map(|(name, shape, bytes)| {
            Ok((
                *name,
                TensorView::new(Dtype::F32, shape.to_vec(), bytes).map_err(damaged)?,
            ))
        })
        .collect::<Result<Vec<_>, CheckpointError>>()?;
    // One key only: the map is written in its own order, which must not vary.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    write_synced(path, &serialize(views, Some(metadata)).map_err(damaged)?)
}

/// Reads all tensors of `path`, which are of f32.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, HostTensor>, CheckpointError> {
    let bytes = fs::read(path).map_err(|source| CheckpointError::Read {
        path: path.to_owned(),
        source,
    })?;
    let damaged = |reason: String| CheckpointError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
    file.iter()
        .map(|(name, view)| {
            if view.dtype() != Dtype::F32 {
                return Err(damaged(format!(
                    "`{name}` holds {:?}, not F32",
                    view.dtype()
                )));
            }
            let values = view
                .data()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            Ok((
                name.to_owned(),
                HostTensor {
                    shape: view.shape().to_vec(),
                    values,
                },
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_come_back_and_the_same_tensors_are_the_same_bytes() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let named: BTreeMap<String, HostTensor> = ["b", "a", "c.d"]
            .into_iter()
            .map(|name| {
                let values = vec![1.0, f32::MIN_POSITIVE, -3.5, 0.1, 1e30, 0.0];
                (
                    name.to_owned(),
                    HostTensor {
                        shape: vec![2, 3],
                        values,
                    },
                )
            })
            .collect();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        write(&one, &named).expect("written");
        write(&two, &named).expect("written");
        assert_eq!(fs::read(&one).expect("read"), fs::read(&two).expect("read"));
        assert_eq!(read(&one).expect("read"), named);
    }

    #[test]
    fn a_truncated_file_is_an_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("model");
        let named = BTreeMap::from([(
            "a".to_owned(),
            HostTensor {
                shape: vec![2],
                values: vec![1.0, 2.0],
            },
        )]);
        write(&path, &named).expect("written");
        let bytes = fs::read(&path).expect("read");
        fs::write(&path, &bytes[..bytes.len() - 3]).expect("written");
        assert!(matches!(read(&path), Err(CheckpointError::Damaged { .. })));
    }
}
