//! Opens a GGUF file. Every count, length and offset is checked against the size of the file before it is used.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::metadata::Metadata;
use super::quant::TensorType;
use super::reader::Reader;
use super::value::Value;
use crate::InteropError;
use crate::error::damaged;
use tinderbox_model::{LazyTensor, Sink};

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// The default alignment of tensors in a file.
pub(super) const ALIGNMENT: u64 = 32;
/// ggml's limit on the dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;
/// Tensors are read in pieces of this many bytes.
const CHUNK_BYTES: usize = 1 << 18;

/// An open file whose header was read.
#[derive(Debug)]
pub struct Gguf {
    pub metadata: Metadata,
    pub tensors: BTreeMap<String, StoredTensor>,
}

/// A tensor stored in a file.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    pub kind: TensorType,
    /// The numbers, which are read on demand. Its dimensions are outermost first: a linear layer's are `[out, in]`.
    pub numbers: LazyTensor,
}

impl Gguf {
    pub(super) fn read(path: &Path) -> Result<Self, InteropError> {
        let cannot_read = |source| InteropError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(cannot_read)?;
        let found = file.metadata().map_err(cannot_read)?;
        if found.is_dir() {
            return Err(cannot_read(io::ErrorKind::IsADirectory.into()));
        }
        let mut reader = Reader::new(file.try_clone().map_err(cannot_read)?, found.len());
        let magic = reader.bytes(4.min(found.len())).map_err(|reason| damaged(path, reason))?;
        if magic != MAGIC {
            return Err(InteropError::NotAModel {
                path: path.to_owned(),
                reason: format!("it begins with {:?}, not with \"GGUF\"", String::from_utf8_lossy(&magic)),
                hint: "name the .gguf file of a model, or the folder of a Hugging Face model".to_owned(),
            });
        }
        let (values, infos, start) = read_header(&mut reader).map_err(|problem| problem.at(path))?;
        let file = Arc::new(Mutex::new(file));
        let stored = |(name, TensorInfo { shape, kind, offset })| {
            let (file, n) = (Arc::clone(&file), shape.iter().product());
            let numbers = LazyTensor::computed(shape, move |sink| stream(&file, start + offset, n, kind, sink));
            (name, StoredTensor { kind, numbers })
        };
        let tensors = infos.into_iter().map(stored).collect();
        Ok(Self { metadata: Metadata::new(path, values), tensors })
    }
}

/// Streams `n` numbers in pieces. Other tensors of the file may be read in between.
fn stream(file: &Mutex<File>, start: u64, n: usize, kind: TensorType, sink: Sink<'_>) -> io::Result<()> {
    let n_bytes = n / kind.block_len() * kind.block_bytes();
    let chunk = CHUNK_BYTES / kind.block_bytes() * kind.block_bytes();
    let mut bytes = vec![0; chunk.min(n_bytes)];
    let mut numbers = Vec::new();
    let mut n_read = 0;
    while n_read < n_bytes {
        let bytes = &mut bytes[..chunk.min(n_bytes - n_read)];
        {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(start + n_read as u64))?;
            file.read_exact(bytes)?;
        }
        numbers.clear();
        kind.decode(bytes, &mut numbers);
        sink(&numbers)?;
        n_read += bytes.len();
    }
    Ok(())
}

/// A tensor as described in the header; the offset is relative to the start of all tensors.
struct TensorInfo {
    shape: Vec<usize>,
    kind: TensorType,
    offset: u64,
}

enum Problem {
    Damaged(String),
    NotAModel { reason: String, hint: String },
}

