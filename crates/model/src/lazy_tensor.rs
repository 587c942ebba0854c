//! A tensor that stays on its device, in a file or as a function until it is read, so that saving, loading and
//! converting a model needs only one tensor at a time in host memory.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;
use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::parameters::HostTensor;
use tinderbox_kernels as kernels;

/// The number of values converted to bytes, or back, at a time.
const CHUNK: usize = 16 * 1024;

/// The number format in a file, little-endian. On the host, numbers are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE single precision, 32 bits.
    #[default]
    F32,
    /// IEEE half precision: 16 bits, 10 of them for the fraction.
    F16,
    /// bfloat16: 16 bits, the upper half of an f32.
    Bf16,
    /// IEEE double precision, 64 bits, which is read as the nearest f32.
    F64,
}

impl Dtype {
    /// The number of bytes per number.
    pub fn n_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F64 => 8,
        }
    }

    /// Appends the numbers that `bytes` encode to `values`.
    #[allow(clippy::cast_possible_truncation, reason = "numbers on the host are f32")]
    pub fn decode(self, bytes: &[u8], values: &mut Vec<f32>) {
        match self {
            Self::F64 => values.extend(bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32)),
            Self::F32 => values.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
            Self::Bf16 => values.extend(bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32())),
            Self::F16 => {
                let numbers: Vec<f16> = bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect();
                let start = values.len();
                values.resize(start + numbers.len(), 0.0);
                numbers.convert_to_f32_slice(&mut values[start..]);
            }
        }
    }

    /// Appends the bytes of `values` to `bytes`, each rounded to the nearest number.
    pub fn encode(self, values: &[f32], bytes: &mut Vec<u8>) {
        match self {
            Self::F32 => put(values, bytes, |x| x.to_le_bytes()),
            Self::F64 => put(values, bytes, |x| f64::from(*x).to_le_bytes()),
            Self::Bf16 => put(values, bytes, |x| bf16::from_f32(*x).to_le_bytes()),
            Self::F16 => {
                let mut numbers = vec![f16::ZERO; values.len()];
                numbers.convert_from_f32_slice(values);
                put(&numbers, bytes, |x| x.to_le_bytes());
            }
        }
    }
}

fn put<T, const N: usize>(numbers: &[T], bytes: &mut Vec<u8>, to_bytes: impl Fn(&T) -> [u8; N]) {
    let start = bytes.len();
    bytes.resize(start + N * numbers.len(), 0);
    let (chunks, _) = bytes[start..].as_chunks_mut();
    chunks.iter_mut().zip(numbers).for_each(|(chunk, number)| *chunk = to_bytes(number));
}

/// A callback that receives the next values of a tensor.
pub type Sink<'a> = &'a mut dyn FnMut(&[f32]) -> io::Result<()>;

