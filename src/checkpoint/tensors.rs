//! Named tensors as safetensors files: the same tensors are always the same bytes.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use safetensors::View;
use safetensors::tensor::{Dtype, SafeTensors, serialize};

use super::CheckpointError;
use super::files::write_synced;
use crate::model::parameters::HostTensor;

/// Writes `tensors` to `path` and waits until they are on the disk. Each is turned into bytes by itself: a large
/// model is not in memory once more.
pub(super) fn write(
    path: &Path,
    tensors: &BTreeMap<String, HostTensor>,
) -> Result<(), CheckpointError> {
    // One key only: the map is written in its own order, which must not vary.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let headings = tensors.iter().map(|(name, tensor)| (name, Heading(tensor)));
    let header = serialize(headings, Some(metadata));
    let header = header.map_err(|error| CheckpointError::Damaged {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    write_synced(path, |file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&header)?;
        // In the order of the header: of names, since all are of f32.
        for value in tensors.values().flat_map(|tensor| &tensor.values) {
            file.write_all(&value.to_le_bytes())?;
        }
        file.flush()
    })
}

/// A tensor as a header speaks of it: what is written for its data is nothing.
struct Heading<'a>(&'a HostTensor);

impl View for Heading<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    fn data_len(&self) -> usize {
        size_of_val(self.0.values.as_slice())
    }
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
    use safetensors::tensor::TensorView;

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
        let values = named["a"].values.iter().flat_map(|x| x.to_le_bytes());
        let bytes: Vec<u8> = values.collect();
        let views = named.iter().map(|(name, tensor)| {
            let view = TensorView::new(Dtype::F32, tensor.shape.clone(), &bytes);
            (name, view.expect("as many bytes as the shape says"))
        });
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let whole = serialize(views, Some(metadata)).expect("named tensors");
        assert_eq!(
            fs::read(&one).expect("read"),
            whole,
            "as the library writes it"
        );
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