impl From<String> for Problem {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

impl Problem {
    fn at(self, path: &Path) -> InteropError {
        match self {
            Self::Damaged(reason) => damaged(path, reason),
            Self::NotAModel { reason, hint } => InteropError::NotAModel { path: path.to_owned(), reason, hint },
        }
    }
}

type Header = (BTreeMap<String, Value>, BTreeMap<String, TensorInfo>, u64);

/// Reads everything after the magic number: the metadata, the tensors, and where their numbers start.
fn read_header(reader: &mut Reader) -> Result<Header, Problem> {
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        let reason = match version.swap_bytes() {
            1..=3 => "it is big-endian, written for other machines".to_owned(),
            _ => format!("it is of version {version} of the format"),
        };
        let hint =
            "versions 2 and 3 are read, little-endian; convert the model again with a newer llama.cpp".to_owned();
        return Err(Problem::NotAModel { reason, hint });
    }
    let (n_tensors, n_values) = (reader.u64()?, reader.u64()?);
    let mut values = BTreeMap::new();
    for _ in 0..n_values {
        let key = reader.name("a key")?;
        let value = Value::read(reader).map_err(|reason| format!("`{key}`: {reason}"))?;
        if values.insert(key.clone(), value).is_some() {
            return Err(format!("`{key}` is repeated").into());
        }
    }
    let count = |key: &str| values.get(key).and_then(Value::integer);
    let alignment = match count("general.alignment") {
        None => ALIGNMENT,
        Some(alignment) => u32::try_from(alignment)
            .ok()
            .filter(|alignment| alignment.is_power_of_two())
            .ok_or_else(|| format!("`general.alignment` is {alignment}, not a power of 2"))?
            .into(),
    };
    let mut infos = BTreeMap::new();
    for _ in 0..n_tensors {
        let name = reader.name("the name of a tensor")?;
        let info = TensorInfo::read(reader, &name)?;
        if infos.insert(name.clone(), info).is_some() {
            return Err(format!("the tensor `{name}` is repeated").into());
        }
    }
    let start = reader.at().next_multiple_of(alignment);
    let mut extents = Vec::new();
    for (name, info) in &infos {
        let end = info.end(alignment, reader.length().saturating_sub(start));
        extents.push((info.offset, end.map_err(|reason| format!("`{name}` {reason}"))?, name));
    }
    extents.sort_unstable();
    if let Some(pair) = extents.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        return Err(format!("the tensors `{}` and `{}` overlap", pair[0].2, pair[1].2).into());
    }
    Ok((values, infos, start))
}

impl TensorInfo {
    fn read(reader: &mut Reader, name: &str) -> Result<Self, Problem> {
        let n_dimensions = reader.u32()?;
        if n_dimensions > MAX_DIMENSIONS {
            return Err(format!("`{name}` has {n_dimensions} dimensions, and {MAX_DIMENSIONS} are the most").into());
        }
        let mut shape = Vec::new();
        for _ in 0..n_dimensions {
            let n = reader.u64()?;
            let size = usize::try_from(n).ok().filter(|n| *n > 0);
            shape.push(size.ok_or_else(|| format!("`{name}` has a dimension of {n}"))?);
        }
        shape.reverse(); // the file has the innermost first
        let code = reader.u32()?;
        let kind = TensorType::of_code(code).ok_or_else(|| Problem::NotAModel {
            reason: format!("the numbers of `{name}` are of the type {code} of ggml"),
            hint: format!("supported are {}; get the model in one of these", supported()),
        })?;
        Ok(Self { shape, kind, offset: reader.u64()? })
    }

    /// The offset after its numbers, which must lie within the `available` bytes of all tensors.
    fn end(&self, alignment: u64, available: u64) -> Result<u64, String> {
        let Self { shape, kind, offset } = self;
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(kind.block_len()) {
            return Err(format!("has rows of {row}, not of whole blocks of {}", kind.block_len()));
        }
        if !offset.is_multiple_of(alignment) {
            return Err(format!("begins at {offset}, not a multiple of {alignment}"));
        }
        let n = shape.iter().try_fold(1_u64, |n, size| n.checked_mul(*size as u64));
        let n_bytes = n.and_then(|n| (n / kind.block_len() as u64).checked_mul(kind.block_bytes() as u64));
        match n_bytes.and_then(|n_bytes| offset.checked_add(n_bytes)) {
            Some(end) if end <= available => Ok(end),
            _ => Err(format!(
                "of shape {shape:?} in {} begins at byte {offset} of the tensors, and they have {available}",
                kind.name()
            )),
        }
    }
}

