//! Reading named tensors from safetensors files, tensor by tensor, so that a model is never in memory twice. A header is
//! checked against the file before anything is allocated for it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex};

use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::{Dtype, LazyTensor};

/// The longest accepted header: some 20,000 tensors. Parsed, a header takes several times as much memory.
const LONGEST_HEADER: u64 = 1 << 21;

/// The most dimensions of a tensor, more than any tensor has.
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
