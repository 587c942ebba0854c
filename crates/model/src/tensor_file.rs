//! Reads and writes named tensors in safetensors files, tensor by tensor, so that a model is never in memory twice. A
//! header is checked against the file before anything is allocated for it. Equal tensors give equal bytes.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::disk::{Summed, write_synced};
use crate::{Dtype, LazyTensor};

/// The longest accepted header: some 20,000 tensors. Parsed, a header takes several times as much memory.
const LONGEST_HEADER: u64 = 1 << 21;

const MOST_DIMENSIONS: usize = 8;

/// The reason why a file of tensors cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenTensorsError {
    /// The operating system's error.
    #[error("{0}")]
    Read(io::Error),
    /// The file is damaged, or holds numbers of an unsupported type.
    #[error("{0}")]
    Damaged(String),
}

impl From<SafeTensorError> for OpenTensorsError {
    fn from(error: SafeTensorError) -> Self {
        match error {
            SafeTensorError::IoError(source) => Self::Read(source),
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// Opens a checkpoint's file. The values of its tensors, all f32, are read on demand.
///
/// # Errors
/// If the file cannot be read, is damaged, or has numbers of another type.
pub fn open(path: &Path) -> Result<BTreeMap<String, LazyTensor>, OpenTensorsError> {
    open_as(path, |name, dtype| match dtype {
        safetensors::Dtype::F32 => Ok(Some(Dtype::F32)),
        other => Err(format!("`{name}` holds {other:?}, not F32")),
    })
}

/// Opens any file. `dtype_of` returns the type as which the numbers of a name and type are read, `None` to leave the
/// tensor out, or the problem with it.
///
/// # Errors
/// If the file cannot be read, is damaged, or a tensor has a problem.
pub fn open_as(
    path: &Path,
    dtype_of: impl Fn(&str, safetensors::Dtype) -> Result<Option<Dtype>, String>,
) -> Result<BTreeMap<String, LazyTensor>, OpenTensorsError> {
    let mut file = File::open(path).map_err(OpenTensorsError::Read)?;
    let length = file.metadata().map_err(OpenTensorsError::Read)?.len();
    let (metadata, start) = read_header(&mut file, length)?;
    let file = Arc::new(Mutex::new(file));
    let lazy = |(name, info): (String, &TensorInfo)| {
        let dtype = dtype_of(&name, info.dtype).map_err(OpenTensorsError::Damaged).transpose()?;
        let start = start + info.data_offsets.0 as u64;
        Some(dtype.map(|dtype| (name, LazyTensor::in_file(info.shape.clone(), Arc::clone(&file), start, dtype))))
    };
    metadata.tensors().into_iter().filter_map(lazy).collect()
}

/// The tensors of a header in the order of their values. `__metadata__` is skipped: the library would read both
/// together, and buffer everything as values of many times its size.
struct Header(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let HeaderEntry { dtype, shape: HeaderShape(shape), data_offsets } = map.next_value()?;
                        tensors.push((name, TensorInfo { dtype, shape, data_offsets }));
                    }
                }
                tensors.sort_by_key(|(_, info)| info.data_offsets);
                Ok(Header(tensors))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[derive(Deserialize)]
struct HeaderEntry {
    dtype: safetensors::Dtype,
    shape: HeaderShape,
    data_offsets: (usize, usize),
}

/// At most as many dimensions as a tensor may have.
struct HeaderShape(Vec<usize>);

impl<'de> Deserialize<'de> for HeaderShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sizes;
        impl<'de> Visitor<'de> for Sizes {
            type Value = HeaderShape;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "a list of at most {MOST_DIMENSIONS} sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<HeaderShape, A::Error> {
                let mut shape = Vec::new();
                while let Some(size) = seq.next_element()? {
                    if shape.len() == MOST_DIMENSIONS {
                        return Err(A::Error::invalid_length(shape.len() + 1, &self));
                    }
                    shape.push(size);
                }
                Ok(HeaderShape(shape))
            }
        }
        deserializer.deserialize_seq(Sizes)
    }
}

/// The header of a file of `length` bytes, and the offset of the values.
fn read_header(file: &mut impl Read, length: u64) -> Result<(Metadata, u64), SafeTensorError> {
    let mut n = [0; 8];
    file.read_exact(&mut n).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => SafeTensorError::HeaderTooSmall,
        _ => error.into(),
    })?;
    let n = u64::from_le_bytes(n);
    let start = n.saturating_add(8);
    if n > LONGEST_HEADER {
        return Err(SafeTensorError::HeaderTooLarge);
    }
    if start > length {
        return Err(SafeTensorError::InvalidHeaderLength);
    }
    let mut header = Vec::new();
    file.take(n).read_to_end(&mut header)?;
    let header = str::from_utf8(&header).map_err(SafeTensorError::InvalidHeader)?;
    let Header(tensors) = serde_json::from_str(header).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    let metadata = Metadata::new(None, tensors)?;
    match start + metadata.data_len() as u64 == length {
        true => Ok((metadata, start)),
        false => Err(SafeTensorError::MetadataIncompleteBuffer),
    }
}

/// Writes `tensors` to `path` as `dtype`, waits until they are on the disk, and returns the CRC-32C of the file.
///
/// # Errors
/// If a tensor cannot be read, or the file cannot be written.
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
pub fn file_bytes(shapes: BTreeMap<String, Vec<usize>>) -> u64 {
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
        Dtype::F64 => safetensors::Dtype::F64,
    }
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
    fn written_tensors_come_back_and_equal_tensors_give_equal_bytes() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let named = named(["b", "a", "c.d"]);
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        write_as(&one, &named, Dtype::F32).expect("written");
        let opened = open(&one).expect("whole");
        write_as(&two, &opened, Dtype::F32).expect("written");
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
}