/// The names of the supported tensor types.
fn supported() -> String {
    let names: Vec<&str> = TensorType::ALL.iter().map(|kind| kind.name()).collect();
    let (last, others) = names.split_last().expect("there are several types");
    format!("{} and {last}", others.join(", "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::write::{NewTensor, write};
    use super::*;

    fn tensor(name: &str, kind: TensorType, shape: [usize; 2]) -> NewTensor {
        let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(|i| i as f32 - 7.5).collect();
        let tensor = LazyTensor::computed(shape.to_vec(), move |sink| sink(&numbers));
        NewTensor { name: name.to_owned(), kind, tensor }
    }

    fn numbers(tensor: &StoredTensor) -> Vec<f32> {
        tensor.numbers.read().expect("the tensor can be read").values
    }

    fn values() -> Vec<(String, Value)> {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        vec![
            ("general.architecture".to_owned(), Value::string("llama")),
            ("a.count".to_owned(), Value::u32(7)),
            ("a.truth".to_owned(), Value::bool(true)),
            ("a.number".to_owned(), Value::f32(0.1)),
            ("a.texts".to_owned(), Value::strings(texts(&["", "\u{e9}\n"]))),
        ]
    }

    fn write_file(path: &Path, metadata: &[(String, Value)], tensors: &[NewTensor]) {
        write(path, metadata, tensors).expect("the file can be written").rename().expect("the file can be renamed");
    }

    /// A small file with every kind of value and tensor.
    fn file() -> Vec<u8> {
        let dir = tempfile::tempdir().expect("a temporary directory can be created");
        let path = dir.path().join("model.gguf");
        let tensors = [
            tensor("one", TensorType::F32, [3, 5]),
            tensor("two", TensorType::Q8_0, [2, 32]),
            tensor("three", TensorType::F16, [1, 7]),
        ];
        write_file(&path, &values(), &tensors);
        fs::read(&path).expect("the file can be read")
    }

    fn open(bytes: &[u8]) -> Result<Gguf, InteropError> {
        let dir = tempfile::tempdir().expect("a temporary directory can be created");
        let path = dir.path().join("model.gguf");
        fs::write(&path, bytes).expect("the file can be written");
        Gguf::read(&path)
    }

    #[test]
    fn values_and_tensors_of_gguf_py_are_read() {
        let gguf = Gguf::read(Path::new("../../tests/fixtures/gguf/types.gguf")).expect("the fixture exists");
        let metadata = &gguf.metadata;
        for (key, expected) in [
            ("uint8", 200.0),
            ("int8", -100.0),
            ("uint16", 60_000.0),
            ("int16", -30_000.0),
            ("uint32", 4e9),
            ("int32", -2e9),
            ("float32", 1e-6),
            ("uint64", 2_f64.powi(63)),
            ("int64", -(2_f64.powi(62))),
            ("float64", 0.1),
        ] {
            assert_eq!(metadata.float(&format!("test.{key}")).unwrap(), Some(expected), "{key}");
        }
        assert_eq!(metadata.bool("test.bool").unwrap(), Some(true));
        assert_eq!(metadata.string("test.string").unwrap(), Some("caf\u{e9}\n"));
        assert_eq!(metadata.strings("test.strings").unwrap().unwrap(), ["", "a", "\u{65e5}\u{672c}"]);
        assert_eq!(metadata.integers("test.integers").unwrap().unwrap(), [1, -2, 3]);
        assert_eq!(metadata.floats("test.floats").unwrap().unwrap(), [0.5, -1e-6]);
        let error = metadata.count("test.float64").unwrap_err().to_string();
        assert!(error.contains("`test.float64` is 0.1, not a count"), "{error}");
        let all = numbers(&gguf.tensors["F32"]);
        let bits = |numbers: &[f32]| -> Vec<u32> { numbers.iter().map(|x| x.to_bits()).collect() };
        for name in TensorType::ALL.iter().map(|kind| kind.name()) {
            let tensor = &gguf.tensors[name];
            let decoded = &gguf.tensors[&format!("{name}.decoded")];
            assert_eq!((tensor.kind.name(), tensor.numbers.shape()), (name, decoded.numbers.shape()));
            let expected = numbers(decoded);
            assert_eq!(bits(&numbers(tensor)), bits(&expected), "{name}");
            if ["F32", "F16", "BF16", "Q8_0"].contains(&name) {
                let (mut bytes, mut encoded) = (Vec::new(), Vec::new());
                tensor.kind.encode(&all, &mut bytes);
                tensor.kind.decode(&bytes, &mut encoded);
                assert_eq!(encoded, expected, "{name}, written");
            }
        }
    }

    #[test]
    fn tensors_longer_than_chunks_round_trip() {
        let dir = tempfile::tempdir().expect("a temporary directory can be created");
        let path = dir.path().join("model.gguf");
        let long = tensor("long", TensorType::F32, [3, CHUNK_BYTES / 8 + 1]);
        write_file(&path, &[], std::slice::from_ref(&long));
        let stored = &Gguf::read(&path).expect("the file is complete").tensors["long"];
        assert!(
            stored.numbers.read().expect("the tensor can be read")
                == long.tensor.read().expect("the tensor can be read")
        );
        // Blocks are complete for any split of the values into pieces.
        let all: Vec<f32> = (0..320).map(|i| i as f32).collect();
        let pieces = all.clone();
        let tensor = LazyTensor::computed(vec![5, 64], move |sink| {
            [&pieces[..1], &pieces[1..7], &pieces[7..100], &pieces[100..]].into_iter().try_for_each(sink)
        });
        let in_pieces = dir.path().join("pieces.gguf");
        write_file(&in_pieces, &[], &[NewTensor { name: "x".to_owned(), kind: TensorType::Q8_0, tensor }]);
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        TensorType::Q8_0.encode(&all, &mut bytes);
        TensorType::Q8_0.decode(&bytes, &mut expected);
        assert_eq!(numbers(&Gguf::read(&in_pieces).expect("the file is complete").tensors["x"]), expected);
        File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
        assert_eq!(stored.numbers.read().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    /// The file with the bytes from `skip` after the first `before` replaced by `new`.
    fn patched(before: &[u8], skip: usize, new: &[u8]) -> Vec<u8> {
        let mut bytes = file();
        let at = bytes.windows(before.len()).position(|window| window == before).expect("it is there") + skip;
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    }

    fn error(bytes: &[u8]) -> String {
        open(bytes).expect_err("it cannot be used").to_string()
    }

    #[test]
    fn damaged_files_are_explained() {
        let bytes = file();
        let cases = [
            (b"".to_vec(), "begins with \"\", not with \"GGUF\""),
            (b"PK\x03\x04".to_vec(), "begins with \"PK"),
            (bytes[..10].to_vec(), "it ends at byte 10, within its header"),
            (bytes[..bytes.len() - 32].to_vec(), "`three` of shape [1, 7] in F16 begins at byte 160"),
            (patched(b"GGUF", 4, &[1]), "it is of version 1 of the format"),
            (patched(b"GGUF", 4, &[0, 0, 0, 3]), "it is big-endian"),
            (patched(b"GGUF", 8, &[255; 8]), "should follow at byte"),
            (patched(b"GGUF", 16, &[255; 8]), "should follow at byte"),
            (patched(b"a.count", 7, &[13]), "`a.count`: values of the unknown type 13"),
            (patched(b"a.truth", 0, b"a.count"), "`a.count` is repeated"),
            (patched(b"a.texts", 7 + 4 + 4, &[255; 8]), "`a.texts`: "),
            (patched(b"a.number", 0, &[0xff]), "is not UTF-8"),
            (patched(b"\x03\0\0\0\0\0\0\0two", 8, b"one"), "the tensor `one` is repeated"),
            (patched(b"three", 5, &[5]), "`three` has 5 dimensions"),
            (patched(b"three", 5 + 4, &[0; 8]), "`three` has a dimension of 0"),
            (patched(b"three", 5 + 4, &[255; 8]), "`three` of shape [1, 18446744073709551615]"),
            (patched(b"three", 5 + 4 + 16, &[29]), "the numbers of `three` are of the type 29 of ggml"),
            (patched(b"three", 5 + 4 + 16, &[8]), "`three` has rows of 7, not of whole blocks of 32"),
            (patched(b"three", 5 + 4 + 16 + 4, &[0]), "the tensors `three` and `one` overlap"),
            (patched(b"three", 5 + 4 + 16 + 4, &[128]), "the tensors `two` and `three` overlap"),
            (patched(b"three", 5 + 4 + 16 + 4, &[1]), "`three` begins at 1, not a multiple of 32"),
            (patched(b"three", 5 + 4 + 16 + 4, &[224; 8]), "`three` of shape [1, 7] in F16 begins at byte 16"),
        ];
        for (bytes, expected) in cases {
            let message = error(&bytes);
            assert!(message.contains(expected), "{expected:?} is not in {message}");
            assert!(message.contains("model.gguf"), "{message}");
        }
    }
}
