//! Writes a GGUF file, version 3, with one tensor in memory at a time.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::TensorType;
use super::read::{ALIGNMENT, MAGIC};
use super::value::{Value, write_string};
use tinderbox_model::LazyTensor;
use tinderbox_model::disk::PartialFile;

const VERSION: u32 = 3;
/// The number of values that are encoded at once: a multiple of every block length.
const CHUNK: usize = 1 << 16;

#[derive(Clone, Debug)]
pub struct NewTensor {
    pub name: String,
    /// The type of the written numbers, whose blocks divide the row length.
    pub kind: TensorType,
    pub tensor: LazyTensor,
}

impl NewTensor {
    /// The size of its numbers in the file.
    fn n_bytes(&self) -> u64 {
        (self.tensor.n_numbers() / self.kind.block_len() * self.kind.block_bytes()) as u64
    }
}

/// Writes the file `path` under a temporary name.
///
/// # Panics
/// If the rows of a tensor are not whole blocks of its type.
pub fn write(path: &Path, metadata: &[(String, Value)], tensors: &[NewTensor]) -> io::Result<PartialFile> {
    let header = header(metadata, tensors);
    PartialFile::write(path, |file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&header)?;
        for tensor in tensors {
            write_tensor(tensor, &mut file)?;
        }
        file.flush()
    })
}

/// Everything before the first tensor's numbers.
fn header(metadata: &[(String, Value)], tensors: &[NewTensor]) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        write_string(key, &mut header);
        value.write(&mut header);
    }
    let mut offset = 0;
    for tensor in tensors {
        let shape = tensor.tensor.shape();
        let row = shape.last().copied().unwrap_or(1);
        assert!(row.is_multiple_of(tensor.kind.block_len()), "{} has rows of {row}", tensor.name);
        write_string(&tensor.name, &mut header);
        header.extend(u32::try_from(shape.len()).expect("a tensor has few dimensions").to_le_bytes());
        for size in shape.iter().rev() {
            header.extend((*size as u64).to_le_bytes()); // innermost first
        }
        header.extend(tensor.kind.code().to_le_bytes());
        header.extend(u64::to_le_bytes(offset));
        offset += tensor.n_bytes().next_multiple_of(ALIGNMENT);
    }
    let n_bytes = header.len() as u64;
    header.extend((n_bytes..n_bytes.next_multiple_of(ALIGNMENT)).map(|_| 0));
    header
}

fn write_tensor(tensor: &NewTensor, file: &mut impl Write) -> io::Result<()> {
    let block = tensor.kind.block_len();
    let mut bytes = Vec::new();
    let mut rest = Vec::with_capacity(block); // the start of a block that continues in the next piece
    tensor.tensor.stream(&mut |mut numbers| {
        if !rest.is_empty() {
            let (now, later) = numbers.split_at(numbers.len().min(block - rest.len()));
            rest.extend_from_slice(now);
            numbers = later;
        }
        if rest.len() == block {
            encode(tensor.kind, &rest, &mut bytes, file)?;
            rest.clear();
        }
        let (whole, open) = numbers.split_at(numbers.len() / block * block);
        rest.extend_from_slice(open);
        whole.chunks(CHUNK).try_for_each(|numbers| encode(tensor.kind, numbers, &mut bytes, file))
    })?;
    let n_bytes = tensor.n_bytes();
    (n_bytes..n_bytes.next_multiple_of(ALIGNMENT)).try_for_each(|_| file.write_all(&[0]))
}

fn encode(kind: TensorType, numbers: &[f32], bytes: &mut Vec<u8>, file: &mut impl Write) -> io::Result<()> {
    bytes.clear();
    kind.encode(numbers, bytes);
    file.write_all(bytes)
}
