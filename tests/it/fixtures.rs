//! The tensors computed with PyTorch by `scripts/fixtures`, and the tolerance of comparisons.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};

/// PyTorch computed in double precision, we compute in single: the remaining difference is well below this.
pub const TOLERANCE: f32 = 2e-5;

/// A fixture file, all tensors as f32.
pub struct Fixture {
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Fixture {
    /// Reads `tests/fixtures/{name}.safetensors`.
    pub fn read(name: &str) -> Self {
        let path = Path::new("tests/fixtures").join(format!("{name}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let tensors = file
            .iter()
            .map(|(name, view)| {
                let data = view.data();
                let values = match view.dtype() {
                    Dtype::F32 => data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
                    Dtype::I64 => {
                        data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f32).collect()
                    }
                    Dtype::U8 => data.iter().map(|b| f32::from(*b)).collect(),
                    other => panic!("{name} holds {other:?}"),
                };
                (name.to_owned(), (view.shape().to_vec(), values))
            })
            .collect();
        Self { tensors }
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub fn values(&self, name: &str) -> &[f32] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("no `{name}`")).1
    }

    pub fn shape(&self, name: &str) -> &[usize] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("no `{name}`")).0
    }

    /// The names that start with `prefix`, without it.
    pub fn names<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.tensors.keys().filter_map(move |name| name.strip_prefix(prefix))
    }

    pub fn float<const D: usize>(&self, name: &str, device: &Device) -> Tensor<D> {
        let data = TensorData::new(self.values(name).to_vec(), self.shape(name).to_vec());
        Tensor::from_data(data, device)
    }

    pub fn int<const D: usize>(&self, name: &str, device: &Device) -> Tensor<D, Int> {
        let values: Vec<i32> = self.values(name).iter().map(|x| *x as i32).collect();
        Tensor::from_data(TensorData::new(values, self.shape(name).to_vec()), device)
    }

    /// A mask in our convention, true where a key is *not* seen, from one of seen keys.
    pub fn mask(&self, name: &str, device: &Device) -> Tensor<4, Bool> {
        let mut shape = vec![1; 4 - self.shape(name).len()];
        shape.extend(self.shape(name));
        let values: Vec<bool> = self.values(name).iter().map(|x| *x == 0.0).collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    }

    /// Fails unless `got` equals the tensor `name` of the file.
    pub fn expect<const D: usize>(&self, name: &str, got: Tensor<D>) {
        assert_eq!(got.dims().as_slice(), self.shape(name), "shape of {name}");
        expect_close(name, &host(got), self.values(name), TOLERANCE);
    }
}

/// The numbers of a tensor.
pub fn host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().convert::<f32>().try_to_vec().expect("converted to f32")
}

/// Fails unless each number is within `tolerance` of the expected one.
pub fn expect_close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "size of {what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let close = (got - want).abs() <= tolerance * (1.0 + want.abs()); // false for NaN
        assert!(close, "{what}[{i}] is {got}, not {want}");
    }
}
