//! Writing named tensors to safetensors files, tensor by tensor: equal tensors give equal bytes. [`tensor_file`] reads
//! them.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata, TensorInfo};

use super::files::write_synced;
use super::{RunError, cannot_read, cannot_write};
use crate::disk::Summed;
use tinderbox_model::tensor_file::{self, OpenTensorsError};
use tinderbox_model::{Dtype, LazyTensor};

/// Writes `tensors` to `path` as f32, waits until they are on the disk, and returns the CRC-32C of the file.
pub(super) fn write(path: &Path, tensors: &BTreeMap<String, LazyTensor>) -> Result<u32, RunError> {
    write_as(path, tensors, Dtype::F32).map_err(cannot_write(path))
}

/// Writes `tensors` to `path` as `dtype`, waits until they are on the disk, and returns the CRC-32C of the file.
pub fn write_as(path: &Path, tensors: &BTreeMap<String, LazyTensor>, dtype: Dtype) -> io::Result<u32> {
    let shapes = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec()));
    let header = header(shapes.collect(), dtype).expect("contiguous tensors");
    write_synced(path, |file| {
        let mut file = BufWriter::new(Summed::new(file)); // buffered, since the checksum prefers long pieces
        file.write_all(&header)?;
        // In the order of the header: by name, since all have the same type.
        for tensor in tensors.values() {
            tensor.write_to(&mut file, dtype)?;
        }
        file.flush()?;
        Ok(file.get_ref().crc32c)
    })
}

/// The size of a file of f32 tensors with these shapes.
pub(crate) fn file_bytes(shapes: BTreeMap<String, Vec<usize>>) -> u64 {
    let n: usize = shapes.values().map(|shape| shape.iter().product::<usize>()).sum();
    let header = header(shapes, Dtype::F32).expect("contiguous tensors");
    (header.len() + size_of::<f32>() * n) as u64
}

/// The start of a file: the JSON and its length. The library's own function needs all values in memory.
fn header(shapes: BTreeMap<String, Vec<usize>>, dtype: Dtype) -> Result<Vec<u8>, SafeTensorError> {
    let mut end = 0;
    let infos = shapes.into_iter().map(|(name, shape)| {
        let start = end;
        end += dtype.n_bytes() * shape.iter().product::<usize>();
        (name, TensorInfo { dtype: library_dtype(dtype), shape, data_offsets: (start, end) })
    });
    // A single key, since the map has no fixed order.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), infos.collect())?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(size_of::<u64>()), b' '); // aligns the values
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

fn library_dtype(dtype: Dtype) -> safetensors::Dtype {
    match dtype {
        Dtype::F32 => safetensors::Dtype::F32,
        Dtype::F16 => safetensors::Dtype::F16,
        Dtype::Bf16 => safetensors::Dtype::BF16,
    }
}

/// Opens a checkpoint's file. The values of its tensors, all f32, are read on demand.
pub(super) fn open(path: &Path) -> Result<BTreeMap<String, LazyTensor>, RunError> {
    tensor_file::open(path).map_err(|error| match error {
        OpenTensorsError::Read(source) => cannot_read(path)(source),
        OpenTensorsError::Damaged(reason) => RunError::damaged(path, reason),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};
    use safetensors::tensor::{TensorView, serialize};
    use std::fs;

    const VALUES: [[f32; 3]; 2] = [[1.0, f32::MIN_POSITIVE, -3.5], [0.1, 1e30, 0.0]];

    fn named<const N: usize>(names: [&str; N]) -> BTreeMap<String, LazyTensor> {
        let tensor = Tensor::<2>::from_floats(VALUES, &Device::flex());
        let tensor = LazyTensor::on_device(tensor);
        names.map(|name| (name.to_owned(), tensor.clone())).into()
    }

    #[test]
    fn tensors_come_back_and_the_same_tensors_are_the_same_bytes() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let named = named(["b", "a", "c.d"]);
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        write(&one, &named).expect("written");
        let opened = open(&one).expect("whole");
        write(&two, &opened).expect("written");
        assert_eq!(fs::read(&one).expect("read"), fs::read(&two).expect("read"));
        assert!(opened.keys().eq(["a", "b", "c.d"]));
        for tensor in opened.values() {
            let host = tensor.read().expect("read");
            assert_eq!((host.shape, host.values), (vec![2, 3], VALUES.concat()));
        }
        let values = VALUES.concat();
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let views = named.iter().map(|(name, tensor)| {
            let view = TensorView::new(safetensors::Dtype::F32, tensor.shape().to_vec(), &bytes);
            (name, view.expect("as many bytes as the shape says"))
        });
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let whole = serialize(views, Some(metadata)).expect("named tensors");
        assert_eq!(fs::read(&one).expect("read"), whole, "as the library writes it");
    }

    #[test]
    fn a_file_that_is_not_whole_is_an_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("model");
        write(&path, &named(["a"])).expect("written");
        let bytes = fs::read(&path).expect("read");
        let header = usize::from(bytes[0]);
        let reason = |contents: &[u8]| {
            fs::write(&path, contents).expect("written");
            match open(&path).expect_err("damaged") {
                RunError::Damaged { reason, .. } => reason,
                other => panic!("{other}"),
            }
        };
        assert_eq!(reason(&bytes[..bytes.len() - 3]), "incomplete metadata, file not fully covered");
        assert_eq!(reason(&[&bytes[..], &[0]].concat()), "incomplete metadata, file not fully covered");
        assert_eq!(reason(&bytes[..header]), "invalid header length");
        assert_eq!(reason(&bytes[..7]), "header too small");
        assert_eq!(reason(&[0xff; 100]), "header too large");
        let mut garbled = bytes.clone();
        garbled[8] = b'!';
        assert!(reason(&garbled).starts_with("invalid JSON in header"));
    }
}