/// A function that passes the values of a tensor to a sink, row-major, in pieces of any length.
type Compute = dyn Fn(Sink<'_>) -> io::Result<()> + Send + Sync;

/// An f32 tensor on a device, in a file, or computed on demand. Clones share the values.
#[derive(Clone)]
pub struct LazyTensor {
    shape: Vec<usize>,
    storage: Storage,
}

#[derive(Clone)]
enum Storage {
    /// Flattened to a vector, without gradients.
    Device(Box<Tensor<1>>),
    /// The file, the offset of the tensor's first byte, and the number format.
    File(Arc<Mutex<File>>, u64, Dtype),
    /// The function that is called each time the tensor is read.
    Computed(Arc<Compute>),
}

impl fmt::Debug for LazyTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyTensor").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl LazyTensor {
    /// A tensor on its device. Later updates of a parameter do not change it.
    pub fn on_device<const D: usize>(tensor: Tensor<D>) -> Self {
        let shape = tensor.shape();
        let storage = Storage::Device(Box::new(tensor.inner().reshape([shape.num_elements()])));
        Self { shape: shape.to_vec(), storage }
    }

    /// A tensor whose values are in `file`, row-major and little-endian, starting at byte `start`.
    pub fn in_file(shape: Vec<usize>, file: Arc<Mutex<File>>, start: u64, dtype: Dtype) -> Self {
        Self { shape, storage: Storage::File(file, start, dtype) }
    }

    /// A tensor that calls `compute` each time it is read. `compute` passes all values to the sink, row-major, in
    /// pieces of any length.
    pub fn computed(shape: Vec<usize>, compute: impl Fn(Sink<'_>) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { shape, storage: Storage::Computed(Arc::new(compute)) }
    }

    /// The number format, if the tensor is in a file.
    pub fn dtype(&self) -> Option<Dtype> {
        match &self.storage {
            Storage::File(_, _, dtype) => Some(*dtype),
            Storage::Device(_) | Storage::Computed(_) => None,
        }
    }

    /// The sizes of the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of values.
    pub fn n_numbers(&self) -> usize {
        self.shape.iter().product()
    }

    /// The number of bytes that [`LazyTensor::write_to`] writes with [`Dtype::F32`].
    pub fn n_bytes(&self) -> usize {
        Dtype::F32.n_bytes() * self.n_numbers()
    }

    /// Passes the values to `sink`, row-major, in pieces of any length.
    ///
    /// # Errors
    /// If the file cannot be read or is too short, if the device fails, or if `sink` returns an error.
    pub fn stream(&self, sink: Sink<'_>) -> io::Result<()> {
        match &self.storage {
            Storage::Device(tensor) => kernels::with_values(tensor, sink).map_err(io::Error::other)?,
            Storage::File(file, start, dtype) => read_values(file, *start, self.n_numbers(), *dtype, sink),
            Storage::Computed(compute) => {
                let mut n_numbers = 0;
                compute(&mut |values| {
                    n_numbers += values.len();
                    sink(values)
                })?;
                assert_eq!(n_numbers, self.n_numbers(), "a computed tensor has as many values as its shape says");
                Ok(())
            }
        }
    }

    /// Reads the tensor into host memory.
    ///
    /// # Errors
    /// If the file cannot be read or is too short, or the device fails.
    pub fn read(&self) -> io::Result<HostTensor> {
        let mut values = Vec::with_capacity(self.n_numbers());
        self.stream(&mut |piece| {
            values.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(HostTensor { shape: self.shape.clone(), values })
    }

    /// Writes the values, row-major and little-endian, each rounded to the nearest number in `dtype`.
    ///
    /// # Errors
    /// If writing fails, or for the reasons of [`LazyTensor::read`].
    pub fn write_to(&self, out: &mut dyn Write, dtype: Dtype) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.stream(&mut |values| {
            for values in values.chunks(CHUNK) {
                bytes.clear();
                dtype.encode(values, &mut bytes);
                out.write_all(&bytes)?;
            }
            Ok(())
        })
    }
}

/// Reads the values piece by piece. Between pieces the file is unlocked, so that other tensors may be read from it.
fn read_values(file: &Mutex<File>, start: u64, n: usize, dtype: Dtype, sink: Sink<'_>) -> io::Result<()> {
    let mut bytes = vec![0; dtype.n_bytes() * CHUNK.min(n)];
    let mut values = Vec::with_capacity(CHUNK.min(n));
    let mut n_read = 0;
    while n_read < n {
        let n_now = CHUNK.min(n - n_read);
        let bytes = &mut bytes[..dtype.n_bytes() * n_now];
        {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(start + (dtype.n_bytes() * n_read) as u64))?;
            file.read_exact(bytes)?;
        }
        values.clear();
        dtype.decode(bytes, &mut values);
        sink(&values)?;
        n_read += n_now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn lazy_tensors_have_same_values_everywhere() {
        // More values than one conversion chunk holds, of every magnitude.
        let ordinary = (0..2 * CHUNK + 3).map(|i| i as f32 - 1e4);
        let values: Vec<f32> = [f32::MIN_POSITIVE, -0.0, 1e-45, f32::MAX].into_iter().chain(ordinary).collect();
        let shape = [1, values.len()];
        let data = TensorData::new(values.clone(), shape);
        let on_device = LazyTensor::on_device(Tensor::<2>::from_data(data, &Device::flex()));
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(b"before").expect("written");
        on_device.write_to(&mut file, Dtype::F32).expect("written");
        assert_eq!(file.metadata().expect("a file").len(), 6 + on_device.n_bytes() as u64);
        let in_file = LazyTensor::in_file(shape.to_vec(), Arc::new(Mutex::new(file)), 6, Dtype::F32);
        let pieces = values.clone();
        let computed = LazyTensor::computed(shape.to_vec(), move |sink| pieces.chunks(1000).try_for_each(&mut *sink));
        for tensor in [on_device, in_file, computed] {
            let host = tensor.read().expect("read");
            assert_eq!((tensor.shape(), &host.shape[..]), (&shape[..], &shape[..]));
            assert_eq!(bits(&host.values), bits(&values));
            let mut bytes = Vec::new();
            tensor.write_to(&mut bytes, Dtype::F32).expect("written");
            let expected: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            assert!(bytes == expected);
        }
    }

    #[test]
    fn half_precision_rounds_to_nearest_and_reads_back_unchanged() {
        let infinite = f32::INFINITY;
        // Ties are rounded to even; numbers that are too large become infinite.
        let cases = [
            (
                Dtype::F16,
                [1.0, 1.0 + 0.5 / 1024.0, 1.0 + 1.5 / 1024.0, -6e-8, 65_520.0, -0.0],
                [1.0, 1.0, 1.0 + 2.0 / 1024.0, -5.960_464_5e-8, infinite, -0.0],
            ),
            (
                Dtype::Bf16,
                [1.0, 1.0 + 0.5 / 128.0, 1.0 + 1.5 / 128.0, -1e-40, f32::MAX, -0.0],
                [1.0, 1.0, 1.0 + 2.0 / 128.0, -9.183_5e-41, infinite, -0.0],
            ),
        ];
        for (dtype, values, expected) in cases {
            let tensor = LazyTensor::computed(vec![6], move |sink| sink(&values));
            let mut file = tempfile::tempfile().expect("a temporary file");
            tensor.write_to(&mut file, dtype).expect("written");
            assert_eq!(file.metadata().expect("a file").len(), 12);
            let back = LazyTensor::in_file(vec![6], Arc::new(Mutex::new(file)), 0, dtype).read().expect("read");
            assert_eq!(bits(&back.values), bits(&expected), "{dtype:?}: {:?}", back.values);
        }
    }

    #[test]
    fn truncated_files_are_errors() {
        let file = Arc::new(Mutex::new(tempfile::tempfile().expect("a temporary file")));
        let tensor = LazyTensor::in_file(vec![2], file, 0, Dtype::F32);
        let error = tensor.read().expect_err("there is nothing");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    #[should_panic(expected = "as many values as its shape says")]
    fn computed_tensors_pass_all_values() {
        LazyTensor::computed(vec![3], |sink| sink(&[1.0, 2.0])).read().ok();
    }

    #[test]
    fn lazy_tensors_ignore_later_operations() {
        let device = Device::flex().autodiff();
        let weights = Tensor::<1>::from_floats([1.0, 2.0], &device).require_grad();
        let kept = LazyTensor::on_device(weights.clone());
        let doubled = LazyTensor::on_device(weights.inner() * 2.0);
        assert_eq!(kept.read().expect("read").values, [1.0, 2.0]);
        assert_eq!(doubled.read().expect("read").values, [2.0, 4.0]);
    }
}
