//! A tensor that stays on its device or in a file until it is read: a checkpoint has one tensor on the host at a time.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;

use super::parameters::HostTensor;
use tinderbox_kernels as kernels;

/// How many values are converted to bytes, or back, at once.
const CHUNK: usize = 16 * 1024;

/// An f32 tensor on a device or in a file. A clone shares its values.
#[derive(Clone, Debug)]
pub struct LazyTensor {
    shape: Vec<usize>,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    /// Without gradients, as a vector.
    Device(Box<Tensor<1>>),
    /// Little-endian, from this byte on.
    File(Arc<Mutex<File>>, u64),
}

impl LazyTensor {
    /// A tensor on its device. Later updates of a parameter do not change it.
    pub fn on_device<const D: usize>(tensor: Tensor<D>) -> Self {
        let shape = tensor.shape();
        let place = Place::Device(Box::new(tensor.inner().reshape([shape.num_elements()])));
        Self { shape: shape.to_vec(), place }
    }

    /// A tensor whose values are in `file`, row-major and little-endian, from the byte `start` on.
    pub fn in_file(shape: Vec<usize>, file: Arc<Mutex<File>>, start: u64) -> Self {
        Self { shape, place: Place::File(file, start) }
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of values.
    pub fn n_numbers(&self) -> usize {
        self.shape.iter().product()
    }

    /// The number of bytes that [`LazyTensor::write_to`] writes.
    pub fn n_bytes(&self) -> usize {
        size_of::<f32>() * self.n_numbers()
    }

    /// Reads the tensor to the host.
    ///
    /// # Errors
    /// If the file cannot be read or is too short, or the device fails.
    pub fn read(&self) -> io::Result<HostTensor> {
        let values = match &self.place {
            Place::Device(tensor) => kernels::with_values(tensor, <[f32]>::to_vec).map_err(io::Error::other),
            Place::File(file, start) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                read_values(&mut file, *start, self.n_numbers())
            }
        }?;
        Ok(HostTensor { shape: self.shape.clone(), values })
    }

    /// Writes the values, row-major and little-endian.
    ///
    /// # Errors
    /// If they cannot be written, or as [`LazyTensor::read`].
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.place {
            Place::Device(tensor) => {
                kernels::with_values(tensor, |values| write_values(out, values)).map_err(io::Error::other)?
            }
            Place::File(..) => write_values(out, &self.read()?.values),
        }
    }
}

fn read_values(file: &mut File, start: u64, n: usize) -> io::Result<Vec<f32>> {
    file.seek(SeekFrom::Start(start))?;
    let mut values = Vec::with_capacity(n);
    let mut bytes = vec![0; size_of::<f32>() * CHUNK.min(n)];
    while values.len() < n {
        let n_now = CHUNK.min(n - values.len());
        let bytes = &mut bytes[..size_of::<f32>() * n_now];
        file.read_exact(bytes)?;
        let (numbers, _) = bytes.as_chunks();
        values.extend(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    }
    Ok(values)
}

fn write_values(out: &mut dyn Write, values: &[f32]) -> io::Result<()> {
    let mut bytes = vec![0; size_of::<f32>() * CHUNK.min(values.len())];
    for values in values.chunks(CHUNK) {
        let bytes = &mut bytes[..size_of_val(values)];
        let (numbers, _) = bytes.as_chunks_mut();
        for (bytes, value) in numbers.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
        out.write_all(bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn values_are_the_same_on_a_device_in_a_file_and_on_the_host() {
        // More values than are converted at once, of every magnitude.
        let ordinary = (0..2 * CHUNK + 3).map(|i| i as f32 - 1e4);
        let values: Vec<f32> = [f32::MIN_POSITIVE, -0.0, 1e-45, f32::MAX].into_iter().chain(ordinary).collect();
        let shape = [1, values.len()];
        let data = TensorData::new(values.clone(), shape);
        let on_device = LazyTensor::on_device(Tensor::<2>::from_data(data, &Device::flex()));
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(b"before").expect("written");
        on_device.write_to(&mut file).expect("written");
        assert_eq!(file.metadata().expect("a file").len(), 6 + on_device.n_bytes() as u64);
        let in_file = LazyTensor::in_file(shape.to_vec(), Arc::new(Mutex::new(file)), 6);
        for tensor in [on_device, in_file] {
            let host = tensor.read().expect("read");
            assert_eq!((tensor.shape(), &host.shape[..]), (&shape[..], &shape[..]));
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&host.values), bits(&values));
            let mut bytes = Vec::new();
            tensor.write_to(&mut bytes).expect("written");
            let expected: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            assert!(bytes == expected);
        }
    }

    #[test]
    fn a_file_that_got_shorter_is_an_error() {
        let file = Arc::new(Mutex::new(tempfile::tempfile().expect("a temporary file")));
        let tensor = LazyTensor::in_file(vec![2], file, 0);
        let error = tensor.read().expect_err("there is nothing");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn later_operations_do_not_change_it() {
        let device = Device::flex().autodiff();
        let weights = Tensor::<1>::from_floats([1.0, 2.0], &device).require_grad();
        let kept = LazyTensor::on_device(weights.clone());
        let doubled = LazyTensor::on_device(weights.inner() * 2.0);
        assert_eq!(kept.read().expect("read").values, [1.0, 2.0]);
        assert_eq!(doubled.read().expect("read").values, [2.0, 4.0]);
    }
}
